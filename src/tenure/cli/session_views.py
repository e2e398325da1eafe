"""Sessions and turns as tables and trees."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table
from rich.text import Text
from rich.tree import Tree

from tenure.client import SessionState, TurnSummary


def summary_table(found: Sequence[SessionState], now: float) -> Table:
    """A line for each session; where room is short, tips are cut, and ids only at last."""
    table = Table(box=None)
    table.add_column("session", no_wrap=True, overflow="fold")
    table.add_column("state", no_wrap=True)
    table.add_column("tip", overflow="ellipsis")
    for heading in ("turns", "tokens", "KV held", "expires in"):
        table.add_column(heading, justify="right", no_wrap=True)
    for one in found:
        table.add_row(
            Text(one.id),
            one.state,
            Text(one.tip or "", no_wrap=True, overflow="ellipsis"),
            f"{one.turns:,}",
            f"{one.tokens:,}",
            f"{one.held_tokens:,}",
            _left(one.deadline, now),
        )
    return table


def state_table(one: SessionState, now: float) -> Table:
    """All about one session, a line for each fact."""
    pool = one.kv.pool
    origin = one.origin
    facts = {
        "session": one.id,
        "state": one.state,
        "tip": one.tip or "",
        "tokens": f"{one.tokens:,}",
        "turns": f"{one.turns:,} ({one.in_flight} running)",
        "digest": one.digest or "",
        "expires in": _left(one.deadline, now),
        "most tokens": "" if one.max_tokens is None else f"{one.max_tokens:,}",
        "priority": str(one.priority),
        "kind": "streaming" if one.streaming else "tree",
        "forked from": "" if origin is None else f"{origin.session} at {origin.n_tokens:,} tokens",
        "KV tokens": f"{pool.tokens:,}",
        "KV bytes": f"{pool.bytes:,}",
        "KV pages": "; ".join(
            f"{group.kind} {group.private_pages:,} own, {group.shared_pages:,} shared"
            for group in pool.groups
        ),
        "hits, misses": f"{one.hits:,}, {one.misses:,}",
        "last miss": one.last_miss or "",
    }
    table = Table(box=None, show_header=False)
    for name, value in facts.items():
        if value:
            table.add_row(name, Text(value))
    return table


def state_tree(session: str, tip: str | None, turns: Sequence[TurnSummary]) -> Tree:
    """The turns below their parents; the tip is marked."""
    root = Tree(Text(session, style="bold"))
    nodes: dict[str, Tree] = {}
    for turn in turns:
        above = root if turn.parent is None else nodes.get(turn.parent, root)
        label = Text(turn.turn, style="bold green" if turn.turn == tip else "")
        kind = "" if turn.kind == "run" else f" {turn.kind}"
        running = " running" if turn.state == "running" else ""
        label.append(
            f"{kind}{running}  {turn.new_tokens:,} in, {turn.output_tokens:,} out, "
            f"{turn.tokens:,} in all{'  (tip)' if turn.turn == tip else ''}",
            style="dim",
        )
        nodes[turn.turn] = above.add(label)
    return root


def _left(deadline: float | None, now: float) -> str:
    return "" if deadline is None else f"{max(0.0, deadline - now):,.0f} s"
