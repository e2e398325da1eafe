"""LoRA adapters over HTTP: loading, naming them in each interface, unloading."""

from __future__ import annotations

import asyncio

import pytest

from tenure.testing.fake_runner import empty_state, fake_adapter
from tenure.testing.harness import FakeSetup
from tenure.testing.scripted_chat import ScriptedChat

IDS = list(range(20))


def said(path: str | None, ids: list[int] = IDS, n: int = 4) -> list[int]:
    model = FakeSetup().model
    if path is None:
        return model.greedy(ids, n)
    return model.greedy(ids, n, empty_state(fake_adapter(path).fingerprint))


async def load(served, name: str, path: str, status: int = 200) -> dict:
    answer = await served.post("/load_lora_adapter", {"lora_name": name, "lora_path": path})
    assert answer.status_code == status, answer.text
    return answer.json()


async def test_load_and_unload_answer_with_what_is_loaded(served) -> None:
    assert await load(served, "x", "path-x") == {
        "success": True,
        "error_message": None,
        "loaded_adapters": {"x": "path-x"},
    }
    refused = await load(served, "x", "path-y", 400)
    assert refused["success"] is False
    assert "an adapter of that name is loaded" in refused["error_message"]
    assert refused["loaded_adapters"] == {"x": "path-x"}
    refused = await load(served, "y", "nowhere", 400)
    assert "nowhere: no such adapter" in refused["error_message"]
    answer = await served.post("/unload_lora_adapter", {"lora_name": "x"})
    assert answer.json() == {"success": True, "error_message": None, "loaded_adapters": {}}
    answer = await served.post("/unload_lora_adapter", {"lora_name": "x"})
    assert answer.status_code == 400
    assert answer.json()["error_message"] == "No adapter called 'x' is loaded."


async def test_fields_that_say_more_are_honoured_or_refused(served) -> None:
    body = {"lora_name": "x", "lora_path": "path-x", "pinned": True}
    assert (await served.post("/load_lora_adapter", body)).json()["success"]
    refused = await served.post("/load_lora_adapter", {**body, "added_tokens_config": {"a": 1}})
    assert refused.status_code == 400
    assert "added_tokens_config is not supported" in refused.text


async def test_generate_names_adapters_one_by_one_or_for_all(served) -> None:
    await load(served, "x", "path-x")
    one = await served.generate(input_ids=IDS, lora_path="x")
    assert one.json()["output_ids"] == said("path-x")
    many = await served.generate(input_ids=[IDS, IDS, IDS], lora_path=["x", None, ""])
    assert [a["output_ids"] for a in many.json()] == [said("path-x"), said(None), said(None)]
    both = await served.generate(input_ids=[IDS, IDS[:9]], lora_path="x")
    assert [a["output_ids"] for a in both.json()] == [said("path-x"), said("path-x", IDS[:9])]


async def test_generate_refuses_an_adapter_that_is_not_there(served) -> None:
    answer = await served.generate(input_ids=IDS, lora_path="x")
    assert answer.status_code == 400
    assert answer.json() == {
        "error": {"message": "No adapter called 'x' is loaded.", "code": "adapter_not_found"}
    }
    answer = await served.generate(input_ids=[IDS, IDS], lora_path=["x"])
    assert "lora_path must be one value, or one for each of 2 prompts" in answer.text


async def test_a_session_takes_an_adapter_for_a_turn(served) -> None:
    await load(served, "x", "path-x")
    session = (await served.post("/open_session", {})).json()
    first = (await served.generate(input_ids=IDS, session_params={"id": session}, rid="a")).json()
    at = {"id": session, "rid": "a"}
    second = (await served.generate(input_ids=[7], session_params=at, lora_path="x")).json()
    assert second["output_ids"] == said("path-x", [*IDS, *first["output_ids"], 7])
    assert second["meta_info"]["cached_tokens"] == 0
    third = (await served.generate(input_ids=[7], session_params=at)).json()
    assert third["output_ids"] == said(None, [*IDS, *first["output_ids"], 7])
    assert third["meta_info"]["cached_tokens"] == 23


