"""An engine in a thread, over a journal and pages on disk: stopped, started, flushed."""

from __future__ import annotations

from contextlib import aclosing
from dataclasses import replace
from pathlib import Path

import pytest

from tenure.core.clock import MonotonicClock
from tenure.core.config import JournalSettings
from tenure.core.events import TurnFinished, TurnTokens, Usage
from tenure.core.tokens import tokens
from tenure.core.turns import OpenSession, SessionRef, TurnRequest
from tenure.engine.client import EngineClient
from tenure.engine.wire import launch
from tenure.kv.spec import FullGroup, Group, KvSpec, RecurrentGroup, SlidingGroup
from tenure.store.journal import open_journal
from tenure.store.pages import open_tier
from tenure.store.segments import RECORD_HEADER, SEGMENT_HEADER
from tenure.testing.fake_runner import FakeRunner
from tenure.testing.harness import GREEDY, FakeSetup

FULL = (FullGroup(512),)
ALL = (FullGroup(512), SlidingGroup(512, 6), RecurrentGroup(32, 8))
PROMPT = [i * i % 200 for i in range(301)]


def start(folder: Path, groups: tuple[Group, ...], page_format: str = "f") -> EngineClient:
    settings = JournalSettings(folder, kv_disk_bytes=1 << 24)
    setup = FakeSetup(kv=KvSpec(4, groups))
    wiring = setup.wiring(FakeRunner(setup.kv_spec(), setup.model), MonotonicClock())
    tier = open_tier(settings, wiring.model.fingerprint, page_format)
    journal = open_journal(settings, wiring.model)
    held = replace(wiring.kv_bytes, tier=tier, page_format=page_format)
    return launch(replace(wiring, journal=journal, kv_bytes=held))


async def run(client: EngineClient, name: str, ids: list[int], parent: str | None) -> Usage:
    """A turn of session s whose answer is that of a fresh run."""
    request = TurnRequest(name, tokens(ids), GREEDY, SessionRef("s", parent), echo_prompt=True)
    output: list[int] = []
    async with aclosing(client.generate(request)) as events:
        async for event in events:
            match event:
                case TurnTokens(choices=choices):
                    output += [choice.token for choice in choices]
                case TurnFinished(prompt=prompt, usage=usage):
                    assert prompt is not None
                    assert output == FakeSetup().model.greedy(prompt, len(output))
                    return usage
    raise AssertionError("the turn did not end")


@pytest.mark.parametrize("groups", [FULL, ALL], ids=len)
async def test_a_session_finds_its_kv_on_disk(tmp_path: Path, groups: tuple[Group, ...]) -> None:
    client = start(tmp_path, groups)
    await client.open_session(OpenSession("s"))
    await run(client, "a", PROMPT, None)
    await client.close()
    client = start(tmp_path, groups)
    first = await run(client, "b", [1, 2], "a")
    assert first.n_restored == first.n_cached >= 296
    await client.flush()
    second = await run(client, "c", [3], "b")
    assert second.n_restored == second.n_cached >= 304
    info = await client.info()
    assert info.audit.ok
    assert info.restore is not None
    assert info.restore.tier.n_damaged == 0
    assert info.restore.read_bytes_per_s is not None
    await client.close()


async def test_damaged_pages_are_computed(tmp_path: Path) -> None:
    client = start(tmp_path, FULL)
    await client.open_session(OpenSession("s"))
    await run(client, "a", PROMPT, None)
    await client.close()
    (file,) = tmp_path.glob("*/pages/*.pages")
    data = bytearray(file.read_bytes())
    record = RECORD_HEADER.size + 12 * 4
    data[SEGMENT_HEADER.size + 37 * record - 5] ^= 1
    file.write_bytes(data)
    client = start(tmp_path, FULL)
    usage = await run(client, "b", [1, 2], "a")
    assert usage.n_restored == 36 * 4
    assert usage.n_restored + usage.n_recomputed == 309
    info = await client.info()
    assert info.restore is not None
    assert info.restore.tier.n_damaged == 1
    # What was computed again is on disk again.
    await client.close()
    client = start(tmp_path, FULL)
    assert (await run(client, "c", [1], "b")).n_restored >= 312
    await client.close()


async def test_pages_of_another_arithmetic_stay_out(tmp_path: Path) -> None:
    client = start(tmp_path, FULL)
    await client.open_session(OpenSession("s"))
    await run(client, "a", PROMPT, None)
    await client.close()
    client = start(tmp_path, FULL, "g")
    usage = await run(client, "b", [1], "a")
    assert (usage.n_cached, usage.n_recomputed) == (0, 309)
    await client.close()
    client = start(tmp_path, FULL)
    assert (await run(client, "c", [1], "a")).n_restored >= 300
    await client.close()
