"""Sessions over HTTP: opening, closing, turns, and the texts of their refusals."""

from __future__ import annotations

import asyncio

import pytest

from tenure.testing.harness import FakeSetup

MODEL = FakeSetup().model


async def opened(served, **body):
    answer = await served.post("/open_session", body)
    assert answer.status_code == 200
    return answer.json()


async def turn(served, session, ids, rid=None, **params):
    return await served.generate(
        input_ids=ids, session_params={"id": session, "rid": rid, **params}
    )


def error_of(answer):
    assert answer.status_code == 400
    return answer.json()["error"]["message"]


async def test_open_answers_with_the_bare_id(served):
    made = await served.post("/open_session", {"capacity_of_str_len": 1000})
    assert made.headers["content-type"] == "application/json"
    assert len(made.json()) == 32
    assert await opened(served, capacity_of_str_len=1, session_id="mine") == "mine"


async def test_open_needs_no_body_and_takes_get(served):
    assert (await served.http.post("/open_session")).status_code == 200
    got = await served.http.request("GET", "/open_session", json={"session_id": "by-get"})
    assert got.json() == "by-get"


async def test_open_of_an_open_id_is_refused(served):
    await opened(served, session_id="s")
    text = "Failed to open the session. Check if a session with the same id is still open."
    assert error_of(await served.post("/open_session", {"session_id": "s"})) == text


async def test_open_with_a_wrong_type_has_the_general_error_shape(served):
    answer = await served.post("/open_session", {"capacity_of_str_len": "many"})
    assert answer.status_code == 400
    body = answer.json()
    assert body["message"] == "capacity_of_str_len must be a valid integer, got 'many'."
    assert (body["object"], body["type"], body["param"], body["code"]) == (
        "error",
        "Bad Request",
        None,
        400,
    )


@pytest.mark.parametrize("method", ["POST", "GET"])
async def test_close_answers_200_with_an_empty_body_for_any_id(served, method):
    await opened(served, session_id="s")
    for session in ("s", "never-opened"):
        answer = await served.http.request(method, "/close_session", json={"session_id": session})
        assert (answer.status_code, answer.content) == (200, b"")
    assert await opened(served, session_id="s") == "s"


async def test_turns_inherit_history_and_its_cache(served):
    session = await opened(served)
    first = (await turn(served, session, [1, 2, 3, 4])).json()
    again = (await turn(served, session, [5, 6], first["meta_info"]["id"])).json()
    context = [1, 2, 3, 4, *first["output_ids"], 5, 6]
    assert again["output_ids"] == MODEL.greedy(context, 4)
    meta = again["meta_info"]
    assert meta["prompt_tokens"] == len(context)
    assert meta["cached_tokens"] in (7, 8)


async def test_a_stream_in_a_session_counts_the_history_from_its_first_event(served):
    session = await opened(served, streaming=True)
    await turn(served, session, [1, 2, 3, 4])
    answers = await served.stream(input_ids=[5], session_params={"id": session})
    assert [a["meta_info"]["prompt_tokens"] for a in answers[:-1]] == [9] * (len(answers) - 1)


async def test_a_session_turn_without_new_tokens(served):
    session = await opened(served, streaming=True)
    first = (await turn(served, session, [1, 2])).json()
    more = (await turn(served, session, [])).json()
    assert more["output_ids"] == MODEL.greedy([1, 2, *first["output_ids"]], 4)


async def test_branches_offset_drop_and_replace(served):
    session = await opened(served)
    root = (await turn(served, session, [1, 2, 3, 4], None)).json()
    rid = root["meta_info"]["id"]
    whole = [1, 2, 3, 4, *root["output_ids"]]
    for params, context in (
        ({}, whole),
        ({"offset": 2}, [1, 2]),
        ({"offset": -1}, whole[:-1]),
        ({"drop_previous_output": True}, [1, 2, 3, 4]),
        ({"replace": True}, whole),
    ):
        answer = (await turn(served, session, [9], rid, **params)).json()
        assert answer["output_ids"] == MODEL.greedy([*context, 9], 4), params


