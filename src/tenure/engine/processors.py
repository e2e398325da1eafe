"""Logit processors: installed code that changes logits before a token is chosen.

A package offers one as an entry point of the group `tenure.logit_processors`: a callable that makes
the processor of one turn,

    make(params, n_vocab) -> processor        params: a dict, what the request says
    processor(output, logits) -> None         output: a tuple of the ids this turn produced so far
                                              logits: float32 [n_vocab], to be changed in place

It runs in the engine's thread. Nothing in a request is ever run: it only names what is installed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from importlib.metadata import EntryPoint, entry_points
from typing import Any, cast

import structlog

from tenure.core.errors import InvalidField, UnsupportedField
from tenure.core.plan import Process
from tenure.core.turns import Processor
from tenure.sched.request import MakeProcess

log = structlog.get_logger(__name__)

GROUP = "tenure.logit_processors"
FIELD = "custom_logit_processor"

Apply = Callable[[tuple[int, ...], Any], None]
Make = Callable[[Mapping[str, object], int], Apply]


class Processors:
    """The installed ones by name; each is imported when a turn first asks for it."""

    def __init__(self, n_vocab: int, found: Iterable[EntryPoint] | None = None) -> None:
        """`found` None: whatever is installed beside this package."""
        self._n_vocab = n_vocab
        installed = entry_points(group=GROUP) if found is None else found
        self._found = {entry.name: entry for entry in installed}
        self._made: dict[str, Make] = {}

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(sorted(self._found))

    def make(self, asked: Processor | None) -> MakeProcess | None:
        """The processor of one turn, by code of its own. Raises InvalidField, UnsupportedField."""
        if asked is None:
            return None
        make = self._load(asked.name)
        try:
            apply = make(dict(asked.params), self._n_vocab)
        except Exception as error:
            allowed = f"params that {asked.name} takes ({error})"
            raise InvalidField(FIELD, dict(asked.params), allowed) from error
        return partial(_bound, apply)

    def _load(self, name: str) -> Make:
        if name not in self._found:
            known = ", ".join(self.names) or "none"
            raise InvalidField(FIELD, name, f"the name of an installed processor ({known})")
        if name not in self._made:
            try:
                self._made[name] = cast("Make", self._found[name].load())
            except Exception as error:
                log.exception("a logit processor cannot be imported", name=name)
                raise UnsupportedField(FIELD, f"{name} cannot be imported") from error
        return self._made[name]


def _bound(apply: Apply, output: tuple[int, ...]) -> Process:
    return partial(apply, output)
