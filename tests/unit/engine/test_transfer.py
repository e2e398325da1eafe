"""A session that was exported goes on elsewhere, as if it had been there all the time."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path

import pytest

from tenure.core.clock import MonotonicClock
from tenure.core.config import JournalSettings
from tenure.core.errors import BadArchive, SessionExists, SessionNotFound
from tenure.core.events import TurnFinished, TurnTokens, Usage
from tenure.core.info import SessionInfo
from tenure.core.tokens import tokens
from tenure.core.turns import ContextQuery, OpenSession, SessionRef, TurnRequest
from tenure.engine import transfer
from tenure.engine.client import EngineClient
from tenure.engine.transfer import export_session, import_session
from tenure.engine.wire import launch
from tenure.kv.spec import FullGroup, Group, KvSpec, RecurrentGroup, SlidingGroup
from tenure.store.archive import Archive, ArchiveWriter
from tenure.store.journal import SqliteJournal
from tenure.testing.fake_runner import FakeRunner
from tenure.testing.harness import GREEDY, FakeSetup

FULL = (FullGroup(128),)
ALL = (FullGroup(128), SlidingGroup(128, 6), RecurrentGroup(32, 8))
PROMPT = [i * i % 200 for i in range(75)]

Start = Callable[..., EngineClient]


@pytest.fixture
async def start() -> AsyncIterator[Start]:
    clients: list[EngineClient] = []

    def start_(
        groups: tuple[Group, ...] = FULL, journal: Path | None = None, **fields: str
    ) -> EngineClient:
        setup = FakeSetup(kv=KvSpec(4, groups))
        wiring = setup.wiring(FakeRunner(setup.kv_spec(), setup.model), MonotonicClock())
        model = replace(wiring.model, fingerprint=fields.pop("fingerprint", "fake"))
        held = replace(wiring.kv_bytes, **fields)
        wiring = replace(wiring, model=model, kv_bytes=held)
        if journal is not None:
            wiring = replace(wiring, journal=SqliteJournal(journal, model, JournalSettings()))
        clients.append(launch(wiring))
        return clients[-1]

    yield start_
    for client in clients:
        await client.close()


async def run(
    client: EngineClient, turn: str, ids: list[int], session: SessionRef
) -> tuple[list[int], Usage]:
    out: list[int] = []
    usage = None
    async with aclosing(client.generate(TurnRequest(turn, tokens(ids), GREEDY, session))) as events:
        async for event in events:
            match event:
                case TurnTokens(choices=choices):
                    out += [choice.token for choice in choices]
                case TurnFinished():
                    usage = event.usage
    assert usage is not None
    return out, usage


async def talk(client: EngineClient, *, streaming: bool = False) -> None:
    """A tree: a, then b and c on it, d on c cut short; d ends last."""
    await client.open_session(OpenSession("s", streaming, timeout_s=500.0, capacity=7))
    await run(client, "a", PROMPT, SessionRef("s"))
    if streaming:
        await run(client, "b", [1, 2, 3], SessionRef("s"))
        return
    await run(client, "b", [1, 2, 3], SessionRef("s", "a"))
    await run(client, "c", [4], SessionRef("s", "a", drop_previous_output=True))
    await run(client, "d", [5, 6], SessionRef("s", "c", offset=-3))


async def history(client: EngineClient, session: str, turn: str) -> list[int]:
    query = ContextQuery(SessionRef(session, turn), n_tail=1000)
    return (await client.context(query)).tail.tolist()


def shapes(info: SessionInfo) -> list[tuple]:
    return [(one.id, one.parent, one.state, one.n_prompt, one.n_output) for one in info.turns]


@pytest.mark.parametrize("groups", [FULL, ALL], ids=len)
@pytest.mark.parametrize("with_kv", [False, True])
async def test_an_imported_session_goes_on(
    start: Start, tmp_path: Path, groups: tuple[Group, ...], with_kv: bool
) -> None:
    one, two = start(groups), start(groups)
    await talk(one)
    done = await export_session(one, "s", tmp_path / "f", with_kv=with_kv)
    assert done.n_bytes == (tmp_path / "f").stat().st_size
    assert (done.n_turns, done.n_tokens) == (4, 75 + 1 - 3 + 2 + 8 + 8)
    got = await import_session(two, tmp_path / "f")
    assert (got.session, got.tip, got.n_turns, got.n_tokens) == ("s", "d", 4, done.n_tokens)
    assert got.n_kv_tokens == done.n_kv_tokens
    assert (got.kv is None) is with_kv
    before, after = await one.session("s"), await two.session("s")
    assert shapes(after) == shapes(before)
    assert after.tree == before.tree
    assert (after.options, after.tip) == (before.options, "d")
    assert (after.options.timeout_s, after.options.capacity) == (500.0, 7)
    for turn in "abcd":
        assert await history(two, "s", turn) == await history(one, "s", turn)
    want, _ = await run(one, "e", [9], SessionRef("s", "d"))
    output, usage = await run(two, "e", [9], SessionRef("s", "d"))
    assert output == want
    if with_kv:
        assert usage.n_cached == got.n_kv_tokens >= 72
    else:
        assert usage.n_cached == 0
    info = await two.info()
    assert info.audit.ok


async def test_kv_comes_in_parts(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transfer, "PART_BYTES", 100)
    one, two = start(), start()
    await talk(one)
    done = await export_session(one, "s", tmp_path / "f", with_kv=True)
    got = await import_session(two, tmp_path / "f")
    assert got.n_kv_tokens == done.n_kv_tokens == 88
    assert (await run(two, "e", [9], SessionRef("s", "d")))[1].n_cached == 88


async def test_cold_kv_is_made_for_the_export(start: Start, tmp_path: Path) -> None:
    one = start()
    await talk(one)
    await one.flush()
    assert (await export_session(one, "s", tmp_path / "f", with_kv=True)).n_kv_tokens == 88


async def test_streaming_sessions_travel(start: Start, tmp_path: Path) -> None:
    one, two = start(), start()
    await talk(one, streaming=True)
    await export_session(one, "s", tmp_path / "f", with_kv=True)
    await import_session(two, tmp_path / "f", "renamed")
    want, _ = await run(one, "c", [9], SessionRef("s"))
    output, usage = await run(two, "c", [9], SessionRef("renamed"))
    assert output == want
    assert usage.n_cached >= 80


async def test_an_empty_session_travels(start: Start, tmp_path: Path) -> None:
    one, two = start(), start()
    await one.open_session(OpenSession("s"))
    await export_session(one, "s", tmp_path / "f", with_kv=True)
    got = await import_session(two, tmp_path / "f")
    assert (got.tip, got.n_turns, got.n_tokens) == (None, 0, 0)
    assert await two.sessions() == ["s"]


async def test_an_import_survives_a_restart(start: Start, tmp_path: Path) -> None:
    one, two = start(), start(journal=tmp_path / "state")
    await talk(one)
    await export_session(one, "s", tmp_path / "f", with_kv=False)
    await import_session(two, tmp_path / "f")
    before = await two.session("s")
    await two.close()
    three = start(journal=tmp_path / "state")
    after = await three.session("s")
    assert (after.turns, after.tree, after.tip) == (before.turns, before.tree, "d")


async def test_what_does_not_fit_is_refused_and_changes_nothing(
    start: Start, tmp_path: Path
) -> None:
    one = start()
    await talk(one)
    path = tmp_path / "f"
    await export_session(one, "s", path, with_kv=True)
    with pytest.raises(SessionNotFound):
        await export_session(one, "t", tmp_path / "g", with_kv=True)
    with pytest.raises(SessionExists):
        await import_session(one, path)
    two = start(fingerprint="other")
    with pytest.raises(BadArchive, match=r"another model \(fingerprint fake\)"):
        await import_session(two, path)
    data = path.read_bytes()
    path.write_bytes(data[:-9] + bytes([data[-9] ^ 1]) + data[-8:])
    three = start()
    with pytest.raises(BadArchive, match="digest"):
        await import_session(three, path)
    assert await two.sessions() == await three.sessions() == []


@pytest.mark.parametrize(
    ("edit", "reason"),
    [
        (lambda manifest: manifest, r"lacks its array 'kv\.0\.0'"),
        (lambda manifest: manifest.replace('"metadata":"{}"', '"metadata":"[]"'), "metadata"),
    ],
    ids=["without its KV", "other metadata"],
)
async def test_a_file_that_somebody_else_wrote_is_refused(
    start: Start, tmp_path: Path, edit: Callable[[str], str], reason: str
) -> None:
    one, two = start(), start()
    await talk(one)
    await export_session(one, "s", tmp_path / "f", with_kv=True)
    whole = Archive(tmp_path / "f")
    manifest = edit(whole.manifest)
    writer = ArchiveWriter(tmp_path / "g", len(manifest.encode()), 1)
    writer.begin("tokens", "I32")
    writer.add(whole.read("tokens"))
    writer.finish(manifest)
    whole.close()
    with pytest.raises(BadArchive, match=reason):
        await import_session(two, tmp_path / "g")
    assert await two.sessions() == []


async def test_kv_of_another_arithmetic_is_computed_again(start: Start, tmp_path: Path) -> None:
    one, two = start(), start(page_format="another")
    await talk(one)
    await export_session(one, "s", tmp_path / "f", with_kv=True)
    got = await import_session(two, tmp_path / "f")
    assert got.n_kv_tokens == 0
    assert got.kv is not None
    want, _ = await run(one, "e", [9], SessionRef("s", "d"))
    output, usage = await run(two, "e", [9], SessionRef("s", "d"))
    assert (output, usage.n_cached) == (want, 0)
