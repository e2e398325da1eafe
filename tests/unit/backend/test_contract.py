"""What every backend must do, run on each that is at hand."""

from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch

from tenure.backend.base import Backend, BackendSettings
from tenure.backend.registry import find_backend, why_not_native
from tenure.core.errors import ModelError
from tenure.core.plan import ChoiceSpec, LogprobSpec
from tenure.core.tokens import tokens
from tenure.model.spec import LayerSpec, MlpSpec, ModelSpec
from tenure.testing.dense_model import dense_logits
from tenure.testing.dict_weights import DictWeights
from tenure.testing.machine import Machine
from tenure.testing.tiny_specs import EVERY, MODELS, RECURRENT, heads


@dataclass(frozen=True)
class Kind:
    """A backend with settings; `exact` demands equal bits, else `same` bounds the difference.

    `close` bounds the distance to the dense float64 model, relative to the largest logit.
    """

    backend: str
    dtype: str
    kv_dtype: str
    exact: bool
    same: float
    close: float

    def __str__(self) -> str:
        return f"{self.backend}-{self.dtype}-kv-{self.kv_dtype}"


KINDS = [
    Kind("reference", "float64", "auto", False, 1e-6, 1e-6),
    Kind("reference", "float32", "auto", False, 1e-4, 1e-4),
    Kind("reference", "float32", "float16", False, 1e-2, 1e-2),
    Kind("reference", "bfloat16", "auto", False, 0.3, 0.3),
]
if why_not_native() is None:
    KINDS.append(Kind("native", "auto", "float32", True, 0.0, 1e-3))
    KINDS.append(Kind("native", "auto", "float16", True, 0.0, 1e-2))


@pytest.fixture(params=KINDS, ids=str)
def kind(request: pytest.FixtureRequest) -> Kind:
    return request.param


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def machine_for(kind: Kind, spec: ModelSpec, weights: DictWeights, page_size: int = 16) -> Machine:
    """Skips the test where the backend says that it does not run a part yet."""
    settings = BackendSettings(device="cpu", dtype=kind.dtype, kv_dtype=kind.kv_dtype)
    backend: Backend = find_backend(kind.backend)
    try:
        executor = backend.load(spec, weights, settings, lambda *_: None)
    except ModelError as error:
        if "does not run" not in error.message:
            raise
        pytest.skip(error.message)
    return Machine(executor, spec, page_size)


def ids(n: int, seed: int = 0) -> list[int]:
    return np.random.default_rng(seed).integers(0, 80, n).tolist()


def agree(kind: Kind, got: np.ndarray, want: np.ndarray) -> None:
    assert got.dtype == np.float32
    if kind.exact:
        np.testing.assert_array_equal(got, want)
    else:
        np.testing.assert_allclose(got, want, rtol=0, atol=kind.same * np.abs(want).max())


@pytest.mark.parametrize("name", list(EVERY))
def test_logits_are_those_of_the_formulas(kind: Kind, name: str) -> None:
    spec = EVERY[name]
    if spec.n_experts_used and kind.dtype == "bfloat16":
        pytest.skip("so few digits send tokens to other experts")
    weights = DictWeights.random(spec, spread=1.5)
    context = ids(50)
    want = dense_logits(spec, weights, context)
    got = machine_for(kind, spec, weights).chunks("a", context, 37)
    np.testing.assert_allclose(got, want, rtol=0, atol=kind.close * np.abs(want).max())


@pytest.mark.parametrize("name", ["llama", "mixed-windows", "softcap", "experts", *RECURRENT])
@pytest.mark.parametrize("size", [1, 7, 64])
def test_chunks_do_not_matter(kind: Kind, name: str, size: int) -> None:
    spec = EVERY[name]
    machine = machine_for(kind, spec, DictWeights.random(spec), page_size=8)
    context = ids(100)
    whole = machine.run({"whole": context})
    agree(kind, machine.chunks("chunks", context, size), whole)


