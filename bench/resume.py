"""Resuming conversations whose KV is no longer in memory, with pages on disk and without.

Two servers on the same model, one with `--kv-disk-gb 0`; they take turns. First conversations are
evicted (`/flush_cache`) and go on; then both servers are killed (SIGKILL) and started again, and
conversations go on. Times are those to the first streamed token, over HTTP. The outputs of both
have to be the same.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from time import monotonic, perf_counter
from typing import Annotated, Any, cast

from cyclopts import App, Parameter
from rich.console import Console

from _http import exchange
from _target import Turn, end_in_order
from _tenure import Tenure, TenureConversation, TenureSettings, running_tenure
from _text import token_stream
from tenure.model.default import default_model_path
from tenure.model.load import load_checkpoint
from tenure.model.tokenizer import load_tokenizer

NEW, OUTPUT = 16, 8
WRITTEN_S = 30.0

app = App(name="resume", help=__doc__, result_action="return_value")
console = Console(stderr=True)


@dataclass(slots=True)
class Side:
    """One of the two servers, over its restarts."""

    name: str
    settings: TenureSettings
    stack: ExitStack = field(default_factory=ExitStack)
    tips: list[tuple[str, str | None]] = field(default_factory=list)
    outputs: list[list[int]] = field(default_factory=list)
    server: Tenure | None = None

    def start(self) -> float:
        """Seconds until it answers."""
        began = perf_counter()
        self.server = self.stack.enter_context(running_tenure(self.name, self.settings))
        return perf_counter() - began

    def kill(self) -> None:
        assert self.server is not None
        os.kill(self.server.pid, signal.SIGKILL)
        self.stack.close()

    def open(self, index: int) -> TenureConversation:
        assert self.server is not None
        session, tip = self.tips[index]
        return TenureConversation(self.server.address, session, tip)

    async def first(self, ids: Sequence[int]) -> None:
        """A new conversation, and its first turn; returns when what is kept of it is on disk."""
        assert self.server is not None
        conversation = await self.server.begin(len(self.tips))
        turn = await conversation.turn(ids, OUTPUT)
        self.outputs.append(turn.output)
        self.tips.append((conversation.session, conversation.tip))
        await self._written()

    async def go_on(self, index: int, ids: Sequence[int]) -> Turn:
        conversation = self.open(index)
        turn = await conversation.turn(ids, OUTPUT)
        self.outputs.append(turn.output)
        self.tips[index] = conversation.session, conversation.tip
        return turn

    async def evict(self) -> None:
        assert self.server is not None
        await exchange(self.server.address, "/flush_cache", {})

    async def restore_info(self) -> dict[str, Any] | None:
        assert self.server is not None
        info = cast("dict[str, Any]", (await exchange(self.server.address, "/server_info")).json())
        return info["internal_states"][0]["restore"]

    async def _written(self) -> None:
        deadline, before = monotonic() + WRITTEN_S, -1
        while (info := await self.restore_info()) is not None and monotonic() < deadline:
            if info["tier"]["n_written"] == before:
                return
            before = info["tier"]["n_written"]
            await asyncio.sleep(0.2)


def say(what: str, with_: Sequence[Turn], without: Sequence[Turn]) -> None:
    fast, slow = (median(turn.ttft_s for turn in turns) for turns in (with_, without))
    each = " ".join(f"{turn.ttft_s * 1e3:.0f}" for turn in with_)
    cached = ", ".join(f"{turn.n_cached} of {turn.n_prompt}" for turn in (with_[0], without[0]))
    print(
        f"{what}: {fast * 1e3:.0f} ms with pages on disk ({each}), {slow * 1e3:.0f} ms without, "
        f"{slow / fast:.1f} x; cached {cached}"
    )


async def evicted(sides: Sequence[Side], n_tokens: int, repeats: int, ids: list[int]) -> None:
    took: dict[str, list[Turn]] = {side.name: [] for side in sides}
    for n in range(repeats):
        prompt, more = _cut(ids, n_tokens), _cut(ids, NEW)
        for side in sides if n % 2 else reversed(sides):
            await side.first(prompt)
            await side.evict()
            took[side.name].append(await side.go_on(len(side.tips) - 1, more))
    say(f"evicted, {n_tokens} tokens", took[sides[0].name], took[sides[1].name])


async def restarted(sides: Sequence[Side], kept: Sequence[tuple[int, int]], ids: list[int]) -> None:
    """`kept` names conversations by index, with their length."""
    for side in sides:
        side.kill()
    for index, n_tokens in kept:
        more = _cut(ids, NEW)
        turns = []
        for side in sides:
            start_s = await asyncio.to_thread(side.start)
            turns.append([await side.go_on(index, more)])
            print(f"  {side.name}: answers {start_s:.1f} s after its start")
            if info := await side.restore_info():
                print(f"  {_facts(info)}")
            side.kill()
        say(f"restarted, {n_tokens} tokens", *turns)


def _facts(info: dict[str, Any]) -> str:
    tier = info["tier"]
    rate, token_s = info["read_bytes_per_s"], info["prefill_s_per_token"]
    return (
        f"{info['n_restored_tokens']} tokens restored, {(rate or 0) / 1e6:.0f} MB/s read and put "
        f"in place; {tier['used_bytes'] / 1e6:.0f} MB on disk; a token of prefill "
        f"{(token_s or 0) * 1e3:.2f} ms"
    )


def _cut(ids: list[int], n: int) -> list[int]:
    taken = ids[:n]
    del ids[:n]
    return taken


@app.default
def main(
    *,
    model: Path | None = None,
    state_dir: Annotated[Path | None, Parameter(help="A folder on the disk to measure.")] = None,
    evicted_tokens: int = 2048,
    restarted_tokens: int = 4096,
    repeats: int = 3,
) -> None:
    """Print the times and their ratios."""
    end_in_order()
    path = model or default_model_path()
    tokenizer = load_tokenizer(load_checkpoint(path, progress=lambda *_: None).metadata)
    n_tokens = (repeats + 1) * (evicted_tokens + NEW) + 2 * restarted_tokens
    ids = token_stream(tokenizer, n_tokens)
    with tempfile.TemporaryDirectory(dir=state_dir) as folder, ExitStack() as stack:
        sides = []
        for name, n_gb in (("with", 4), ("without", 0)):
            flags = (f"--kv-disk-gb={n_gb}",)
            own = TenureSettings(path, flags=flags, state_dir=Path(folder) / name)
            side = Side(name, own)
            stack.callback(side.stack.close)
            side.start()
            sides.append(side)
        asyncio.run(_play(sides, (evicted_tokens, restarted_tokens), repeats, ids))


async def _play(
    sides: Sequence[Side], lengths: tuple[int, int], repeats: int, ids: list[int]
) -> None:
    assert sides[0].server is not None
    print(sides[0].server.about)
    await evicted(sides, lengths[0], repeats, ids)
    prompt = _cut(ids, lengths[1])
    for side in sides:
        await side.first(prompt)
    await restarted(sides, [(0, lengths[0]), (repeats, lengths[1])], ids)
    same = sides[0].outputs == sides[1].outputs
    print(f"{len(sides[0].outputs)} outputs, {'all the same' if same else 'NOT the same'}")
    if not same:
        sys.exit(1)


if __name__ == "__main__":
    app()
