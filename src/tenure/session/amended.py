"""A value whose changes count at once, and are taken back when they could not be written."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

Value = TypeVar("Value")


class Amended(Generic[Value]):
    """What is written, and the changes whose write is not decided yet, in the order they came.

    `value`, the newest of them, is what counts. Each was made on the one before it and carries all
    of it, so a write that succeeds settles what an earlier one has failed to.
    """

    def __init__(self, value: Value) -> None:
        self.value = value
        self._written = value
        self._waiting: dict[object, Value] = {}

    def amend(self, value: Value) -> Callable[[bool], None]:
        """Have `value` from now on; to be called, once, with whether it was written."""
        change = object()
        self.value = self._waiting[change] = value

        def decided(written: bool) -> None:
            del self._waiting[change]
            if written:
                self._written = value
            self.value = next(reversed(self._waiting.values()), self._written)

        return decided
