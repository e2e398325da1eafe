"""Adapters and hidden states, on every backend that is at hand."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch

from tenure.backend.base import BackendSettings
from tenure.backend.registry import find_backend, why_not_native
from tenure.model.spec import ModelSpec
from tenure.testing.dense_model import dense_logits
from tenure.testing.dict_weights import DictWeights
from tenure.testing.machine import Machine
from tenure.testing.tiny_adapters import merged, random_adapter
from tenure.testing.tiny_specs import EVERY

LENGTHS = {"a": 40, "b": 21, "c": 9, "d": 33, "e": 1}
SLOTS = {"a": 0, "b": 3, "d": 0, "e": 3}
NAMES = ["llama", "qkv-bias", "mixed-windows", "mlp-scales", "output-gate", "post-norms"]


@dataclass(frozen=True)
class Kind:
    """A backend; `exact` demands equal bits, else `same` bounds the difference."""

    backend: str
    dtype: str
    exact: bool
    same: float

    def __str__(self) -> str:
        return f"{self.backend}-{self.dtype}"


KINDS = [Kind("reference", "float64", False, 1e-6), Kind("reference", "float32", False, 1e-4)]
if why_not_native() is None:
    KINDS.append(Kind("native", "auto", True, 1e-3))


@pytest.fixture(params=KINDS, ids=str)
def kind(request: pytest.FixtureRequest) -> Kind:
    return request.param


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def machine_for(kind: Kind, spec: ModelSpec, threads: int = 1) -> Machine:
    """Slots 0 and 3 hold adapters of different ranks, one of them of some maps only."""
    settings = BackendSettings("cpu", kind.dtype, "float32", threads)
    weights = DictWeights.random(spec, spread=1.5)
    executor = find_backend(kind.backend).load(spec, weights, settings, lambda *_: None)
    for slot, adapter in adapters(spec).items():
        executor.load_adapter(slot, adapter)
    return Machine(executor, spec)


def adapters(spec: ModelSpec):
    return {
        0: random_adapter(spec, seed=1, rank=5),
        3: random_adapter(spec, seed=2, rank=16, targets=("q", "o", "down")),
    }


def ids(n: int, seed: int = 0) -> list[int]:
    return np.random.default_rng(seed).integers(0, 80, n).tolist()


def agree(kind: Kind, got: np.ndarray, want: np.ndarray) -> None:
    assert got.shape == want.shape
    if kind.exact or not want.size:
        np.testing.assert_array_equal(got, want)
    else:
        np.testing.assert_allclose(got, want, rtol=0, atol=kind.same * np.abs(want).max())


@pytest.mark.parametrize("name", NAMES)
def test_logits_are_those_of_merged_weights(kind: Kind, name: str) -> None:
    spec, context = EVERY[name], ids(40)
    machine = machine_for(kind, spec)
    weights = DictWeights.random(spec, spread=1.5)
    plain = dense_logits(spec, weights, context)
    for slot, adapter in adapters(spec).items():
        want = dense_logits(spec, merged(weights, adapter), context)
        assert np.abs(want - plain).max() > 0.1 * np.abs(plain).max()
        got = machine.run({f"s{slot}": context}, adapters={f"s{slot}": slot})
        np.testing.assert_allclose(got, want, rtol=0, atol=kind.same * np.abs(want).max())
    got = machine.run({"none": context})
    np.testing.assert_allclose(got, plain, rtol=0, atol=kind.same * np.abs(plain).max())


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("name", NAMES)
def test_two_adapters_and_none_in_one_batch_are_each_as_alone(
    kind: Kind, name: str, threads: int
) -> None:
    spec = EVERY[name]
    contexts = {row: ids(n, seed=n) for row, n in LENGTHS.items()}
    together = machine_for(kind, spec, threads).run(contexts, adapters=SLOTS)
    start = 0
    for row, context in contexts.items():
        alone = machine_for(kind, spec).run({row: context}, adapters=SLOTS)
        agree(kind, together[start : start + len(context)], alone)
        start += len(context)


@pytest.mark.parametrize("size", [1, 7, 30])
def test_chunks_do_not_matter(kind: Kind, size: int) -> None:
    spec, context = EVERY["mixed-windows"], ids(90)
    machine = machine_for(kind, spec)
    whole = machine.run({"whole": context}, adapters={"whole": 0})
    parts = [
        machine.run(
            {"parts": context[i : i + size], "none": context[i : i + size]},
            None,
            None,
            {"parts": 0},
        )
        for i in range(0, len(context), size)
    ]
    agree(kind, np.concatenate([part[: len(part) // 2] for part in parts]), whole)


@pytest.mark.parametrize("wanted", [[39], [39, 60, 103], list(range(0, 104, 2))])
def test_few_wanted_logits_are_those_of_all(kind: Kind, wanted: list[int]) -> None:
    spec = EVERY["llama"]
    contexts = {row: ids(n, seed=n) for row, n in LENGTHS.items()}
    machine = machine_for(kind, spec)
    everything = machine.run(contexts, adapters=SLOTS)
    machine.lengths.clear()
    agree(kind, machine.run(contexts, wanted, adapters=SLOTS), everything[wanted])


def test_a_slot_can_be_used_again(kind: Kind) -> None:
    spec, context = EVERY["llama"], ids(20)
    machine = machine_for(kind, spec)
    first = machine.run({"a": context}, adapters={"a": 3})
    machine.executor.unload_adapter(3)
    machine.executor.load_adapter(3, random_adapter(spec, seed=9, targets=("v", "gate")))
    second = machine.run({"b": context}, adapters={"b": 3})
    machine.executor.unload_adapter(3)
    machine.executor.load_adapter(3, adapters(spec)[3])
    third = machine.run({"c": context}, adapters={"c": 3})
    agree(kind, third, first)
    assert np.abs(second - first).max() > 0.1 * np.abs(first).max()
    plain = machine.run({"d": context})
    agree(kind, plain, machine_for(kind, spec).run({"d": context}))


@pytest.mark.parametrize("name", ["llama", "mixed-windows", "norm-offset", "experts"])
@pytest.mark.parametrize("hidden_at", [[0], [5, 6, 7, 39, 40, 103], list(range(104))])
def test_hidden_states_are_what_the_head_reads(kind: Kind, name: str, hidden_at: list[int]) -> None:
    spec = EVERY[name]
    weights = DictWeights.random(spec, spread=1.5)
    contexts = {row: ids(n, seed=n) for row, n in LENGTHS.items()}
    settings = BackendSettings("cpu", kind.dtype, "float32", 2)
    executor = find_backend(kind.backend).load(spec, weights, settings, lambda *_: None)
    machine = Machine(executor, spec)
    everything = machine.run(contexts)
    for wanted in ([], [103], list(range(104))):
        machine.lengths.clear()
        states = np.full((len(hidden_at), spec.d_model), np.nan, np.float32)
        logits = machine.run(contexts, wanted, hidden=(hidden_at, states))
        agree(kind, logits, everything[wanted])
        head = weights.array("embed" if spec.tied_head else "head").astype(np.float64)
        np.testing.assert_allclose(
            states @ head.T * spec.logit_scale, everything[hidden_at], atol=2e-3, rtol=0
        )


def test_hidden_states_do_not_depend_on_company(kind: Kind) -> None:
    spec = EVERY["llama"]
    machine = machine_for(kind, spec)
    alone = np.empty((40, spec.d_model), np.float32)
    context = ids(40)
    machine.run({"a": context}, [39], adapters={"a": 0}, hidden=(range(40), alone))
    together = np.empty((40, spec.d_model), np.float32)
    rows = {"x": ids(9, 1), "b": context, "y": ids(30, 2)}
    machine.run(rows, [48], adapters={"b": 0, "y": 3}, hidden=(range(9, 49), together))
    agree(kind, together, alone)
