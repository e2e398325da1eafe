"""The rows of the comparison: what a client does, and what is measured of it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from statistics import median
from typing import TypeAlias

from _target import Conversation, Target, Turn

Ids: TypeAlias = list[int]
Measures: TypeAlias = Mapping[str, float]

KV_TOKENS = 65_536
"""KV positions that every server may hold, unless a row says otherwise: 8 slots of 8,192."""

EIGHT_TOKENS = 8 * 10 * 64
"""Ids that `play_eight` sends."""


@dataclass(frozen=True, slots=True)
class Measure:
    """One number of a row.

    Targets are factors over the peer, in the direction that is better: 3.0 is three times the
    throughput, or a third of the time. `at_least` is a bound on our own number instead.
    """

    key: str
    label: str
    unit: str
    larger_is_better: bool
    over_same_file: float | None = None
    over_best: float | None = None
    at_least: float | None = None


@dataclass(frozen=True, slots=True)
class Row:
    """`run` plays the row once against a cold target, with `n_prompt` ids that it has never seen.

    `kv_tokens` is what the servers may hold; `bind_slots` see `_llamacpp.LlamaCpp`.
    """

    name: str
    what: str
    n_prompt: int
    run: Callable[[Target, Ids], Awaitable[Measures]]
    measures: tuple[Measure, ...]
    kv_tokens: int = KV_TOKENS
    bind_slots: bool = True


async def prefill(target: Target, ids: Ids) -> Measures:
    conversation = await target.begin(0)
    turn = await conversation.turn(ids, 1)
    return {"prefill": len(ids) / turn.ttft_s}


async def decode(target: Target, ids: Ids) -> Measures:
    conversation = await target.begin(0)
    turn = await conversation.turn(ids, 129)
    return {"decode": turn.decode_tps}


async def long_conversation(target: Target, ids: Ids) -> Measures:
    """40 turns of 32 in and 32 out; the tail is turns 36 to 40."""
    conversation = await target.begin(0)
    turns = [await conversation.turn(part, 32) for part in _cut(ids, 40)]
    return {
        "head": 1e3 * median(turn.ttft_s for turn in turns[:5]),
        "tail": 1e3 * median(turn.ttft_s for turn in turns[-5:]),
        "total": turns[-1].last_at - turns[0].sent_at,
    }


async def play_eight(target: Target, ids: Ids) -> list[Turn]:
    """8 conversations at once, 10 turns each of 64 in and 32 out; all their turns."""
    conversations = [await target.begin(number) for number in range(8)]

    async def play(conversation: Conversation, own: Ids) -> list[Turn]:
        return [await conversation.turn(part, 32) for part in _cut(own, 10)]

    played = await asyncio.gather(*map(play, conversations, _cut(ids, 8)))
    return [turn for each in played for turn in each]


async def eight_conversations(target: Target, ids: Ids) -> Measures:
    turns = await play_eight(target, ids)
    elapsed = max(turn.last_at for turn in turns) - min(turn.sent_at for turn in turns)
    return {
        "output": len(turns) * 32 / elapsed,
        "ttft": 1e3 * median(turn.ttft_s for turn in turns),
    }


async def branches(target: Target, ids: Ids) -> Measures:
    """A context of 1,024 tokens, then 8 branches from it at once, 16 in and 32 out."""
    context, rest = ids[:1024], ids[1024:]
    trunk = await target.begin(0)
    await trunk.turn(context, 1)
    ends = [trunk.branch(number) for number in range(8)]
    turns = await asyncio.gather(
        *(branch.turn(part, 32) for branch, part in zip(ends, _cut(rest, 8), strict=True))
    )
    elapsed = max(turn.last_at for turn in turns) - min(turn.sent_at for turn in turns)
    cached = sum(turn.n_cached for turn in turns) / sum(turn.n_prompt for turn in turns)
    return {"branches": elapsed, "cached": 100 * cached}


async def resume_many(target: Target, ids: Ids) -> Measures:
    """32 conversations of 512 tokens, more than the KV holds; then each goes on, 16 in, 8 out."""
    conversations = [await target.begin(number) for number in range(32)]
    for conversation, part in zip(conversations, _cut(ids[: 32 * 512], 32), strict=True):
        await conversation.turn(part, 1)
    turns = [
        await conversation.turn(part, 8)
        for conversation, part in zip(conversations, _cut(ids[32 * 512 :], 32), strict=True)
    ]
    computed = median(turn.n_prompt - 16 - turn.n_cached for turn in turns)
    return {"ttft": 1e3 * median(turn.ttft_s for turn in turns), "again": computed}


def _cut(ids: Ids, n_parts: int) -> list[Ids]:
    """Equal parts; `n_parts` divides the length."""
    size = len(ids) // n_parts
    return [ids[start : start + size] for start in range(0, n_parts * size, size)]


def _faster(key: str, label: str, over_best: float, over_same_file: float | None = None) -> Measure:
    return Measure(key, label, "tok/s", True, over_same_file, over_best)


def _shorter(key: str, label: str, unit: str, over_best: float | None = None) -> Measure:
    return Measure(key, label, unit, False, None, over_best)


ROWS = (
    Row("W1", "prefill of 1,024 tokens", 1024, prefill, (_faster("prefill", "prefill", 1.6, 3.0),)),
    Row("W2a", "decode 128 at context 128", 128, decode, (_faster("decode", "decode", 1.6),)),
    Row("W2b", "decode 128 at context 2,048", 2048, decode, (_faster("decode", "decode", 2.2),)),
    Row(
        "W3",
        "one conversation, 40 turns, 32 in, 32 out",
        40 * 32,
        long_conversation,
        (
            _shorter("head", "TTFT, turns 1-5", "ms"),
            _shorter("tail", "TTFT, turns 36-40", "ms", 1.8),
            _shorter("total", "total", "s", 1.8),
        ),
    ),
    Row(
        "W4",
        "8 conversations at once, 10 turns, 64 in, 32 out",
        EIGHT_TOKENS,
        eight_conversations,
        (_faster("output", "output", 3.0), _shorter("ttft", "TTFT p50", "ms", 3.0)),
    ),
    Row(
        "W5",
        "8 branches at once from 1,024 tokens, 16 in, 32 out",
        1024 + 8 * 16,
        branches,
        (
            _shorter("branches", "branches", "s", 15.0),
            Measure("cached", "prompt cached", "%", True, at_least=98.0),
        ),
    ),
    Row(
        "W6",
        "32 conversations of 512 resumed, KV for 8,192, 16 in, 8 out",
        32 * (512 + 16),
        resume_many,
        (
            _shorter("ttft", "TTFT", "ms", 1.0),
            _shorter("again", "computed again", "tokens"),
        ),
        kv_tokens=8192,
        bind_slots=False,
    ),
)
