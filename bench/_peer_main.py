"""llama.cpp's server in a process of its own. Runs under the peer's interpreter, see `peer.py`.

usage: python _peer_main.py OPTIONS, a JSON object of `xllamacpp.CommonParams` fields; a dotted name
reaches into a part ("cpuparams.n_threads"), and an enum is given by its name.

Prints llama.cpp's line of instruction sets, and serves until stdin ends.
"""

from __future__ import annotations

import json
import sys
from enum import Enum
from functools import reduce

import xllamacpp  # pyright: ignore[reportMissingImports] - the peer's


def main() -> None:
    params = xllamacpp.CommonParams()
    for name, value in json.loads(sys.argv[1]).items():
        *path, last = name.split(".")
        part = reduce(getattr, path, params)
        old = getattr(part, last)
        setattr(part, last, type(old)[value] if isinstance(old, Enum) else value)
    print(xllamacpp.get_system_info(), flush=True)
    server = xllamacpp.Server(params)
    sys.stdin.read()
    del server


if __name__ == "__main__":
    main()
