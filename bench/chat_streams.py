"""What the chat interface costs: 8 streaming clients of it beside 8 of `/generate`.

Both ask for the same tokens: the chat's rendered prompt goes to `/generate` as ids. They take turns
in one run, on one server, whose caches are emptied before each.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any, TypeAlias

from cyclopts import App, Parameter
from rich.console import Console
from rich.table import Table

from _http import HttpFailure, exchange
from _tenure import Tenure, TenureSettings, read_turn, running_tenure
from _text import token_stream
from tenure.engine.text import Text, load_text
from tenure.model.default import default_model_path
from tenure.model.load import load_checkpoint

app = App(name="chat_streams", help=__doc__, result_action="return_value")
Play: TypeAlias = Callable[[str, list[int]], Coroutine[Any, Any, int]]


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Flags:
    """What to run."""

    model: Path | None = None
    clients: int = 8
    n_prompt: int = 128
    n_output: int = 128
    repeats: int = 5
    threads: int = 2


def chat(text: Text, n_output: int) -> Play:
    """A streaming chat client; returns how many tokens came."""

    async def play(address: str, question: list[int]) -> int:
        body = {
            "messages": [{"role": "user", "content": text.tokenizer.decode(question, False)}],
            "max_tokens": n_output,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        reply = await exchange(address, "/v1/chat/completions", body)
        last = [event.data for event in reply.events() if event.data != b"[DONE]"][-1]
        return int(json.loads(last)["usage"]["completion_tokens"])

    return play


def generate(text: Text, n_output: int) -> Play:
    """The same over `/generate`."""

    async def play(address: str, question: list[int]) -> int:
        assert text.chat is not None
        asked = [{"role": "user", "content": text.tokenizer.decode(question, False)}]
        rendered = text.chat.render(asked, True, None)
        body = {
            "input_ids": text.tokenizer.encode(rendered, add_special=False),
            "sampling_params": {"max_new_tokens": n_output, "temperature": 0, "ignore_eos": True},
            "stream": True,
        }
        reply = await exchange(address, "/generate", body)
        return len(read_turn(reply.sent_at, reply.events()).output)

    return play


async def rate(target: Tenure, play: Play, questions: Sequence[list[int]], n_output: int) -> float:
    """Output tokens a second of all clients together."""
    await target.forget()
    began = perf_counter()
    counts = await asyncio.gather(*(play(target.address, ids) for ids in questions))
    elapsed = perf_counter() - began
    if set(counts) != {n_output}:
        raise HttpFailure(f"{counts} tokens came, {n_output} were asked for")
    return sum(counts) / elapsed


async def compare(target: Tenure, text: Text, flags: Flags) -> dict[str, list[float]]:
    plays = {
        "/generate": generate(text, flags.n_output),
        "/v1/chat/completions": chat(text, flags.n_output),
    }
    n_all = (flags.repeats + 1) * flags.clients * flags.n_prompt
    stream = iter(token_stream(text.tokenizer, n_all))
    rates: dict[str, list[float]] = {name: [] for name in plays}
    for repeat in range(flags.repeats + 1):
        questions = [list(islice(stream, flags.n_prompt)) for _ in range(flags.clients)]
        # Whoever goes first may find the machine in another state, so they swap.
        order = list(plays.items()) if repeat % 2 else list(plays.items())[::-1]
        for name, play in order:
            found = await rate(target, play, questions, flags.n_output)
            if repeat:
                rates[name].append(found)
    return rates


@app.default
def main(flags: Flags = Flags()) -> None:
    path = flags.model or default_model_path()
    text = load_text(load_checkpoint(path, progress=lambda *_: None))
    with running_tenure("tenure", TenureSettings(path, threads=flags.threads)) as target:
        rates = asyncio.run(compare(target, text, flags))
        about = target.about
    table = Table("interface", "tokens a second", "spread", title=about)
    for name, values in rates.items():
        table.add_row(name, f"{median(values):.1f}", f"{min(values):.1f} to {max(values):.1f}")
    console = Console()
    console.print(table)
    ratios = [ours / base for ours, base in zip(*reversed(rates.values()), strict=True)]
    console.print(f"chat over /generate: {median(ratios):.3f} (median of {len(ratios)} pairs)")


if __name__ == "__main__":
    sys.exit(app())
