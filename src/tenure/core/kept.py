"""Values that the outside keeps with the engine, so that they survive a restart as sessions do."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Kept:
    """`value` under a name of its tenant's; the engine does not look into it.

    `session` is a session of the same tenant that goes with the last value that names it.
    """

    name: str
    value: bytes
    session: str | None = None

    @property
    def size_bytes(self) -> int:
        return len(self.name) + len(self.value)
