"""Kill the engine and the server under load, again and again, and check every promise.

python scripts/chaos.py --rounds 200
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from pathlib import Path

from tenure.testing.chaos import Chaos, ChaosSettings


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--sessions", type=int, default=16)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--backend", default="auto")
    args = parser.parse_args()
    settings = ChaosSettings(
        n_rounds=args.rounds, n_sessions=args.sessions, seed=args.seed, backend=args.backend
    )
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        outcome = asyncio.run(Chaos(Path(folder), settings, print).run())
    print(f"{args.rounds} rounds, {args.sessions} sessions, {time.monotonic() - began:.0f} s")
    print("\n".join(outcome.lines()))


if __name__ == "__main__":
    main()
