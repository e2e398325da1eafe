"""Logits of a context are the same bits however they come about, on the native backend."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tenure.backend.base import BackendSettings
from tenure.backend.native import ISA_VARIABLE, NativeBackend
from tenure.model.default import default_model_path
from tenure.model.load import load_checkpoint
from tenure.model.spec import AttentionSpec, LayerSpec, MlpSpec, ModelSpec, RopeSpec
from tenure.model.weights.base import Encoding, StoredTensor
from tenure.testing.dict_weights import DictWeights
from tenure.testing.paged_sequences import PagedSequences
from tenure.testing.quantise import quantise

native = pytest.importorskip("tenure._native", reason="built without the extension")

ISAS = native.kernel_isas()
FULL = AttentionSpec(n_heads=4, n_kv_heads=2, head_dim=64, scale=0.125, rope=RopeSpec(64))
SLIDING = AttentionSpec(
    n_heads=4,
    n_kv_heads=2,
    head_dim=64,
    scale=0.125,
    rope=RopeSpec(64),
    window=37,
    softcap=8.0,
    group=1,
)
SPEC = ModelSpec(
    family="tiny",
    n_vocab=200,
    d_model=256,
    context_len=2048,
    layers=(LayerSpec((FULL,), MlpSpec(512)), LayerSpec((SLIDING,), MlpSpec(512))),
    norm_eps=1e-5,
    tied_head=True,
)
ENCODINGS = {
    "q": Encoding.Q4_0,
    "k": Encoding.Q8_0,
    "v": Encoding.Q6_K,
    "o": Encoding.Q5_0,
    "gate": Encoding.Q4_K,
    "up": Encoding.Q4_1,
    "down": Encoding.Q5_K,
    "embed": Encoding.BF16,
}


class MixedWeights:
    """Random weights, each matrix in an encoding of its own."""

    fingerprint = "mixed"

    def __init__(self, source: DictWeights) -> None:
        self._source = source

    def names(self):
        return self._source.names()

    def get(self, name: str) -> StoredTensor:
        stored = self._source.get(name)
        encoding = ENCODINGS.get(name.rsplit(".", 1)[-1])
        if encoding is None:
            return stored
        return StoredTensor(
            name, stored.shape, encoding, quantise(self._source.array(name), encoding)
        )


WEIGHTS = MixedWeights(DictWeights.random(SPEC, seed=3, spread=1.5))
TOKENS = np.random.default_rng(7).integers(0, SPEC.n_vocab, 150).astype(np.int32)


def load(spec, weights, *, threads=1, page_size=16, kv_dtype="auto"):
    options = BackendSettings(threads=threads, kv_dtype=kv_dtype)
    executor = NativeBackend().load(spec, weights, options, lambda *_: None)
    return PagedSequences(executor, spec, page_size)


def same_bits(got, want):
    np.testing.assert_array_equal(got.view(np.uint32), want.view(np.uint32))


@pytest.fixture(scope="module")
def expected():
    return load(SPEC, WEIGHTS).prefill("alone", TOKENS, len(TOKENS))


@pytest.mark.parametrize("page_size", [1, 16, 64])
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_chunks_pages_and_threads_change_nothing(expected, page_size, threads):
    model = load(SPEC, WEIGHTS, threads=threads, page_size=page_size)
    for chunk in (1, 7, 64, len(TOKENS)):
        same_bits(model.prefill(f"by-{chunk}", TOKENS, chunk), expected)


@pytest.mark.parametrize("isa", ISAS)
def test_instruction_sets_change_nothing(expected, isa, monkeypatch):
    monkeypatch.setenv(ISA_VARIABLE, isa)
    model = load(SPEC, WEIGHTS, threads=2)
    assert model.executor.describe()["kernels"] == isa
    same_bits(model.prefill("a", TOKENS, 50), expected)


STEPS = st.lists(
    st.dictionaries(st.sampled_from("abcd"), st.sampled_from([1, 2, 3, 40, 150]), min_size=1),
    min_size=1,
    max_size=20,
)


@given(STEPS, st.integers(1, 3))
@settings(max_examples=15, deadline=None)
def test_company_in_a_batch_changes_nothing(expected, steps, threads):
    """Each step appends some tokens to some sequences; all follow the same tokens."""
    model = load(SPEC, WEIGHTS, threads=threads)
    done = dict.fromkeys("abcd", 0)
    for step in steps:
        rows = [(name, TOKENS[done[name] : done[name] + n], done[name]) for name, n in step.items()]
        rows = [row for row in rows if len(row[1])]
        if not rows:
            continue
        wanted = [expected[start : start + len(ids)] for _, ids, start in rows]
        same_bits(model.run(rows), np.concatenate(wanted))
        for name, ids, _ in rows:
            done[name] += len(ids)


@pytest.mark.parametrize("step", [1, 2, 31, 189])
def test_logits_of_chosen_tokens_are_those_of_all(expected, step):
    """Few of a batch, or most of it: the last layer runs for a few alone."""
    model = load(SPEC, WEIGHTS, threads=2)
    every = np.concatenate([expected, expected[:40]])
    at = np.arange(0, len(every), step)
    same_bits(model.run([("a", TOKENS, 0), ("b", TOKENS[:40], 0)], at), every[at])
    same_bits(model.prefill("b", TOKENS[40:], 9, start=40), expected[40:])


def test_a_step_without_logits_leaves_its_kv(expected):
    model = load(SPEC, WEIGHTS, threads=2)
    assert model.run([("a", TOKENS[:100], 0)], []).shape == (0, SPEC.n_vocab)
    same_bits(model.run([("a", TOKENS[100:], 100)]), expected[100:])


def test_a_rewound_and_recomputed_tail_gives_the_same(expected):
    model = load(SPEC, WEIGHTS, threads=2)
    model.prefill("a", TOKENS, 64)
    other = (TOKENS[100:] + 1) % SPEC.n_vocab
    model.prefill("a", other, 9, start=100)
    same_bits(model.prefill("a", TOKENS[90:], 13, start=90), expected[90:])


def test_a_fork_on_copied_pages_goes_on_alike(expected):
    model = load(SPEC, WEIGHTS, threads=2)
    model.prefill("a", TOKENS[:100], 33)
    model.fork("a", "b", 100)
    rows = [("a", TOKENS[100:], 100), ("b", TOKENS[100:], 100)]
    same_bits(model.run(rows), np.concatenate([expected[100:], expected[100:]]))


@pytest.mark.parametrize("kv_dtype", ["float32", "int8"])
def test_every_kv_type_is_exact(kv_dtype):
    whole = load(SPEC, WEIGHTS, kv_dtype=kv_dtype).prefill("a", TOKENS, len(TOKENS))
    steps = load(SPEC, WEIGHTS, kv_dtype=kv_dtype, threads=3, page_size=4)
    same_bits(steps.prefill("a", TOKENS, 11), whole)


def test_another_order_of_one_reduction_shows():
    """The check can fail: two groups of one sum change places, which is the same but for order."""
    plain = DictWeights.random(SPEC, seed=3, spread=1.5)
    order = np.concatenate([np.arange(32, 64), np.arange(32), np.arange(64, 512)])
    arrays = {name: plain.array(name) for name in plain.names()}
    for name in ("gate", "up"):
        arrays[f"layers.0.{name}"] = arrays[f"layers.0.{name}"][order]
    arrays["layers.0.down"] = arrays["layers.0.down"][:, order]
    first = load(SPEC, plain).prefill("a", TOKENS, len(TOKENS))
    second = load(SPEC, DictWeights(arrays)).prefill("a", TOKENS, len(TOKENS))
    np.testing.assert_allclose(first, second, atol=1e-3 * np.abs(first).max())
    with pytest.raises(AssertionError):
        same_bits(first, second)


@pytest.fixture(scope="module")
def checkpoint():
    return load_checkpoint(default_model_path(), progress=lambda *_: None)


@pytest.mark.weights
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_the_default_model_is_exact(checkpoint, threads):
    ids = np.random.default_rng(0).integers(0, checkpoint.spec.n_vocab, 70).astype(np.int32)
    whole = load(checkpoint.spec, checkpoint.weights).prefill("a", ids, len(ids))
    model = load(checkpoint.spec, checkpoint.weights, threads=threads, page_size=32)
    for chunk in (1, 7, 64):
        same_bits(model.prefill(f"by-{chunk}", ids, chunk), whole)


@pytest.mark.weights
def test_the_default_model_is_exact_across_instruction_sets(checkpoint, monkeypatch):
    ids = np.random.default_rng(1).integers(0, checkpoint.spec.n_vocab, 24).astype(np.int32)
    results = []
    for isa in ISAS:
        monkeypatch.setenv(ISA_VARIABLE, isa)
        results.append(load(checkpoint.spec, checkpoint.weights).prefill("a", ids, 24))
    for other in results[1:]:
        same_bits(other, results[0])
