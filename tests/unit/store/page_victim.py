"""Puts pages on disk until it is killed; says the number of each that was handed over."""

from __future__ import annotations

import sys
from itertools import count
from pathlib import Path

from tenure.store.pages import DiskTier

SIZE = 20_000


def key(n: int) -> bytes:
    return n.to_bytes(33, "big")


def page(n: int) -> bytes:
    return (n % 251).to_bytes(1, "big") * SIZE


def main() -> None:
    tier = DiskTier(Path(sys.argv[1]), "f", int(sys.argv[2]))
    tier.start(lambda: None)
    for n in count(int(sys.argv[3])):
        while not tier.put(key(n), page(n)):
            pass
        print(n, flush=True)


if __name__ == "__main__":
    main()
