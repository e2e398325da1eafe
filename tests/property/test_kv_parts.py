"""The parts of the KV cache against plain models of them."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from tenure.core.tokens import TokenLog, tokens
from tenure.kv.manager import KvCache
from tenure.kv.pool import Pool, pages
from tenure.kv.spec import FullGroup, KvSpec

SEQUENCES = st.lists(st.lists(st.integers(0, 1), max_size=24), max_size=12)


@settings(deadline=None)
@given(stored=SEQUENCES, asked=SEQUENCES, page_size=st.sampled_from([1, 2, 4]))
def test_the_tree_finds_the_longest_stored_prefix(
    stored: list[list[int]], asked: list[list[int]], page_size: int
) -> None:
    kv = KvCache(KvSpec(page_size, (FullGroup(300),)))
    prefixes: set[tuple[int, ...]] = set()
    for ids in stored:
        lease = kv.acquire("a", tokens(ids))
        lease.extend(len(ids) - lease.committed)
        lease.commit(len(ids) - lease.committed)
        lease.publish(TokenLog.of(ids), len(ids))
        lease.release()
        ends = range(page_size, len(ids) + 1, page_size)
        prefixes.update(tuple(ids[:end]) for end in ends)
    assert kv.occupancy()[0].tree == len(prefixes)
    for ids in [*stored, *asked]:
        ends = range(0, len(ids) + 1, page_size)
        longest = max(end for end in ends if not end or tuple(ids[:end]) in prefixes)
        assert kv.match("a", tokens(ids)) == longest
    assert kv.audit().ok


@settings(deadline=None)
@given(data=st.data())
def test_no_copy_is_dropped_or_overtaken_that_somebody_would_notice(data: st.DataObject) -> None:
    """Random takes, gives, copies and plans: pages in use hold what eager copying would give."""
    pool = Pool(6)
    in_use: list[int] = []
    eager: dict[int, int] = {}
    memory: dict[int, int] = {}
    n_written = 0
    for _ in range(data.draw(st.integers(1, 40))):
        match data.draw(st.sampled_from(["take", "give", "copy", "plan", "done"])):
            case "take" if pool.n_free:
                (page,) = pool.take(1)
                source = data.draw(st.sampled_from([0, *in_use]))
                in_use.append(page)
                if source:
                    pool.copy(source, page)
                    eager[page] = eager[source]
                else:
                    n_written += 1
                    eager[page] = memory[page] = n_written
            case "give" if in_use:
                page = in_use.pop(data.draw(st.integers(0, len(in_use) - 1)))
                pool.give(pages([page]))
            case "copy" if len(in_use) > 1:
                source, page = data.draw(st.permutations(in_use))[:2]
                pool.copy(source, page)
                eager[page] = eager[source]
            case "plan":
                for source, page in pool.drain():
                    memory[page] = memory[source]
            case _:
                pool.step_done()
        assert len(in_use) + pool.n_free + pool.n_quarantined == 6
        after = dict(memory)
        for source, page in pool.pending:
            after[page] = after[source]
        assert all(after[page] == eager[page] for page in in_use)
