"""The audit finds each kind of wrong book; and where the pages are said to be."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tenure.core.tokens import tokens
from tenure.kv.audit import GroupOccupancy
from tenure.kv.ledger import Ledger
from tenure.kv.node import Node
from tenure.kv.pool import pages
from tenure.kv.spec import FullGroup, RecurrentGroup, SlidingGroup


@pytest.fixture
def busy(rig):
    """Leases with shared and private pages, a leaf without pins, a tag, two namespaces."""
    r = rig(FullGroup(32), SlidingGroup(32, window=8), RecurrentGroup(8, checkpoint_every=8))
    first, _ = r.turn(range(18))
    r.turn([*range(8), 1, 2, 3])
    r.store(range(50, 58))
    r.store(range(50, 58), ns="b")
    first.tag("s")
    r.step()
    return r


def leaf(ledger: Ledger) -> Node:
    """An unpinned leaf of namespace b."""
    (node,) = ledger.tree.roots["b"].children.values()
    return node


def pinned(ledger: Ledger) -> Node:
    return next(node for node in ledger.tree.nodes() if node.pins and node.parent)


def lose_a_page(ledger: Ledger) -> None:
    ledger.rules[0].pool.take(1)


def free_a_page_twice(ledger: Ledger) -> None:
    pool = ledger.rules[0].pool
    pool.give(pool.free[:1])


def free_a_page_of_the_tree(ledger: Ledger) -> None:
    ledger.rules[0].pool.give(leaf(ledger).pages[0][:1])


def free_the_sentinel(ledger: Ledger) -> None:
    ledger.rules[2].pool.give(pages([0]))


def invent_a_page(ledger: Ledger) -> None:
    ledger.rules[0].pool.give(pages([99]))


def count_a_pin_too_many(ledger: Ledger) -> None:
    pinned(ledger).pins += 1


def forget_a_pin(ledger: Ledger) -> None:
    pinned(ledger).pins -= 1


def pin_a_node_outside(ledger: Ledger) -> None:
    holding = next(iter(ledger.live.values()))
    old = holding.node
    holding.node = Node(old.parent, old.first, old.key, old.pages)


def commit_past_capacity(ledger: Ledger) -> None:
    holding = next(iter(ledger.live.values()))
    holding.committed = (holding.n_pages + 1) * ledger.page_size


def claim_more_room_than_there_is(ledger: Ledger) -> None:
    next(iter(ledger.live.values())).n_pages += 1


def evict_a_window_under_a_lease(ledger: Ledger) -> None:
    row = pinned(ledger).pages[1]
    ledger.rules[1].pool.give(row[-1:])
    row[-1] = 0


def name_a_page_of_somebody_else(ledger: Ledger) -> None:
    next(iter(ledger.live.values())).tables[0]._row[0] = leaf(ledger).pages[0][0]


def keep_the_claim_of_a_dead_lease(ledger: Ledger) -> None:
    leaf(ledger).claims[1, 999] = 0


def forget_to_queue_a_leaf(ledger: Ledger) -> None:
    ledger.tree._leaves.forget(leaf(ledger))


def forget_to_queue_a_window(ledger: Ledger) -> None:
    ledger.rules[1].forget(leaf(ledger))


def forget_to_queue_a_checkpoint(ledger: Ledger) -> None:
    ledger.rules[2].forget(leaf(ledger))


def leave_an_empty_root(ledger: Ledger) -> None:
    ledger.tree.root("empty")


def give_a_root_tokens(ledger: Ledger) -> None:
    ledger.tree.roots["a"].key += b"1234"


def strand_a_leaf(ledger: Ledger) -> None:
    row = leaf(ledger).pages[2]
    ledger.rules[2].pool.give(row[-1:])
    row[-1] = 0


def shift_a_node(ledger: Ledger) -> None:
    leaf(ledger).first += 1


def misfile_a_child(ledger: Ledger) -> None:
    children = ledger.tree.roots["b"].children
    children[b"wrong"] = children.pop(next(iter(children)))


def cut_a_key(ledger: Ledger) -> None:
    del leaf(ledger).key[-4:]


def empty_a_node(ledger: Ledger) -> None:
    leaf(ledger).key.clear()


def shorten_a_row(ledger: Ledger) -> None:
    row = leaf(ledger).pages[1]
    ledger.rules[1].pool.give(row[-1:])
    del row[-1:]


def tag_without_the_index(ledger: Ledger) -> None:
    leaf(ledger).tags.add("t")


def index_without_the_tag(ledger: Ledger) -> None:
    ledger.tree.holders["t"] = {leaf(ledger)}


@pytest.mark.parametrize(
    ("damage", "found"),
    [
        (lose_a_page, "is in 0 places"),
        (free_a_page_twice, "is in 2 places"),
        (free_a_page_of_the_tree, "is in 2 places"),
        (free_the_sentinel, "0 is not a page"),
        (invent_a_page, "99 is not a page"),
        (count_a_pin_too_many, "its pins"),
        (forget_a_pin, "its pins"),
        (pin_a_node_outside, "not in the tree"),
        (commit_past_capacity, "lengths"),
        (claim_more_room_than_there_is, "does not cover"),
        (evict_a_window_under_a_lease, "lacks pages"),
        (name_a_page_of_somebody_else, "names pages of others"),
        (keep_the_claim_of_a_dead_lease, "which is gone"),
        (forget_to_queue_a_leaf, "not queued for eviction"),
        (forget_to_queue_a_window, "group 1 to give up"),
        (forget_to_queue_a_checkpoint, "group 2 to give up"),
        (leave_an_empty_root, "an empty root"),
        (give_a_root_tokens, "a root that covers tokens"),
        (strand_a_leaf, "no match can use"),
        (shift_a_node, "starts at page"),
        (misfile_a_child, "not filed"),
        (cut_a_key, "bytes of tokens"),
        (empty_a_node, "covers nothing"),
        (shorten_a_row, "rows of different lengths"),
        (tag_without_the_index, "not in the index"),
        (index_without_the_tag, "but not tagged"),
    ],
)
def test_the_audit_finds(busy, damage: Callable[[Ledger], None], found: str) -> None:
    assert busy.kv.audit().ok
    damage(busy.kv._ledger)
    audit = busy.kv.audit()
    assert not audit.ok
    assert any(found in problem for problem in audit.problems), audit.problems


def test_the_places_add_up(busy) -> None:
    for group in busy.kv.occupancy():
        places = group.free + group.quarantined + group.private + group.tree
        assert places == group.total
        assert 0 <= group.evictable <= group.tree


def test_occupancy_by_place(rig) -> None:
    r = rig(FullGroup(10))
    r.turn(range(10))
    r.store([1] * 8)
    lease, log = r.start([2] * 6)
    lease.fork(log, 6)
    lease.release()
    assert r.kv.occupancy() == (
        GroupOccupancy(total=10, free=2, quarantined=1, private=2, tree=5, evictable=2),
    )


def test_an_empty_cache_is_in_order(rig) -> None:
    r = rig(FullGroup(3), RecurrentGroup(0))
    assert r.kv.audit().ok
    assert r.kv.match("a", tokens([1])) == 0
