"""Which experts each token was sent to, through the whole engine."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from tenure.backend.base import BackendSettings
from tenure.backend.reference import ReferenceBackend, ReferenceExecutor
from tenure.core.config import EngineConfig
from tenure.core.errors import InvalidField, UnsupportedField
from tenure.core.params import SamplingParams
from tenure.core.turns import SessionRef
from tenure.kv.spec import FullGroup, KvSpec
from tenure.model.spec import ModelSpec, MoeSpec
from tenure.testing.dict_weights import DictWeights
from tenure.testing.machine import Machine
from tenure.testing.real_engine import RealEngine
from tenure.testing.tiny_specs import model

SPEC = model(mlp=MoeSpec(8, 3, 32), n_vocab=264)
PROMPT = list(range(1, 30))
NEW = SamplingParams(temperature=0.0, max_new_tokens=5, ignore_eos=True)


def executor(spec: ModelSpec) -> ReferenceExecutor:
    settings = BackendSettings("cpu", "float64")
    return ReferenceBackend().load(spec, DictWeights.random(spec), settings, lambda *_: None)


def engine_for(spec: ModelSpec, n_pages: int = 64, **config: int) -> RealEngine:
    kv = KvSpec(4, (FullGroup(n_pages),))
    return RealEngine(executor(spec), spec, kv, EngineConfig(**config))


@pytest.fixture
def engine() -> Iterator[RealEngine]:
    made = engine_for(SPEC, step_tokens=8, mixed_tokens=8)
    yield made
    made.close()


def expected(ids: list[int]) -> np.ndarray:
    """The experts of each of `ids`, from one pass over all of them."""
    machine = Machine(executor(SPEC), SPEC)
    routed = np.full((len(ids), 2, 3), -1, np.int32)
    machine.run({"a": ids}, [], routed)
    return routed


def told(engine: RealEngine, turn: str) -> np.ndarray:
    routed = engine.finished[turn].routed
    assert routed is not None
    return np.array(routed.ids, np.int32).reshape(-1, routed.n_layers, routed.n_used)


def test_every_computed_token_is_told_of(engine: RealEngine) -> None:
    out = engine.turn("t", PROMPT, params=NEW, routed_start=0)
    np.testing.assert_array_equal(told(engine, "t"), expected(PROMPT + out[:-1]))


def test_tokens_whose_kv_is_cached_are_computed_again_from_the_start_on(
    engine: RealEngine,
) -> None:
    engine.open()
    out = engine.turn("t", PROMPT, SessionRef("s"), NEW)
    start = 17
    more = engine.turn("u", [40, 41], SessionRef("s", "t"), NEW, routed_start=start)
    assert engine.finished["t"].routed is None
    assert engine.finished["u"].usage.n_cached <= start
    whole = PROMPT + out + [40, 41] + more[:-1]
    np.testing.assert_array_equal(told(engine, "u"), expected(whole)[start:])


def test_a_turn_that_is_taken_off_the_pool_still_tells_of_all() -> None:
    engine = engine_for(SPEC, n_pages=16, step_tokens=16, mixed_tokens=8)
    long = SamplingParams(temperature=0.0, max_new_tokens=30, ignore_eos=True)
    for name in "ab":
        engine.submit(name, [*PROMPT[:9], ord(name) % 40], None, long, routed_start=3)
    engine.run()
    assert engine.finished["a"].usage.n_preempted + engine.finished["b"].usage.n_preempted
    for name in "ab":
        whole = [*PROMPT[:9], ord(name) % 40, *engine.tokens_of[name][:-1]]
        np.testing.assert_array_equal(told(engine, name), expected(whole)[3:])
    engine.close()


def test_a_start_past_the_prompt_is_refused(engine: RealEngine) -> None:
    with pytest.raises(InvalidField, match=r"routed_experts_start_len must be in \[0, 29\]"):
        engine.submit("t", PROMPT, routed_start=30)
    assert engine.turn("t", PROMPT, params=NEW, routed_start=29)
    assert len(told(engine, "t")) == 4


def test_a_model_without_experts_refuses() -> None:
    engine = engine_for(model(n_vocab=264))
    with pytest.raises(UnsupportedField, match="return_routed_experts"):
        engine.submit("t", PROMPT, routed_start=0)
    engine.close()