@pytest.mark.parametrize("name", ["llama", "mixed-windows"])
@pytest.mark.parametrize("page_size", [1, 4, 64])
def test_page_size_does_not_matter(kind: Kind, name: str, page_size: int) -> None:
    spec = MODELS[name]
    weights = DictWeights.random(spec)
    context = ids(48)
    want = machine_for(kind, spec, weights, 16).chunks("a", context, 17)
    agree(kind, machine_for(kind, spec, weights, page_size).chunks("a", context, 17), want)


@pytest.mark.parametrize("name", ["llama", "mixed-windows", "softcap", "experts", *RECURRENT])
def test_company_does_not_matter(kind: Kind, name: str) -> None:
    """Prefill, append and decode rows of unlike lengths in one batch, against each alone."""
    spec = EVERY[name]
    weights = DictWeights.random(spec)
    contexts = {"a": ids(70, 1), "b": ids(33, 2), "c": ids(18, 3), "d": ids(5, 4), "e": ids(1, 5)}
    begun = {"a": 69, "b": 20, "c": 17, "d": 0, "e": 0}
    crowd = machine_for(kind, spec, weights, 8)
    for name_, n in begun.items():
        if n:
            crowd.run({name_: contexts[name_][:n]})
    together = crowd.run({name_: contexts[name_][n:] for name_, n in begun.items()})
    start = 0
    for name_, n in begun.items():
        alone = machine_for(kind, spec, weights, 8).run({name_: contexts[name_]})[n:]
        agree(kind, together[start : start + len(alone)], alone)
        start += len(alone)
    assert start == len(together)


def test_only_the_wanted_logits_come_back(kind: Kind) -> None:
    spec = MODELS["llama"]
    machine = machine_for(kind, spec, DictWeights.random(spec))
    rows = {"a": ids(9, 1), "b": ids(1, 2), "c": ids(4, 3)}
    everything = machine.run(rows)
    machine.lengths.clear()
    agree(kind, machine.run(rows, [0, 8, 9, 12]), everything[[0, 8, 9, 12]])
    machine.lengths.clear()
    nothing = machine.run(rows, [])
    assert nothing.shape == (0, spec.n_vocab)


@pytest.mark.parametrize("name", ["llama", "mixed-windows", *RECURRENT])
def test_copied_pages_stand_for_their_source(kind: Kind, name: str) -> None:
    spec = EVERY[name]
    machine = machine_for(kind, spec, DictWeights.random(spec), 4)
    context = ids(27)
    machine.run({"a": context})
    machine.fork("b", "a")
    want = machine.run({"a": ids(6, 7)})
    agree(kind, machine.run({"b": ids(6, 7)}), want)