async def test_refusals_have_the_known_texts(served):
    session = await opened(served)
    streaming = await opened(served, streaming=True)
    unknown = await turn(served, "gone", [1])
    assert error_of(unknown) == "Invalid request: session id gone does not exist"
    assert unknown.json()["error"]["code"] == "session_not_found"
    assert error_of(await turn(served, session, [1], "no-turn")) == (
        "Invalid request session id: the session has no turn 'no-turn'"
    )
    for field, value in (("replace", True), ("drop_previous_output", True), ("offset", 3)):
        text = f"Streaming sessions do not support {field}."
        assert error_of(await turn(served, streaming, [1], **{field: value})) == text
    both = await served.generate(text="x", session_id="s", session_params={"id": session})
    assert error_of(both) == "session_id and session_params cannot both be set."
    long = await turn(served, session, [1] * 2000)
    assert error_of(long).startswith(
        "Input length (2000 tokens) exceeds the maximum allowed length (1023 tokens)"
    )


async def test_a_refused_streamed_turn_ends_with_an_abort(served):
    answer, done = await served.stream(text="x", session_params={"id": "gone"})
    assert done == "[DONE]"
    assert answer["meta_info"]["finish_reason"] == {
        "type": "abort",
        "message": "Invalid request: session id gone does not exist",
        "status_code": 400,
        "err_type": "BadRequestError",
        "code": "session_not_found",
    }
    assert answer["output_ids"] == []


async def test_an_expired_session_says_so(served):
    session = await opened(served, timeout=30)
    await turn(served, session, [1])
    served.clock.advance(31)
    answer = await turn(served, session, [2])
    assert answer.json()["error"]["code"] == "session_expired"
    assert "expired after 30 s" in error_of(answer)


async def test_a_second_turn_of_a_streaming_session_is_refused_and_the_first_goes_on(served):
    session = await opened(served, streaming=True)
    served.runner.shut()
    running = asyncio.create_task(long_turn(served, session))
    await served.held()
    late = asyncio.create_task(turn(served, session, [3]))
    refused = await served.step_until_done(late)
    assert error_of(refused) == "Streaming session already has an active request."
    served.runner.open()
    assert (await running).json()["output_ids"] == MODEL.greedy([1, 2], 100)


async def test_close_does_not_wait_for_a_running_turn(served):
    session = await opened(served, streaming=True)
    served.runner.shut()
    running = asyncio.create_task(long_turn(served, session))
    await served.held()
    assert (await served.post("/close_session", {"session_id": session})).status_code == 200
    late = asyncio.create_task(turn(served, session, [3]))
    refused = await served.step_until_done(late)
    assert error_of(refused) == f"Invalid request: close was requested for session {session}"
    served.runner.open()
    assert (await running).json()["output_ids"] == MODEL.greedy([1, 2], 100)
    gone = await turn(served, session, [3])
    assert error_of(gone) == f"Invalid request: session id {session} does not exist"


async def test_a_tag_adds_no_history_and_needs_no_open(served):
    await served.generate(text="abcdefgh", session_id="tag")
    answer = (await served.generate(text="abcdefgh", session_id="tag")).json()
    assert answer["meta_info"]["prompt_tokens"] == 8
    assert (await served.post("/close_session", {"session_id": "tag"})).status_code == 200
    assert (await served.settled()).groups[0].n_tree == 0


async def test_abort_by_the_callers_id_ends_every_answer_of_the_request(served):
    served.runner.shut()
    sampling = {"max_new_tokens": 100}
    running = asyncio.create_task(
        served.generate(text=["a", "b"], rid="r", sampling_params=sampling)
    )
    await served.held()
    aborted = asyncio.create_task(served.post("/abort_request", {"rid": "r"}))
    assert (await served.step_until_done(aborted)).status_code == 200
    answer = await running
    assert answer.status_code == 200
    for one in answer.json():
        reason = one["meta_info"]["finish_reason"]
        assert reason["type"] == "abort"
        assert "status_code" not in reason


async def test_abort_of_an_unknown_id_is_ignored_and_of_none_refused(served):
    assert (await served.post("/abort_request", {"rid": "nobody"})).status_code == 200
    assert error_of(await served.post("/abort_request", {})).startswith("rid must be")


async def test_abort_all_ends_every_turn(served):
    served.runner.shut()
    running = asyncio.create_task(
        served.generate(text="a", sampling_params={"max_new_tokens": 100})
    )
    await served.held()
    aborted = asyncio.create_task(served.post("/abort_request", {"abort_all": True}))
    await served.step_until_done(aborted)
    assert (await running).json()["meta_info"]["finish_reason"]["type"] == "abort"


async def long_turn(served, session):
    return await served.generate(
        input_ids=[1, 2], session_params={"id": session}, sampling_params={"max_new_tokens": 100}
    )
