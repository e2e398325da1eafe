"""Real prose and code that is at hand wherever Python is: its own documentation and sources.

Both are under the Python Software Foundation License. The selection is fixed; it changes only with
the version of Python, so a digest of the tokens goes into every report.
"""

from __future__ import annotations

import argparse
import ast
import asyncio.base_events
import collections
import dataclasses
import datetime
import difflib
import hashlib
import heapq
import inspect
import pydoc_data.topics
import subprocess
import textwrap
import typing
from collections.abc import Sequence
from types import ModuleType

from tenure.model.tokenizer import Tokenizer

SOURCES: tuple[ModuleType, ...] = (
    heapq,
    dataclasses,
    textwrap,
    difflib,
    ast,
    collections,
    asyncio.base_events,
    subprocess,
    argparse,
    datetime,
    typing,
)


RUN = 256


def prose() -> str:
    """The language reference that `help()` shows, about 460,000 characters."""
    topics = pydoc_data.topics.topics
    return "\n\n".join(topics[name].strip() for name in sorted(topics, key=_order))


def code() -> str:
    """Modules of the standard library, about 550,000 characters."""
    return "\n\n".join(inspect.getsource(module) for module in SOURCES)


def prose_and_code(tokenizer: Tokenizer, n_tokens: int) -> tuple[list[int], list[int]]:
    """`n_tokens` ids of each kind. Raises ValueError if a text has no more."""
    # Eight characters a token is more than any text of this kind has.
    kinds = [
        tokenizer.encode(text[: 8 * n_tokens], add_special=False) for text in (prose(), code())
    ]
    if min(map(len, kinds)) < n_tokens:
        raise ValueError(f"wanted {n_tokens} tokens of each kind, there are {[*map(len, kinds)]}")
    return kinds[0][:n_tokens], kinds[1][:n_tokens]


def token_stream(tokenizer: Tokenizer, n_tokens: int) -> list[int]:
    """`n_tokens` ids in which prose and code take turns of RUN tokens."""
    n_runs = -(-n_tokens // (2 * RUN))
    kinds = prose_and_code(tokenizer, n_runs * RUN)
    starts = range(0, n_runs * RUN, RUN)
    runs = (kind[start : start + RUN] for start in starts for kind in kinds)
    return [token for run in runs for token in run][:n_tokens]


def digest(ids: Sequence[int]) -> str:
    """A short name for exactly these ids."""
    return hashlib.sha256(" ".join(map(str, ids)).encode()).hexdigest()[:16]


def _order(topic: str) -> bytes:
    """A fixed order that mixes long topics with short ones."""
    return hashlib.sha256(topic.encode()).digest()
