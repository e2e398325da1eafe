"""The adapters that turns may run with: by name, each in a slot of the runner's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Protocol

from tenure.core.errors import AdapterRefused, ModelError, UnknownAdapter
from tenure.core.info import AdapterInfo
from tenure.core.turns import TurnRequest, check_id
from tenure.model.adapters import Adapter

Freed = Callable[[], None]


class AdapterShelf(Protocol):
    """Reads adapters, and keeps them where steps can use them."""

    def read(self, path: str) -> Adapter:
        """Read and check; slow, from any thread, changes nothing. Raises ModelError."""
        ...

    def put(self, slot: int, adapter: Adapter) -> None:
        """Make `slot` stand for `adapter` in the steps that follow."""
        ...

    def take(self, slot: int) -> None:
        """Let go of what `slot` stands for; no later step names it."""
        ...


class NoAdapters:
    """The shelf of an engine that takes no adapters."""

    def read(self, path: str) -> Adapter:
        raise ModelError(f"{path}: this engine takes no adapters")

    def put(self, slot: int, adapter: Adapter) -> None:  # noqa: ARG002
        raise AssertionError("nothing can have been read")

    def take(self, slot: int) -> None:  # noqa: ARG002
        raise AssertionError("nothing can have been put here")


@dataclass(slots=True, eq=False)
class _Held:
    """An adapter in its slot. `freed` is told when no turn runs with it, once it is unloaded."""

    info: AdapterInfo
    n_turns: int = 0
    unloaded: bool = False
    freed: list[Freed] = field(default_factory=list[Freed])


class Adapters:
    """Loaded adapters. One thread calls all verbs but `read`.

    Invariants: a slot stands for one adapter from `add` until it is unloaded and no turn runs with
    it; `_by_name` has those that new turns may ask for.
    """

    def __init__(self, shelf: AdapterShelf, most: int) -> None:
        self._shelf = shelf
        self._most = most
        self._by_name: dict[str, _Held] = {}
        self._slots: dict[int, _Held] = {}
        self._loading: set[str] = set()

    @property
    def loaded(self) -> tuple[AdapterInfo, ...]:
        """Those that turns may ask for, in the order in which they were loaded."""
        return tuple(replace(held.info, n_turns=held.n_turns) for held in self._by_name.values())

    # -- coming and going

    def begin(self, name: str) -> None:
        """Claim a name and a slot for an adapter to be read. Raises AdapterRefused."""
        check_id("lora_name", name)
        if name in self._by_name or name in self._loading:
            raise AdapterRefused(name, "an adapter of that name is loaded")
        if len(self._slots) + len(self._loading) >= self._most:
            raise AdapterRefused(name, f"{self._most} are loaded, the limit; unload one first")
        self._loading.add(name)

    def read(self, path: str) -> Adapter:
        """From any thread; raises ModelError."""
        return self._shelf.read(path)

    def add(self, name: str, path: str, adapter: Adapter) -> None:
        """The adapter that was claimed has been read, and turns may ask for it from now on."""
        self._loading.remove(name)
        slot = next(n for n in range(self._most) if n not in self._slots)
        self._shelf.put(slot, adapter)
        held = _Held(
            AdapterInfo(name, path, adapter.fingerprint, adapter.rank, adapter.size_bytes, slot)
        )
        self._by_name[name] = self._slots[slot] = held

    def give_up(self, name: str) -> None:
        """The adapter that was claimed could not be read."""
        self._loading.remove(name)

    def remove(self, name: str, freed: Freed) -> None:
        """No new turn may ask for it. `freed` is called once no turn runs with it, maybe at once.

        Raises UnknownAdapter.
        """
        if name not in self._by_name:
            raise UnknownAdapter(name)
        held = self._by_name.pop(name)
        held.unloaded = True
        held.freed.append(freed)
        self._free(held)

    def load(self, name: str, path: str) -> None:
        """All at once, before there are turns. Raises AdapterRefused, InvalidField, ModelError."""
        self.begin(name)
        self.add(name, path, self.read(path))

    # -- turns

    def resolve(self, turn: TurnRequest) -> tuple[TurnRequest, int | None]:
        """The turn in its adapter's own part of the cache, and the slot; raises UnknownAdapter."""
        if turn.adapter is None:
            return turn, None
        held = self._by_name.get(turn.adapter)
        if held is None:
            raise UnknownAdapter(turn.adapter)
        return replace(turn, namespace=keyed(turn.namespace, held.info)), held.info.slot

    def began(self, slot: int | None) -> None:
        """A turn with this slot is in flight."""
        if slot is not None:
            self._slots[slot].n_turns += 1

    def ended(self, slot: int | None) -> None:
        """A turn with this slot is not in flight any more."""
        if slot is not None:
            held = self._slots[slot]
            held.n_turns -= 1
            self._free(held)

    def _free(self, held: _Held) -> None:
        if held.unloaded and not held.n_turns:
            del self._slots[held.info.slot]
            self._shelf.take(held.info.slot)
            for freed in held.freed:
                freed()


def keyed(namespace: str, adapter: AdapterInfo) -> str:
    """The namespace that keeps KV of an adapter apart: by what it computes, not by its name."""
    return f"adapter:{adapter.fingerprint}:{namespace}"
