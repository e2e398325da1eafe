"""A streamed answer on a terminal."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass

from rich.console import Console

from tenure.cli.backends import Answer
from tenure.core.errors import UserError


@dataclass(frozen=True, slots=True)
class Shown:
    """The finished answer, and when its first and last event came, in seconds."""

    answer: Answer
    first_s: float
    end_s: float


async def show(answers: AsyncGenerator[Answer], out: Console | None) -> Shown:
    """Print an answer's text as it grows (not at all without `out`).

    Raises UserError for a turn that was aborted by somebody else.
    """
    first: float | None = None
    n_shown = 0
    answer: Answer = {}
    async with aclosing(answers):
        async for answer in answers:
            first = time.monotonic() if first is None else first
            if out is not None:
                # The text goes out as it is: rich would read [brackets] as markup.
                out.out(answer["text"][n_shown:], end="", highlight=False)
                out.file.flush()
            n_shown = len(answer["text"])
    if out is not None:
        out.out("")
    end = time.monotonic()
    match answer:
        case {"meta_info": {"finish_reason": {"type": "abort", "message": str(message)}}}:
            raise UserError(message)
        case _:
            return Shown(answer, end if first is None else first, end)


def status_line(shown: Shown) -> str:
    """Tokens, speed after the first token, and how much of the prompt was in the cache."""
    meta = shown.answer["meta_info"]
    n, took_s = meta["completion_tokens"], shown.end_s - shown.first_s
    speed = f", {(n - 1) / took_s:.1f} tokens/s" if n > 1 and took_s > 0 else ""
    cached = f"{meta['cached_tokens']} of {meta['prompt_tokens']} prompt tokens cached"
    return f"{n} tokens{speed}, {cached}"
