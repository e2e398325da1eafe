"""How large a KV cache to make: from a model, a wish in tokens, and the memory at hand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tenure.core.errors import ConfigError
from tenure.kv.spec import FullGroup, Group, KvSpec, RecurrentGroup, SlidingGroup
from tenure.model.spec import (
    AttentionSpec,
    DeltaNetSpec,
    Mamba2Spec,
    Mixer,
    ModelSpec,
    ShortConvSpec,
)

AUTO_SHARE = 0.5
"""The part of free memory that the KV cache takes when its size is not given."""

LEAST_TOKENS = 256
"""A cache below this serves no conversation; choosing it silently would only move the error."""

STATES_SHARE = 0.25
"""The part of the KV cache that running states take, with their checkpoints, at most."""

LEAST_STATES = 4
STATES_PER_SEQUENCE = 4
"""Bounds of their number where it is not given: for one that runs, three to come back to."""

MOST_TOKENS = 2**30
"""Positions in a group are 32-bit slots in every backend."""

Size = Callable[[int], int]
"""Bytes of the KV cache for so many tokens."""


@dataclass(frozen=True, slots=True)
class KvWish:
    """What the user asked for; `max_kv_tokens` None means as much as is sensible.

    `n_sequences` run at once, and write at most `step_tokens` in a step. Of running states,
    `n_checkpoints` are kept beside those in use; None means as many as is sensible.
    """

    page_size: int
    max_kv_tokens: int | None
    n_sequences: int
    step_tokens: int
    n_checkpoints: int | None = None


def kv_groups(spec: ModelSpec) -> tuple[Group, ...]:
    """The kind of each KV group by its index, with no pages yet.

    Raises ValueError where layers of one group differ, or an index below the highest is unused.
    """
    kinds: list[set[Group]] = [set() for _ in range(spec.n_groups)]
    for _, mixer in spec.mixers():
        kinds[mixer.group].add(_kind(mixer))
    for group, found in enumerate(kinds):
        if len(found) != 1:
            raise ValueError(f"KV group {group} needs layers of exactly one kind, has {found}")
    return tuple(kind for found in kinds for kind in found)


def _kind(mixer: Mixer) -> Group:
    match mixer:
        case AttentionSpec():
            return FullGroup(0) if mixer.window is None else SlidingGroup(0, mixer.window)
        case ShortConvSpec() | Mamba2Spec() | DeltaNetSpec():
            return RecurrentGroup(0)


def size_kv(
    spec: ModelSpec, bytes_per_page: Sequence[int], wish: KvWish, free_bytes: int
) -> KvSpec:
    """The KV cache that honours `wish`, with `bytes_per_page` as `Executor.kv_bytes_per_page`.

    Groups of full attention hold `max_kv_tokens`. Beside them, a sliding group holds the windows of
    twice the running sequences (the other half is for idle ones) if that is less. A recurrent group
    holds a state for each running sequence and `n_checkpoints` more, taken whenever a full step has
    been written. Raises ConfigError, with the numbers, when it does not fit in `free_bytes`.
    """
    share = AUTO_SHARE if wish.max_kv_tokens is None else 1.0
    kinds = _with_states(kv_groups(spec), bytes_per_page, wish, int(free_bytes * share))

    def size(n_tokens: int) -> int:
        pages = (group.n_pages + 1 for group in _groups(kinds, wish, n_tokens))
        return sum(n * each for n, each in zip(pages, bytes_per_page, strict=True))

    if wish.max_kv_tokens is None:
        most = min(wish.n_sequences * spec.context_len, MOST_TOKENS)
        n_tokens = _chosen_tokens(size, wish.page_size, most, int(free_bytes * AUTO_SHARE))
    else:
        n_tokens = _checked_tokens(size, wish.page_size, wish.max_kv_tokens, free_bytes)
    return KvSpec(wish.page_size, _groups(kinds, wish, n_tokens))


def _chosen_tokens(size: Size, page_size: int, most: int, budget: int) -> int:
    n_tokens = _largest(size, page_size, most, budget)
    least = min(LEAST_TOKENS, most)
    if n_tokens < least:
        raise ConfigError(
            f"a KV cache of {least} tokens takes {_mib(size(least))}, and half of the free memory "
            f"is {_mib(budget)}; free some memory, choose a smaller model or kv_dtype, or set "
            "max_kv_tokens to take more than half"
        )
    return n_tokens


def _checked_tokens(size: Size, page_size: int, n_tokens: int, free_bytes: int) -> int:
    if not page_size <= n_tokens <= MOST_TOKENS:
        raise ConfigError(
            f"max_kv_tokens must be in [{page_size}, {MOST_TOKENS}] (one page or more), "
            f"got {n_tokens}"
        )
    if size(n_tokens) > free_bytes:
        fits = _largest(size, page_size, n_tokens, free_bytes)
        raise ConfigError(
            f"max_kv_tokens {n_tokens} takes {_mib(size(n_tokens))}, but {_mib(free_bytes)} of "
            f"memory is free; at most {fits} tokens fit. Lower max_kv_tokens or choose a smaller "
            "kv_dtype"
        )
    return n_tokens


def _groups(kinds: Sequence[Group], wish: KvWish, n_tokens: int) -> tuple[Group, ...]:
    n_pages = -(-n_tokens // wish.page_size)
    has_full = FullGroup(0) in kinds
    groups: list[Group] = []
    for kind in kinds:
        match kind:
            case FullGroup():
                groups.append(FullGroup(n_pages))
            case SlidingGroup(window=window):
                enough = 2 * wish.n_sequences * _span(window, wish) if has_full else n_pages
                groups.append(SlidingGroup(min(n_pages, enough), window))
            case RecurrentGroup():
                groups.append(kind)
    return tuple(groups)


def _with_states(
    kinds: Sequence[Group], bytes_per_page: Sequence[int], wish: KvWish, budget: int
) -> tuple[Group, ...]:
    """`kinds` with the pages of recurrent groups, which no number of tokens changes."""
    sized: list[Group] = []
    for kind, each in zip(kinds, bytes_per_page, strict=True):
        match kind:
            case RecurrentGroup():
                sized.append(_states(wish, int(budget * STATES_SHARE) // each))
            case FullGroup() | SlidingGroup():
                sized.append(kind)
    return tuple(sized)


def _states(wish: KvWish, fits: int) -> RecurrentGroup:
    """Without checkpoints to keep, none are taken at page boundaries either."""
    every = -(-wish.step_tokens // wish.page_size) * wish.page_size
    if wish.n_checkpoints is None:
        most = STATES_PER_SEQUENCE * wish.n_sequences
        return RecurrentGroup(max(LEAST_STATES, min(fits, most)), every)
    n_pages = wish.n_sequences + wish.n_checkpoints
    return RecurrentGroup(n_pages, every if wish.n_checkpoints else 0)


def _span(window: int, wish: KvWish) -> int:
    """Most pages that one sequence holds in a sliding group while a step writes.

    Example: window 8, 4 tokens a step, pages of 4: 11 positions, [6, 17) at worst, in 4 pages.
    """
    return -(-(window - 1 + wish.step_tokens) // wish.page_size) + 1


def _largest(size: Size, page_size: int, most: int, budget: int) -> int:
    """The most tokens, in whole pages and at most `most` rounded up, whose size is in budget."""
    low, high = 0, -(-most // page_size)
    while low < high:
        middle = (low + high + 1) // 2
        if size(middle * page_size) <= budget:
            low = middle
        else:
            high = middle - 1
    return low * page_size


def _mib(n_bytes: int) -> str:
    return f"{n_bytes / 2**20:,.1f} MiB"