async def test_models_lists_adapters_below_the_model(served) -> None:
    await load(served, "x", "path-x")
    models = (await served.http.get("/v1/models")).json()["data"]
    assert [(m["id"], m["root"], m["parent"]) for m in models] == [
        ("fake", "fake", None),
        ("x", "path-x", "fake"),
    ]
    for name in ("x", "fake:x"):
        assert (await served.http.get(f"/v1/models/{name}")).json()["id"] == "x"
    assert (await served.http.get("/v1/models/y")).status_code == 404
    info = (await served.http.get("/server_info")).json()["internal_states"][0]
    assert [adapter["name"] for adapter in info["adapters"]] == ["x"]


@pytest.mark.parametrize("how", [{"model": "x"}, {"model": "fake:x"}, {"lora_path": "x"}])
async def test_completions_name_an_adapter_as_the_model(served, how) -> None:
    await load(served, "x", "path-x")
    body = {"prompt": IDS, "max_tokens": 4, "temperature": 0, "return_token_ids": True, **how}
    answer = (await served.post("/v1/completions", body)).json()
    assert answer["choices"][0]["token_ids"] == said("path-x")
    assert answer["model"] == how.get("model", "fake")


async def test_completions_refuse_two_names(served) -> None:
    await load(served, "x", "path-x")
    body = {"prompt": IDS, "model": "x", "lora_path": "y"}
    answer = await served.post("/v1/completions", body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "lora_path")
    answer = await served.post("/v1/completions", {"prompt": [IDS, IDS], "lora_path": ["x", "y"]})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "lora_path")
    answer = await served.post("/v1/completions", {"prompt": IDS, "lora_path": "y"})
    error = answer.json()["error"]
    assert (answer.status_code, error["param"], error["code"]) == (
        404, "lora_path", "model_not_found",
    )  # fmt: skip


DIALECTS = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 4},
    "/v1/responses": {"input": "hi", "max_output_tokens": 4},
    "/v1/messages": {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 4},
    "/v1/messages/count_tokens": {"messages": [{"role": "user", "content": "hi"}]},
}


@pytest.mark.parametrize("path", DIALECTS)
async def test_every_dialect_takes_an_adapter_for_a_model(serve, path: str) -> None:
    served = serve(ScriptedChat().setup)
    assert (await served.post(path, {**DIALECTS[path], "model": "x"})).status_code == 404
    await load(served, "x", "path-x")
    for name in ("x", "fake:x"):
        answer = await served.post(path, {**DIALECTS[path], "model": name})
        assert answer.status_code == 200, answer.text
        assert answer.json().get("model", name) == name
    assert (await served.post(path, {**DIALECTS[path], "model": "fake:y"})).status_code == 404


async def test_an_unload_is_answered_when_its_turns_have_ended(served) -> None:
    await load(served, "x", "path-x")
    served.runner.shut()
    turn = asyncio.create_task(served.generate(input_ids=IDS, lora_path="x"))
    await served.held()
    unload = asyncio.create_task(served.post("/unload_lora_adapter", {"lora_name": "x"}))
    served.runner.allow(1)
    while await served.stepped(served.engine.adapters()):
        pass
    assert (await served.stepped(unload)).json()["success"]
    assert turn.done() or (await served.stepped(turn)).json()["output_ids"] == said("path-x")
    assert (await turn).json()["output_ids"] == said("path-x")
    served.runner.open()


async def test_hidden_states_come_with_the_last_answer(served) -> None:
    body = (await served.generate(input_ids=IDS, return_hidden_states=True)).json()
    prompt, *output = body["meta_info"]["hidden_states"]
    assert (len(prompt), len(prompt[0])) == (20, 4)
    assert [len(row) for row in output] == [4, 4, 4]
    lines = await served.stream(input_ids=IDS, return_hidden_states=True)
    told = [line["meta_info"].get("hidden_states") for line in lines[:-1]]
    assert told[:-1] == [None] * (len(told) - 1)
    assert told[-1] == [prompt, *output]
    many = await served.generate(input_ids=[IDS, IDS], return_hidden_states=[False, True])
    first, second = (answer["meta_info"] for answer in many.json())
    assert "hidden_states" not in first
    assert second["hidden_states"] == [prompt, *output]
