"""llama.cpp's server as a target: the client holds the tokens and sends them all each turn."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from _http import exchange
from _target import Turn, resident_bytes
from peer import PeerSettings, RunningPeer, running_peer


@dataclass(slots=True)
class LlamaConversation:
    """A context, and the slot that it is bound to; the server chooses one where it is None."""

    address: str
    slot: int | None
    ids: list[int] = field(default_factory=list)

    async def turn(self, ids: Sequence[int], n_output: int) -> Turn:
        self.ids += ids
        body = {
            "prompt": self.ids,
            "n_predict": n_output,
            "stream": True,
            "return_tokens": True,
            "cache_prompt": True,
            "id_slot": -1 if self.slot is None else self.slot,
            "ignore_eos": True,
            # The cheapest greedy choice that the server has.
            "temperature": 0,
            "samplers": ["top_k"],
            "top_k": 1,
        }
        reply = await exchange(self.address, "/completion", body)
        turn = _turn(reply.sent_at, [(at, json.loads(data)) for at, data in reply.events()])
        self.ids += turn.output
        return turn

    def branch(self, number: int) -> LlamaConversation:
        slot = None if self.slot is None else number
        return LlamaConversation(self.address, slot, list(self.ids))


def _turn(sent_at: float, events: list[tuple[float, dict[str, Any]]]) -> Turn:
    """Every event but the last carries tokens; the last carries the server's own counts."""
    *_, (_, last) = events
    timed = [(at, event["tokens"]) for at, event in events if event["tokens"]]
    counts = last["timings"]
    return Turn(
        sent_at=sent_at,
        arrivals=[at for at, _ in timed],
        n_prompt=counts["cache_n"] + counts["prompt_n"],
        n_cached=counts["cache_n"],
        output=[token for _, tokens in timed for token in tokens],
    )


@dataclass(frozen=True, slots=True)
class LlamaCpp:
    """One server with one model file.

    `bind_slots` gives each conversation a slot of its own, which is what serves the rows best in
    which there are no more conversations than slots.
    """

    name: str
    peer: RunningPeer
    settings: PeerSettings
    bind_slots: bool

    @property
    def about(self) -> str:
        origin = self.settings.binary or "the xllamacpp wheel"
        return f"llama.cpp on {self.settings.model.name}; {origin}, {self.peer.system}"

    async def begin(self, number: int) -> LlamaConversation:
        return LlamaConversation(self.peer.address, number if self.bind_slots else None)

    async def forget(self) -> None:
        for slot in range(self.settings.n_slots):
            await exchange(self.peer.address, f"/slots/{slot}?action=erase", {})

    def resident_bytes(self) -> int:
        return resident_bytes(self.peer.pid)


@contextmanager
def running_llamacpp(name: str, settings: PeerSettings, bind_slots: bool) -> Iterator[LlamaCpp]:
    with running_peer(settings) as peer:
        yield LlamaCpp(name, peer, settings, bind_slots)
