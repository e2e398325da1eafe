"""What the extension chose, as the engine's own types."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

from tenure.backend.sampler import NonFiniteLogits, NothingToChoose
from tenure.core.plan import Choice

Scores: TypeAlias = tuple[tuple[float, int], ...]
Found: TypeAlias = tuple[str | None, int, float | None, Scores, Scores]
"""(error, token, logprob, top, ids); `error` is None, "non_finite" or "all_banned"."""


def choices(found: Iterable[Found]) -> list[Choice]:
    """One Choice a row; raises what `sampler.choose` raises, for the first row at fault."""
    return [_choice(*row) for row in found]


def _choice(
    error: str | None, token: int, logprob: float | None, top: Scores, ids: Scores
) -> Choice:
    match error:
        case None:
            return Choice(token, logprob, top, ids)
        case "non_finite":
            raise NonFiniteLogits
        case _:
            raise NothingToChoose
