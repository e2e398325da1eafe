"""The shape of the KV cache: how many pages each group has, and what a page of it means."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

NULL_PAGE = 0
"""The page that a sliding group's table names where positions have left the window.

It is storage page 0 of every group and belongs to nobody; pools hand out pages 1 to n_pages.
"""


@dataclass(frozen=True, slots=True)
class FullGroup:
    """Layers that attend to every earlier position. A page holds `page_size` positions."""

    n_pages: int


@dataclass(frozen=True, slots=True)
class SlidingGroup:
    """Layers in which position p attends to (p - window, p]. A page holds `page_size` positions."""

    n_pages: int
    window: int


@dataclass(frozen=True, slots=True)
class RecurrentGroup:
    """Layers with one running state a sequence. A page holds one whole state (live or checkpoint).

    A checkpoint is taken at positions that are a multiple of `checkpoint_every` (itself a multiple
    of the page size; 0 takes none) and wherever the lease is told to.
    """

    n_pages: int
    checkpoint_every: int = 0


Group: TypeAlias = FullGroup | SlidingGroup | RecurrentGroup


@dataclass(frozen=True, slots=True)
class KvSpec:
    """Every group of a model's KV cache, and the page size that all position-paged groups share."""

    page_size: int
    groups: tuple[Group, ...]

    def __post_init__(self) -> None:
        if self.page_size < 1 or self.page_size & (self.page_size - 1) or self.page_size > 256:
            raise ValueError(f"page_size must be a power of two in [1, 256], got {self.page_size}")
        if not self.groups:
            raise ValueError("a KV cache has at least one group")
