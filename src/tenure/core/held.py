"""The KV that a session holds."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class GroupHeld:
    """Distinct pages of one KV group; shared ones lie in the prefix tree, where others may hold
    them too.
    """

    kind: str
    n_private_pages: int
    n_shared_pages: int
    page_bytes: int


@dataclass(frozen=True, slots=True)
class KvHeld:
    """KV that a session holds: `n_tokens` over all its leases, and its pages by group."""

    n_tokens: int
    groups: tuple[GroupHeld, ...]

    @property
    def n_private_pages(self) -> int:
        return sum(group.n_private_pages for group in self.groups)

    @property
    def n_shared_pages(self) -> int:
        return sum(group.n_shared_pages for group in self.groups)

    @property
    def n_bytes(self) -> int:
        return sum(
            (group.n_private_pages + group.n_shared_pages) * group.page_bytes
            for group in self.groups
        )
