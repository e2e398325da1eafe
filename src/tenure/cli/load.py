"""A load of conversations against a server, and what it measured."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Annotated, Any

from cyclopts import Parameter

from tenure.cli.backends import RemoteBackend
from tenure.cli.flags import flag
from tenure.client.calls import DEFAULT_URL
from tenure.core.errors import TenureError

LEFT_BEHIND_S = 600
"""When the server closes the sessions of a load that was broken off."""


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Load:
    """Who says how much; prompts are random token ids, so that nothing else is measured."""

    url: Annotated[str, flag("The server.")] = DEFAULT_URL
    api_key: Annotated[str | None, flag("The server's API key.")] = None
    sessions: Annotated[int, flag("Conversations at once.")] = 8
    turns: Annotated[int, flag("Turns of each.")] = 10
    input_tokens: Annotated[int, flag("New tokens of each turn.")] = 64
    output_tokens: Annotated[int, flag("Tokens of each answer.")] = 32
    seed: Annotated[int, flag("Seed of the prompts.")] = 0


@dataclass(frozen=True, slots=True)
class Report:
    """Times in milliseconds, rates in tokens a second; `ttft` is the time to a turn's first token.

    `itl` is the time between two events of an answer. `cached_share` is the part of all prompt
    tokens, history included, whose KV was at hand.
    """

    n_turns: int
    wall_s: float
    output_tokens_per_s: float
    prompt_tokens_per_s: float
    cached_share: float
    ttft_p50_ms: float
    ttft_p90_ms: float
    ttft_p99_ms: float
    itl_p50_ms: float
    itl_p99_ms: float
    turn_p50_ms: float


@dataclass(slots=True)
class _Seen:
    """Samples of all conversations; times in seconds."""

    ttft: list[float] = field(default_factory=list[float])
    gaps: list[float] = field(default_factory=list[float])
    turns: list[float] = field(default_factory=list[float])
    n_prompt: int = 0
    n_new: int = 0
    n_cached: int = 0
    n_output: int = 0


async def run_load(load: Load) -> Report:
    """Run every conversation to its end. Raises TenureError when a turn fails."""
    backend = RemoteBackend(load.url, load.api_key)
    seen = _Seen()
    try:
        n_vocab = int((await backend.call("GET", "/model_info"))["vocab_size"])
        began = time.monotonic()
        async with asyncio.TaskGroup() as group:
            for number in range(load.sessions):
                ids = random.Random(f"{load.seed}/{number}")
                group.create_task(_converse(backend, load, ids, n_vocab, seen))
        return _report(seen, time.monotonic() - began)
    finally:
        await backend.close()


async def _converse(
    backend: RemoteBackend, load: Load, ids: random.Random, n_vocab: int, seen: _Seen
) -> None:
    opened = {"streaming": True, "timeout": LEFT_BEHIND_S}
    session = await backend.call("POST", "/open_session", opened)
    for _ in range(load.turns):
        await _turn(
            backend,
            {
                "input_ids": [ids.randrange(n_vocab) for _ in range(load.input_tokens)],
                "session_params": {"id": session},
                "sampling_params": {
                    "max_new_tokens": load.output_tokens,
                    "temperature": 0,
                    "ignore_eos": True,
                },
            },
            seen,
        )
        seen.n_new += load.input_tokens
    await backend.close_session(session)


async def _turn(backend: RemoteBackend, fields: dict[str, object], seen: _Seen) -> None:
    began = last = time.monotonic()
    meta: dict[str, Any] = {}
    async with aclosing(backend.stream(fields)) as answers:
        async for answer in answers:
            now = time.monotonic()
            (seen.gaps if meta else seen.ttft).append(now - last)
            last, meta = now, answer["meta_info"]
    finish = meta["finish_reason"]
    if finish["type"] == "abort":
        raise TenureError(f"a turn was aborted: {finish['message']}")
    seen.turns.append(last - began)
    seen.n_prompt += meta["prompt_tokens"]
    seen.n_cached += meta["cached_tokens"]
    seen.n_output += meta["completion_tokens"]


def _report(seen: _Seen, wall_s: float) -> Report:
    return Report(
        n_turns=len(seen.turns),
        wall_s=wall_s,
        output_tokens_per_s=seen.n_output / wall_s,
        prompt_tokens_per_s=seen.n_new / wall_s,
        cached_share=seen.n_cached / max(1, seen.n_prompt),
        ttft_p50_ms=percentile(seen.ttft, 50) * 1e3,
        ttft_p90_ms=percentile(seen.ttft, 90) * 1e3,
        ttft_p99_ms=percentile(seen.ttft, 99) * 1e3,
        itl_p50_ms=percentile(seen.gaps, 50) * 1e3,
        itl_p99_ms=percentile(seen.gaps, 99) * 1e3,
        turn_p50_ms=percentile(seen.turns, 50) * 1e3,
    )


def percentile(samples: Sequence[float], percent: float) -> float:
    """The nearest-rank percentile; 0 without samples.

    Example: the 50th of [3, 1, 2] is 2, the 99th is 3.
    """
    if not samples:
        return 0.0
    ordered = sorted(samples)
    rank = -(-len(ordered) * percent // 100)
    return ordered[max(0, int(rank) - 1)]
