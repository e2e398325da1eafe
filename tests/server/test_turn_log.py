"""One line of the log for each turn."""

from __future__ import annotations

import asyncio

from structlog.testing import capture_logs


async def test_a_turn_is_logged_with_what_it_took_and_none_of_its_text(served):
    await served.post("/open_session", {"session_id": "s"})
    with capture_logs() as lines:
        await served.generate(text="secret!!", rid="r", session_params={"id": "s"})
        await served.generate(text="x", rid="q", session_params={"id": "s", "rid": "r"})
    assert "secret" not in str(lines)
    first, second = lines
    assert {name: first[name] for name in ("event", "session", "turn", "finish")} == {
        "event": "turn",
        "session": "s",
        "turn": "r",
        "finish": "length",
    }
    assert "tenant" not in first
    counts = ("prompt", "new", "cached", "recomputed", "output")
    assert [first[name] for name in counts] == [8, 8, 0, 0, 4]
    assert [second[name] for name in counts] == [13, 1, 11, 1, 4]
    assert all(first[name] >= 0 for name in ("queued_s", "first_token_s", "total_s"))


async def test_a_refusal_is_logged_with_its_reason(served):
    with capture_logs() as lines:
        await served.generate(text="x", rid="r", session_params={"id": "gone"})
    (line,) = lines
    assert (line["event"], line["code"]) == ("turn_refused", "session_not_found")
    assert (line["session"], line["turn"]) == ("gone", "r")


async def test_a_turn_that_is_aborted_is_logged_with_the_reason(served):
    served.runner.shut()
    with capture_logs() as lines:
        many = {"max_new_tokens": 100, "ignore_eos": True}
        task = asyncio.create_task(served.generate(text="x", rid="r", sampling_params=many))
        await served.held()
        await served.stepped(served.post("/abort_request", {"rid": "r"}))
        await served.stepped(task)
    (line,) = [line for line in lines if line["event"] == "turn"]
    assert line["finish"] == "abort: The turn was aborted by its caller."
