"""What every backend must do, run on each that is at hand."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch

from tenure.backend.base import Backend, BackendSettings, Batch, Executor
from tenure.backend.registry import find_backend, why_not_native
from tenure.core.plan import ChoiceSpec, LogprobSpec, PageCopy
from tenure.kv.spec import FullGroup, Group, KvSpec, SlidingGroup
from tenure.model.spec import Activation, AttentionSpec, LayerSpec, MlpSpec, ModelSpec, RopeSpec
from tenure.testing.dense_model import dense_logits
from tenure.testing.dict_weights import DictWeights

N_PAGES = 64


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


def model(
    attention: Sequence[AttentionSpec] | None = None, mlp: MlpSpec | None = None, **fields
) -> ModelSpec:
    """A tiny model; layers whose windows differ lie in different groups."""
    attention = attention or (heads(), heads())
    windows = list(dict.fromkeys(a.window for a in attention))
    layers = tuple(
        LayerSpec(a, mlp or MlpSpec(d_ff=96), windows.index(a.window)) for a in attention
    )
    base = {
        "family": "tiny",
        "n_vocab": 80,
        "d_model": 64,
        "context_len": 512,
        "norm_eps": 1e-5,
        "tied_head": False,
    }
    return ModelSpec(layers=layers, **(base | fields))


def heads(**fields) -> AttentionSpec:
    base = AttentionSpec(n_heads=4, n_kv_heads=2, head_dim=32, scale=32**-0.5, rope=RopeSpec(32))
    return replace(base, **fields)


def groups(spec: ModelSpec) -> tuple[Group, ...]:
    windows = {layer.group: layer.attention.window for layer in spec.layers}
    return tuple(
        FullGroup(N_PAGES) if window is None else SlidingGroup(N_PAGES, window)
        for _, window in sorted(windows.items())
    )


class Machine:
    """An executor with a hand-made page table for each sequence, pages in scattered order."""

    def __init__(self, kind: Kind, spec: ModelSpec, weights: DictWeights, page_size: int = 16):
        settings = BackendSettings(device="cpu", dtype=kind.dtype, kv_dtype=kind.kv_dtype)
        backend: Backend = find_backend(kind.backend)
        self.executor: Executor = backend.load(spec, weights, settings, lambda *_: None)
        self.page_size = page_size
        self.n_groups = len(groups(spec))
        self.executor.allocate(KvSpec(page_size, groups(spec)))
        self._free = [np.random.default_rng(g).permutation(N_PAGES) + 1 for g in range(2)]
        self.tables: dict[str, list[list[int]]] = {}
        self.lengths: dict[str, int] = {}

    def room(self, name: str, end: int) -> list[list[int]]:
        tables = self.tables.setdefault(name, [[] for _ in range(self.n_groups)])
        for group, table in enumerate(tables):
            while len(table) * self.page_size < end:
                table.append(int(self._free[group][0]))
                self._free[group] = self._free[group][1:]
        return tables

    def run(self, rows: dict[str, Sequence[int]], wanted: list[int] | None = None) -> np.ndarray:
        """Append tokens to each named sequence; logits at every token, or at `wanted`."""
        lengths = [len(ids) for ids in rows.values()]
        first = [self.lengths.get(name, 0) for name in rows]
        for name, start, n in zip(rows, first, lengths, strict=True):
            self.room(name, start + n)
            self.lengths[name] = start + n
        tables = []
        for group in range(self.n_groups):
            each = [self.tables[name][group] for name in rows]
            indptr = np.cumsum([0, *map(len, each)]).astype(np.int32)
            tables.append((indptr, np.concatenate(each).astype(np.int32)))
        n_tokens = sum(lengths)
        at = range(n_tokens) if wanted is None else wanted
        batch = Batch(
            tokens=np.concatenate([np.array(ids, np.int32) for ids in rows.values()]),
            row_start=np.cumsum([0, *lengths]).astype(np.int32),
            first_pos=np.array(first, np.int32),
            tables=tuple(tables),
            logits_at=np.array(at, np.int32),
        )
        return self.executor.forward(batch).copy()

    def fork(self, name: str, copy_of: str) -> None:
        """A sequence on copies of all pages of another."""
        self.room(name, self.lengths[copy_of])
        self.lengths[name] = self.lengths[copy_of]
        self.executor.copy_pages(
            [
                PageCopy(group, src, dst)
                for group in range(self.n_groups)
                for src, dst in zip(
                    self.tables[copy_of][group], self.tables[name][group], strict=True
                )
            ]
        )

    def chunks(self, name: str, ids: Sequence[int], size: int) -> np.ndarray:
        parts = [self.run({name: ids[i : i + size]}) for i in range(0, len(ids), size)]
        return np.concatenate(parts)


def ids(n: int, seed: int = 0) -> list[int]:
    return np.random.default_rng(seed).integers(0, 80, n).tolist()


def agree(kind: Kind, got: np.ndarray, want: np.ndarray) -> None:
    assert got.dtype == np.float32
    if kind.exact:
        np.testing.assert_array_equal(got, want)
    else:
        np.testing.assert_allclose(got, want, rtol=0, atol=kind.same * np.abs(want).max())


MODELS = {
    "llama": model(),
    "tied": model(tied_head=True),
    "one-kv-head": model([heads(n_kv_heads=1)]),
    "every-kv-head": model([heads(n_kv_heads=4)]),
    "qkv-bias": model([heads(qkv_bias=True)]),
    "o-bias": model([heads(o_bias=True)]),
    "qk-norm": model([heads(qk_norm=True)]),
    "window": model([heads(window=20), heads(window=20)]),
    "mixed-windows": model([heads(), heads(window=9), heads(window=9)]),
    "window-of-one": model([heads(window=1), heads()]),
    "softcap": model([heads(softcap=2.0), heads(softcap=2.0, window=20)], logit_softcap=1.5),
    "scale": model([heads(scale=0.3)], logit_scale=0.25, embed_scale=8.0),
    "norm-offset": model([heads(qk_norm=True)], norm_offset=1.0),
    "gelu": model(mlp=MlpSpec(96, Activation.GELU_TANH)),
    "interleaved": model([heads(rope=RopeSpec(32, interleaved=True))]),
    "partial-rope": model([heads(rope=RopeSpec(16))]),
    "two-ropes": model([heads(rope=RopeSpec(32, theta=500.0)), heads(rope=None)]),
    "wide-heads": model([heads(head_dim=64, scale=0.125, rope=RopeSpec(64))]),
}
RARE = {
    "sinks": model([heads(sinks=True), heads(sinks=True, window=20, softcap=3.0)]),
    "mlp-bias": model(mlp=MlpSpec(96, bias=True)),
}


@pytest.mark.parametrize("name", [*MODELS, *RARE])
def test_logits_are_those_of_the_formulas(kind: Kind, name: str) -> None:
    if kind.exact and name in RARE:
        pytest.skip("no family of the native backend has this part")
    spec = (MODELS | RARE)[name]
    weights = DictWeights.random(spec, spread=1.5)
    context = ids(50)
    want = dense_logits(spec, weights, context)
    got = Machine(kind, spec, weights).chunks("a", context, 37)
    np.testing.assert_allclose(got, want, rtol=0, atol=kind.close * np.abs(want).max())


@pytest.mark.parametrize("name", ["llama", "mixed-windows", "softcap"])
@pytest.mark.parametrize("size", [1, 7, 64])
def test_chunks_do_not_matter(kind: Kind, name: str, size: int) -> None:
    spec = MODELS[name]
    machine = Machine(kind, spec, DictWeights.random(spec), page_size=8)
    context = ids(100)
    whole = machine.run({"whole": context})
    agree(kind, machine.chunks("chunks", context, size), whole)


@pytest.mark.parametrize("name", ["llama", "mixed-windows"])
@pytest.mark.parametrize("page_size", [1, 4, 64])
def test_page_size_does_not_matter(kind: Kind, name: str, page_size: int) -> None:
    spec = MODELS[name]
    weights = DictWeights.random(spec)
    context = ids(48)
    want = Machine(kind, spec, weights, 16).chunks("a", context, 17)
    agree(kind, Machine(kind, spec, weights, page_size).chunks("a", context, 17), want)


@pytest.mark.parametrize("name", ["llama", "mixed-windows", "softcap"])
def test_company_does_not_matter(kind: Kind, name: str) -> None:
    """Prefill, append and decode rows of unlike lengths in one batch, against each alone."""
    spec = MODELS[name]
    weights = DictWeights.random(spec)
    contexts = {"a": ids(70, 1), "b": ids(33, 2), "c": ids(18, 3), "d": ids(5, 4), "e": ids(1, 5)}
    begun = {"a": 69, "b": 20, "c": 17, "d": 0, "e": 0}
    crowd = Machine(kind, spec, weights, 8)
    for name_, n in begun.items():
        if n:
            crowd.run({name_: contexts[name_][:n]})
    together = crowd.run({name_: contexts[name_][n:] for name_, n in begun.items()})
    start = 0
    for name_, n in begun.items():
        alone = Machine(kind, spec, weights, 8).run({name_: contexts[name_]})[n:]
        agree(kind, together[start : start + len(alone)], alone)
        start += len(alone)
    assert start == len(together)


def test_only_the_wanted_logits_come_back(kind: Kind) -> None:
    spec = MODELS["llama"]
    machine = Machine(kind, spec, DictWeights.random(spec))
    rows = {"a": ids(9, 1), "b": ids(1, 2), "c": ids(4, 3)}
    everything = machine.run(rows)
    machine.lengths.clear()
    agree(kind, machine.run(rows, [0, 8, 9, 12]), everything[[0, 8, 9, 12]])
    machine.lengths.clear()
    nothing = machine.run(rows, [])
    assert nothing.shape == (0, spec.n_vocab)


@pytest.mark.parametrize("name", ["llama", "mixed-windows"])
def test_copied_pages_stand_for_their_source(kind: Kind, name: str) -> None:
    spec = MODELS[name]
    machine = Machine(kind, spec, DictWeights.random(spec), 4)
    context = ids(27)
    machine.run({"a": context})
    machine.fork("b", "a")
    want = machine.run({"a": ids(6, 7)})
    agree(kind, machine.run({"b": ids(6, 7)}), want)


def test_rewriting_positions_replaces_them(kind: Kind) -> None:
    """A rewind: the tail of a sequence is computed again with other tokens."""
    spec = MODELS["llama"]
    weights = DictWeights.random(spec)
    machine = Machine(kind, spec, weights)
    machine.run({"a": ids(40, 1)})
    machine.lengths["a"] = 13
    got = machine.run({"a": ids(20, 2)})
    want = Machine(kind, spec, weights).run({"a": ids(40, 1)[:13] + ids(20, 2)})[13:]
    agree(kind, got, want)


def test_pages_left_of_the_window_are_not_read(kind: Kind) -> None:
    spec = MODELS["window"]
    weights = DictWeights.random(spec)
    machine, whole = (Machine(kind, spec, weights, 4) for _ in range(2))
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
    machine = Machine(kind, spec, DictWeights(poisoned))
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
    executor = Machine(kind, spec, DictWeights.random(spec)).executor
    one, sixteen = executor.kv_bytes_per_page(1), executor.kv_bytes_per_page(16)
    assert len(one) == 2
    assert [16 * n for n in one] == list(sixteen)
    assert one[1] == 2 * one[0]


def test_choices_are_a_function_of_spec_and_logits(kind: Kind) -> None:
    spec = MODELS["llama"]
    executor = Machine(kind, spec, DictWeights.random(spec)).executor
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
    executor = Machine(kind, spec, DictWeights.random(spec)).executor
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
    said = Machine(kind, spec, DictWeights.random(spec)).executor.describe()
    assert said["backend"] == kind.backend
    assert {"dtype", "kv_dtype", "threads", "kernels", "weight_bytes"} <= said.keys()