@pytest.mark.parametrize("name", ["llama", "mixed-windows", *RECURRENT])
def test_pages_that_were_read_and_written_stand_for_their_source(kind: Kind, name: str) -> None:
    """In an executor of its own, as after a restart, and whatever its pages held before."""
    spec = EVERY[name]
    weights = DictWeights.random(spec)
    first, second = machine_for(kind, spec, weights, 4), machine_for(kind, spec, weights, 4)
    context = ids(27)
    first.run({"a": context})
    second.run({"other": ids(40, 3)})
    second.room("a", 27)
    second.tables["a"] = [table[::-1] for table in second.tables["a"]]
    second.lengths["a"] = 27
    for group in range(len(first.groups)):
        there, here = (tokens(machine.tables["a"][group]) for machine in (first, second))
        data = first.executor.read_pages(group, there)
        assert len(data) == len(there) * first.executor.kv_bytes_per_page(4)[group]
        second.executor.write_pages(group, here[:3], bytes(data)[: len(data) // len(there) * 3])
        second.executor.write_pages(group, here[3:], data[len(data) // len(there) * 3 :])
        assert bytes(second.executor.read_pages(group, here)) == bytes(data)
    want = first.run({"a": ids(6, 7)})
    agree(kind, second.run({"a": ids(6, 7)}), want)
    want = first.run({"fresh": [*ids(40, 3), 5]})[-1:]
    agree(kind, second.run({"other": [5]}), want)


def test_bytes_that_do_not_fit_the_pages_are_refused(kind: Kind) -> None:
    executor = machine_for(kind, MODELS["llama"], DictWeights.random(MODELS["llama"])).executor
    data = bytes(executor.read_pages(0, tokens([1, 2])))
    with pytest.raises(ValueError, match="pages"):
        executor.write_pages(0, tokens([1]), data)
    with pytest.raises(ValueError, match="page"):
        executor.write_pages(0, tokens([1, 2]), data[:-16])


def test_the_page_format_names_what_fills_pages(kind: Kind) -> None:
    spec = MODELS["llama"]
    weights = DictWeights.random(spec)
    mine = machine_for(kind, spec, weights).executor.page_format()
    assert mine == machine_for(kind, spec, weights).executor.page_format()
    for other in KINDS:
        if other != kind:
            assert mine != machine_for(other, spec, weights).executor.page_format()


@pytest.mark.parametrize("name", list(RECURRENT))
def test_a_sequence_starts_from_zeros_whatever_its_page_holds(kind: Kind, name: str) -> None:
    spec = RECURRENT[name]
    machine = machine_for(kind, spec, DictWeights.random(spec))
    want = machine.run({"a": ids(9, 1)})
    machine.run({"a": ids(20, 2)})
    machine.lengths["a"] = 0
    agree(kind, machine.run({"a": ids(9, 1)}), want)


def test_states_are_laid_out_as_the_spec_says(kind: Kind) -> None:
    spec = RECURRENT["mamba-hybrid"]
    executor = machine_for(kind, spec, DictWeights.random(spec)).executor
    n_elements = 2 * (3 * (96 + 2 * 2 * 24) + 6 * 16 * 24)
    assert executor.kv_bytes_per_page(16)[1] == 4 * n_elements


def test_the_chosen_experts_are_written_where_asked(kind: Kind) -> None:
    spec = replace(
        EVERY["experts"], layers=(*EVERY["experts"].layers, LayerSpec((heads(),), MlpSpec(96)))
    )
    weights = DictWeights.random(spec)
    machine = machine_for(kind, spec, weights)
    rows = {"a": ids(5, 1), "b": ids(1, 2)}
    routed = np.full((6, 3, 3), -1, np.int32)
    logits = machine.run(rows, routed=routed)
    first = np.sort(routed[:, :2], axis=-1)
    assert (first[..., 1:] > first[..., :-1]).all()
    assert ((first >= 0) & (first < 8)).all()
    assert (routed[:, 2] == -1).all()
    machine.lengths.clear()
    agree(kind, machine.run(rows), logits)


def test_rewriting_positions_replaces_them(kind: Kind) -> None:
    """A rewind: the tail of a sequence is computed again with other tokens."""
    spec = MODELS["llama"]
    weights = DictWeights.random(spec)
    machine = machine_for(kind, spec, weights)
    machine.run({"a": ids(40, 1)})
    machine.lengths["a"] = 13
    got = machine.run({"a": ids(20, 2)})
    want = machine_for(kind, spec, weights).run({"a": ids(40, 1)[:13] + ids(20, 2)})[13:]
    agree(kind, got, want)


def test_pages_left_of_the_window_are_not_read(kind: Kind) -> None:
    spec = MODELS["window"]
    weights = DictWeights.random(spec)
    machine, whole = (machine_for(kind, spec, weights, 4) for _ in range(2))
    machine.run({"a": ids(50, 1)})
    whole.run({"a": ids(50, 1)})
    # Position 50 sees (30, 50]; pages that end at or before position 30 may be gone.
    machine.tables["a"][0][:7] = [0] * 7
    agree(kind, machine.run({"a": ids(3, 2)}), whole.run({"a": ids(3, 2)}))


def test_what_others_left_in_a_page_is_not_read(kind: Kind) -> None:
    """A NaN in the unused tail of a page must not spread."""
    spec = MODELS["llama"]
    arrays = DictWeights.random(spec)
    poisoned = {name: arrays.array(name).copy() for name in arrays.names()}
    poisoned["embed"][79] = np.nan
    machine = machine_for(kind, spec, DictWeights(poisoned))
    assert np.isnan(machine.run({"bad": [79] * 32})).all()
    machine.tables["good"], machine.tables["other"] = (
        [[page] for page in machine.tables["bad"][0][i : i + 1]] for i in range(2)
    )
    got = machine.run({"good": ids(5, 1), "other": ids(2, 2)})
    more = machine.run({"good": [4], "other": [5]})
    assert np.isfinite(got).all()
    assert np.isfinite(more).all()


def test_kv_bytes_grow_with_the_page(kind: Kind) -> None:
    spec = MODELS["mixed-windows"]
    executor = machine_for(kind, spec, DictWeights.random(spec)).executor
    one, sixteen = executor.kv_bytes_per_page(1), executor.kv_bytes_per_page(16)
    assert len(one) == 2
    assert [16 * n for n in one] == list(sixteen)
    assert one[1] == 2 * one[0]


def test_choices_are_a_function_of_spec_and_logits(kind: Kind) -> None:
    spec = MODELS["llama"]
    executor = machine_for(kind, spec, DictWeights.random(spec)).executor
    logits = np.random.default_rng(0).normal(size=(6, 80)).astype(np.float32)
    specs = [
        ChoiceSpec(0, 0),
        ChoiceSpec(1, 5, temperature=0.8),
        ChoiceSpec(2, 5, temperature=1.1, top_k=7, top_p=0.8, min_p=0.05),
        ChoiceSpec(3, 5, given=17, logprobs=LogprobSpec(3, (4, 17))),
        ChoiceSpec(4, 9, output=(3, 3, 8), frequency_penalty=0.5, repetition_penalty=1.3),
        ChoiceSpec(5, 9, temperature=2.0, bias=((7, 3.0),), banned=(8,), logprobs=LogprobSpec(2)),
    ]
    together = executor.choose(logits.copy(), specs)
    apart = [executor.choose(logits[i : i + 1].copy(), specs[i : i + 1])[0] for i in range(6)]
    assert together == apart
    assert together[0].token == logits[0].argmax()
    assert together[3].token == 17


def test_choices_are_those_of_the_definition(kind: Kind) -> None:
    """Tokens as the sampler draws them; log probabilities to the last digits of float32."""
    from tenure.backend import sampler

    spec = MODELS["llama"]
    executor = machine_for(kind, spec, DictWeights.random(spec)).executor
    rng = np.random.default_rng(3)
    logits = rng.normal(scale=2, size=(200, 80)).astype(np.float32)
    logits[::5] = np.round(logits[::5])
    specs = [
        ChoiceSpec(
            seed=int(rng.integers(2**63)),
            position=int(rng.integers(10_000)),
            temperature=float(rng.choice([0.0, 0.3, 1.0, 1.7])),
            top_k=int(rng.choice([-1, 1, 5, 40, 200])),
            top_p=float(rng.choice([1.0, 0.9, 0.5, 0.01])),
            min_p=float(rng.choice([0.0, 0.02, 0.3])),
            frequency_penalty=float(rng.choice([0.0, 0.7])),
            presence_penalty=float(rng.choice([0.0, -0.4])),
            repetition_penalty=float(rng.choice([1.0, 1.5])),
            output=tuple(rng.integers(0, 80, 6).tolist()),
            bias=((int(rng.integers(80)), 2.5),),
            banned=(int(rng.integers(80)),),
            logprobs=LogprobSpec(4, (1, 2)),
        )
        for _ in range(200)
    ]
    want = sampler.choose(logits, specs)
    got = executor.choose(logits.copy(), specs)
    assert [c.token for c in got] == [c.token for c in want]
    for a, b in zip(got, want, strict=True):
        assert a.logprob == pytest.approx(b.logprob, abs=1e-6)
        assert [i for _, i in a.top] == [i for _, i in b.top]
        assert [p for p, _ in a.top + a.ids] == pytest.approx(
            [p for p, _ in b.top + b.ids], abs=1e-6
        )


def test_describe_says_what_runs(kind: Kind) -> None:
    spec = MODELS["llama"]
    said = machine_for(kind, spec, DictWeights.random(spec)).executor.describe()
    assert said["backend"] == kind.backend
    assert {"dtype", "kv_dtype", "threads", "kernels", "weight_bytes"} <= said.keys()
