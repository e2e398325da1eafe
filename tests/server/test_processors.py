"""Logit processors over HTTP: an installed one is named, and code in a request never runs."""

from __future__ import annotations

import json

import pytest

from tenure.testing.harness import FakeSetup
from tenure.testing.tiny_processors import ENTRIES

PICKLED = json.dumps({"callable": "80049512000000000000008c05706f736978948c0673797374656d94"})
BAD = [
    (PICKLED, "custom_logit_processor is not supported: code that comes with a request"),
    ("{", "custom_logit_processor must be the name of a processor, or a JSON object"),
    ('{"params": {}}', 'custom_logit_processor must be JSON with "name"'),
    ('{"name": "residue", "params": 3}', 'custom_logit_processor must be JSON with "name"'),
    ('{"name": "residue", "code": "x"}', 'custom_logit_processor must be JSON with "name"'),
    ("nobody", "the name of an installed processor (gone, residue, spoil)"),
    ("residue", "params that residue takes (step must be an integer"),
]
IDS = [1, 2]


@pytest.fixture
def served(serve):
    return serve(FakeSetup(processors=ENTRIES))


def follows(ids: list[int], step: int) -> bool:
    return [token % step for token in ids] == [n % step for n in range(len(ids))]


async def test_a_name_with_params_in_either_place(served) -> None:
    text = json.dumps({"name": "residue", "params": {"step": 5}})
    answer = await served.generate(input_ids=IDS, custom_logit_processor=text)
    assert follows(answer.json()["output_ids"], 5)
    more = {"custom_params": {"step": 3}}
    answer = await served.generate(
        input_ids=IDS, custom_logit_processor="residue", sampling_params=more
    )
    assert follows(answer.json()["output_ids"], 3)


async def test_one_for_each_prompt_of_a_batch(served) -> None:
    texts = [json.dumps({"name": "residue", "params": {"step": 5}}), None]
    answer = await served.generate(input_ids=[IDS, IDS], custom_logit_processor=texts)
    first, second = (one["output_ids"] for one in answer.json())
    assert follows(first, 5)
    assert second == FakeSetup().model.greedy(IDS, 4)


@pytest.mark.parametrize(("text", "message"), BAD)
async def test_what_is_refused(served, text: str, message: str) -> None:
    answer = await served.generate(input_ids=IDS, custom_logit_processor=text)
    assert answer.status_code == 400
    assert message in answer.json()["error"]["message"]


async def test_params_without_a_processor_are_refused(served) -> None:
    params = {"custom_params": {"a": 1}}
    answer = await served.generate(input_ids=IDS, sampling_params=params)
    assert "custom_params must be absent without custom_logit_processor" in answer.text


async def test_completions_take_them_too(served) -> None:
    body = {
        "prompt": IDS,
        "max_tokens": 6,
        "custom_logit_processor": "residue",
        "custom_params": {"step": 5},
        "return_token_ids": True,
    }
    answer = (await served.post("/v1/completions", body)).json()
    assert follows(answer["choices"][0]["token_ids"], 5)
    refused = await served.post("/v1/completions", {**body, "custom_logit_processor": PICKLED})
    error = refused.json()["error"]
    assert (refused.status_code, error["param"]) == (400, "custom_logit_processor")
