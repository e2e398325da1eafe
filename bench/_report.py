"""From samples to a table and to JSON: medians, spread, ratios, and whether targets are met."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import TypeAlias

from rich.table import Table

from _rows import Measure, Row

Samples: TypeAlias = Mapping[str, Sequence[float]]
"""The samples of one measure by the name of the target."""

OURS, SAME_FILE, Q8 = "tenure", "llama.cpp, same file", "llama.cpp, Q8_0"
PEERS = (SAME_FILE, Q8)


@dataclass(frozen=True, slots=True)
class Comparison:
    """One measure of one row on every target that ran."""

    row: Row
    measure: Measure
    samples: Samples

    def median(self, name: str) -> float | None:
        values = self.samples.get(name)
        return median(values) if values else None

    @property
    def best_peer(self) -> float | None:
        medians = [value for name in PEERS if (value := self.median(name)) is not None]
        if not medians:
            return None
        return max(medians) if self.measure.larger_is_better else min(medians)

    def ratio(self, peer: float | None) -> float | None:
        """How many times better we are; above 1 is better, whatever the measure."""
        ours = self.median(OURS)
        if ours is None or peer is None:
            return None
        over, under = (ours, peer) if self.measure.larger_is_better else (peer, ours)
        return over / under if under else None

    @property
    def verdicts(self) -> dict[str, bool]:
        """Each target of this measure in words, and whether it is met."""
        ours = self.median(OURS)
        found: dict[str, bool] = {}
        for wanted, peer, what in (
            (self.measure.over_same_file, self.median(SAME_FILE), "same file"),
            (self.measure.over_best, self.best_peer, "best"),
        ):
            ratio = self.ratio(peer)
            if wanted is not None and ratio is not None:
                found[f"{wanted:g} x {what}"] = ratio >= wanted
        if self.measure.at_least is not None and ours is not None:
            found[f"at least {self.measure.at_least:g}"] = ours >= self.measure.at_least
        return found

    def as_json(self) -> dict[str, object]:
        return {
            "row": self.row.name,
            "what": self.row.what,
            "measure": self.measure.label,
            "unit": self.measure.unit,
            "larger_is_better": self.measure.larger_is_better,
            "samples": {name: list(values) for name, values in self.samples.items()},
            "median": {name: self.median(name) for name in self.samples},
            "ratio_same_file": self.ratio(self.median(SAME_FILE)),
            "ratio_best": self.ratio(self.best_peer),
            "targets": self.verdicts,
        }


def table(comparisons: Sequence[Comparison]) -> Table:
    """Medians with (smallest - largest); ratios above 1 mean that Tenure is better."""
    result = Table(title="Medians (smallest - largest); ratio: how many times better Tenure is")
    for heading in ("row", "measure"):
        result.add_column(heading)
    targets = list(dict.fromkeys(name for each in comparisons for name in each.samples))
    for heading in targets:
        result.add_column(heading, justify="right")
    for heading in ("ratio same", "ratio best"):
        result.add_column(heading, justify="right")
    result.add_column("target")
    result.add_column("met")
    last = None
    for each in comparisons:
        if last is not each.row:
            result.add_row(each.row.name, f"[bold]{each.row.what}[/]")
        result.add_row("", *_cells(each, targets))
        last = each.row
    return result


def _cells(each: Comparison, targets: Sequence[str]) -> list[str]:
    verdicts = each.verdicts
    return [
        f"{each.measure.label}, {each.measure.unit}",
        *(_spread(each.samples.get(name, ())) for name in targets),
        _ratio(each.ratio(each.median(SAME_FILE))),
        _ratio(each.ratio(each.best_peer)),
        "\n".join(verdicts),
        "\n".join("[green]yes[/]" if met else "[red]no[/]" for met in verdicts.values()),
    ]


def _spread(values: Sequence[float]) -> str:
    if not values:
        return ""
    return f"{_short(median(values))} ({_short(min(values))} - {_short(max(values))})"


def _ratio(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def _short(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"
