"""Bodies to turns: ids, namespaces, seeds."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenure.core.errors import InvalidField
from tenure.core.params import SEED_MAX
from tenure.server.limits import Limits
from tenure.server.sglang.sampling import Bounds
from tenure.server.sglang.schema import GenerateBody
from tenure.server.sglang.translate import generation, namespace
from tenure.testing.byte_tokenizer import byte_text

BOUNDS = Bounds(byte_text(add_bos=True), 264, 1024, Limits())
keys = st.none() | st.text(max_size=4)


def turns(**fields):
    made = generation(GenerateBody.model_validate(fields), BOUNDS)
    return [ask.turn for ask in made.asks]


@given(keys, keys, keys, keys)
def test_no_two_pairs_of_keys_share_a_namespace(salt, key, other_salt, other_key):
    def pair(a, b):
        return (a or None, b or None)

    same = pair(salt, key) == pair(other_salt, other_key)
    assert (namespace(salt, key) == namespace(other_salt, other_key)) == same


def test_text_gets_the_special_tokens_of_the_model_and_ids_do_not():
    assert list(turns(text="a")[0].tokens) == [256, 97]
    assert list(turns(input_ids=[97])[0].tokens) == [97]


def test_a_batch_of_n_numbers_the_callers_id():
    made = turns(text=["a", "b"], rid="r", sampling_params={"n": 2})
    assert [(turn.id, bytes(list(turn.tokens[1:]))) for turn in made] == [
        ("r_0", b"a"),
        ("r_1", b"a"),
        ("r_2", b"b"),
        ("r_3", b"b"),
    ]


def test_a_single_turn_keeps_the_callers_id():
    assert [turn.id for turn in turns(text="a", rid="r")] == ["r"]
    assert [turn.id for turn in turns(text=["a"], rid=["r"])] == ["r"]


def test_answers_to_one_prompt_draw_with_seeds_of_their_own():
    made = turns(text="a", sampling_params={"n": 3, "sampling_seed": SEED_MAX})
    assert [turn.params.seed for turn in made] == [SEED_MAX, 0, 1]
    assert [turn.params.seed for turn in turns(text="a", sampling_params={"n": 2})] == [None, None]


def test_token_ids_logprob_is_shared_or_given_for_each_prompt():
    shared = turns(text=["a", "b"], return_logprob=True, token_ids_logprob=[1, 2])
    assert [turn.logprobs.ids for turn in shared] == [(1, 2), (1, 2)]
    each = turns(text=["a", "b"], return_logprob=[True, True], token_ids_logprob=[[1], [2]])
    assert [turn.logprobs.ids for turn in each] == [(1,), (2,)]


def test_a_session_is_shared_by_the_whole_batch():
    params = {"id": "s", "rid": "p", "offset": -2, "replace": True, "drop_previous_output": True}
    made = turns(input_ids=[[1], [2]], session_params=params)
    ref = made[0].session
    assert made[1].session == ref
    assert (ref.id, ref.parent, ref.offset, ref.replace, ref.drop_previous_output) == (
        "s",
        "p",
        -2,
        True,
        True,
    )


def test_an_empty_session_params_is_no_session():
    assert turns(text="a", session_params={})[0].session is None
    assert turns(text="a", session_params={"id": None})[0].session is None


def test_a_session_may_continue_without_new_tokens():
    (turn,) = turns(input_ids=[], session_params={"id": "s"})
    assert len(turn.tokens) == 0


def test_nulls_are_defaults():
    (turn,) = turns(text="a", sampling_params={"temperature": None, "stop": None}, priority=None)
    assert (turn.params.temperature, turn.params.stop, turn.priority) == (1.0, (), 0)


def test_the_prompt_is_echoed_where_its_first_token_is_shown():
    assert not turns(text="a", return_logprob=True)[0].echo_prompt
    assert turns(text="a", return_logprob=True, logprob_start_len=0)[0].echo_prompt


@pytest.mark.parametrize("key", ["-1", "1.5", " 1", "१", "9" * 20, ""])
def test_logit_bias_keys_are_plain_ids(key):
    with pytest.raises(InvalidField, match="logit_bias"):
        turns(text="a", sampling_params={"logit_bias": {key: 1}})
