"""`tenure.Engine`: the same answers without HTTP."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

import tenure
from tenure.core.errors import ConfigError, InvalidField, SessionNotFound, UserError
from tenure.testing.harness import FakeSetup, fake_client

PYPROJECT = Path(__file__).parents[2] / "pyproject.toml"
MODEL = FakeSetup().model
GREEDY = {"temperature": 0, "max_new_tokens": 4}


@pytest.fixture
def engine():
    with tenure.Engine.over(fake_client()) as engine:
        yield engine


def test_generate_answers_with_the_dict_of_generate(engine):
    answer = engine.generate("abc", GREEDY, rid="mine")
    assert answer["output_ids"] == MODEL.greedy(b"abc", 4)
    assert answer["meta_info"]["id"] == "mine"
    assert answer["meta_info"]["finish_reason"] == {"type": "length", "length": 4}


def test_a_batch_may_be_any_sequence(engine):
    answers = engine.generate(input_ids=((1, 2), (3, 4)), sampling_params=GREEDY)
    assert [a["output_ids"] for a in answers] == [MODEL.greedy([i, i + 1], 4) for i in (1, 3)]


def test_a_stream_is_an_iterator_over_answers_so_far(engine):
    answers = list(engine.generate("abc", GREEDY, stream=True))
    assert [len(a["output_ids"]) for a in answers[:4]] == [1, 2, 3, 4]
    assert answers[-1]["meta_info"]["finish_reason"]["type"] == "length"


def test_leaving_a_stream_aborts_its_turn(engine):
    answers = engine.generate("abc", {"max_new_tokens": 900, "temperature": 0}, stream=True)
    next(answers)
    answers.close()
    while (info := engine.get_server_info()).n_running:
        pass
    assert info.counters.turns_aborted == 1


def test_sessions_hold_history(engine):
    session = engine.open_session(1000)
    first = engine.generate(
        input_ids=[1, 2], sampling_params=GREEDY, session_params={"id": session}
    )
    again = engine.generate(
        input_ids=[3],
        sampling_params=GREEDY,
        session_params={"id": session, "rid": first["meta_info"]["id"]},
    )
    assert again["output_ids"] == MODEL.greedy([1, 2, *first["output_ids"], 3], 4)
    engine.close_session(session)
    engine.close_session("never opened")
    with pytest.raises(SessionNotFound):
        engine.generate("x", session_params={"id": session})


def test_flush_gives_pages_back(engine):
    engine.generate("abcdefgh", GREEDY)
    assert engine.flush_cache() == 2
    assert engine.generate("abcdefgh", GREEDY)["meta_info"]["cached_tokens"] == 0


def test_fields_are_refused_by_name(engine):
    with pytest.raises(UserError, match=r"Unknown field temprature\."):
        engine.generate("x", temprature=1)
    with pytest.raises(InvalidField, match="top_p must be in"):
        engine.generate("x", {"top_p": 2})
    with pytest.raises(InvalidField, match="timeout must be"):
        engine.open_session(timeout=-1.0)


async def test_the_async_verbs_run_on_the_callers_loop(engine):
    answer = await engine.async_generate("abc", GREEDY)
    assert answer["output_ids"] == MODEL.greedy(b"abc", 4)
    stream = await engine.async_generate("abc", GREEDY, stream=True)
    answers = [answer async for answer in stream]
    assert answers[-1]["output_ids"] == answer["output_ids"]


def test_shutdown_may_be_repeated():
    engine = tenure.Engine.over(fake_client())
    engine.shutdown()
    engine.shutdown()


def test_an_unknown_setting_is_refused_before_anything_is_loaded():
    with pytest.raises(
        ConfigError, match=r"unknown setting model; known are .*model_path"
    ) as refused:
        tenure.Engine(model="x")
    assert "lora_paths" in refused.value.message


def test_the_version_is_that_of_the_package():
    project = tomllib.loads(PYPROJECT.read_text())["project"]
    assert project["version"] == tenure.__version__
