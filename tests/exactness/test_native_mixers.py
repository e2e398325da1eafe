"""Every kind of layer on the native backend: the same bits however a context comes about."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tenure.backend.base import BackendSettings
from tenure.backend.native import ISA_VARIABLE, NativeBackend
from tenure.model.spec import MoeSpec
from tenure.testing.dense_model import dense_logits
from tenure.testing.dict_weights import DictWeights
from tenure.testing.mixer_models import MIXER_MODELS as MODELS
from tenure.testing.mixer_models import N_VOCAB
from tenure.testing.paged_sequences import PagedSequences

native = pytest.importorskip("tenure._native", reason="built without the extension")

ISAS = native.kernel_isas()
N_TOKENS = 150

WEIGHTS = {name: DictWeights.random(spec, seed=5) for name, spec in MODELS.items()}
TOKENS = np.random.default_rng(7).integers(0, N_VOCAB, N_TOKENS).astype(np.int32)

every_model = pytest.mark.parametrize("name", MODELS)


def load(name: str, threads: int = 1, page_size: int = 16, **options) -> PagedSequences:
    chosen = BackendSettings(threads=threads, **options)
    executor = NativeBackend().load(MODELS[name], WEIGHTS[name], chosen, lambda *_: None)
    return PagedSequences(executor, MODELS[name], page_size)


def same_bits(got, want):
    np.testing.assert_array_equal(got.view(np.uint32), want.view(np.uint32))


@pytest.fixture(scope="module")
def expected():
    """Logits of all tokens in one step, by model."""
    return {name: load(name).prefill("alone", TOKENS, N_TOKENS) for name in MODELS}


@every_model
def test_logits_are_those_of_the_formulas(name, expected):
    got = load(name, kv_dtype="float32").prefill("a", TOKENS, 40)
    want = dense_logits(MODELS[name], WEIGHTS[name], TOKENS)
    np.testing.assert_allclose(got, want, atol=2e-4 * np.abs(want).max())


@every_model
@pytest.mark.parametrize(("page_size", "threads"), [(1, 2), (16, 3), (64, 1)])
def test_chunks_pages_and_threads_change_nothing(name, page_size, threads, expected):
    sequences = load(name, threads, page_size)
    for chunk in (1, 7, 64, N_TOKENS):
        same_bits(sequences.prefill(f"by-{chunk}", TOKENS, chunk), expected[name])


@every_model
@pytest.mark.parametrize("isa", ISAS)
def test_instruction_sets_change_nothing(name, isa, expected, monkeypatch):
    monkeypatch.setenv(ISA_VARIABLE, isa)
    same_bits(load(name, threads=2).prefill("a", TOKENS, 50), expected[name])


@every_model
@pytest.mark.parametrize("dtype", ["int8", "int4"])
def test_quantised_matrices_are_exact(name, dtype):
    whole = load(name, dtype=dtype).prefill("a", TOKENS, N_TOKENS)
    same_bits(load(name, 3, dtype=dtype, kv_dtype="float16").prefill("a", TOKENS, 11), whole)


STEPS = st.lists(
    st.dictionaries(st.sampled_from("abcd"), st.sampled_from([1, 2, 3, 40, 150]), min_size=1),
    min_size=1,
    max_size=12,
)


@every_model
@given(steps=STEPS, threads=st.integers(1, 3))
@settings(max_examples=8, deadline=None)
def test_company_in_a_batch_changes_nothing(name, steps, threads, expected):
    """Each step appends some tokens to some sequences; all follow the same tokens."""
    sequences = load(name, threads)
    done = dict.fromkeys("abcd", 0)
    for step in steps:
        rows = [(who, TOKENS[done[who] : done[who] + n], done[who]) for who, n in step.items()]
        rows = [row for row in rows if len(row[1])]
        if not rows:
            continue
        wanted = [expected[name][start : start + len(ids)] for _, ids, start in rows]
        same_bits(sequences.run(rows), np.concatenate(wanted))
        for who, ids, _ in rows:
            done[who] += len(ids)


@every_model
@pytest.mark.parametrize("step", [2, 31, 189])
def test_logits_of_chosen_tokens_are_those_of_all(name, step, expected):
    sequences = load(name, threads=2)
    every = np.concatenate([expected[name], expected[name][:40]])
    at = np.arange(0, len(every), step)
    same_bits(sequences.run([("a", TOKENS, 0), ("b", TOKENS[:40], 0)], at), every[at])
    same_bits(sequences.prefill("b", TOKENS[40:], 9, start=40), expected[name][40:])


@every_model
def test_a_step_without_logits_leaves_its_kv(name, expected):
    sequences = load(name, threads=2)
    assert len(sequences.run([("a", TOKENS[:100], 0)], [])) == 0
    same_bits(sequences.run([("a", TOKENS[100:], 100)]), expected[name][100:])


@every_model
def test_a_fork_goes_on_alike(name, expected):
    sequences = load(name, threads=2)
    sequences.prefill("a", TOKENS[:100], 33)
    sequences.fork("a", "b", 100)
    sequences.run([("a", TOKENS[:20], 100)])  # what the first does is not seen by the second
    same_bits(sequences.run([("b", TOKENS[100:], 100)]), expected[name][100:])


@pytest.mark.parametrize("name", ["qwen3-moe", "granite", "qwen3-next"])
def test_experts_are_reported_for_every_token_and_change_nothing(name, expected):
    spec = MODELS[name]
    most = max(la.mlp.n_used for la in spec.layers if isinstance(la.mlp, MoeSpec))
    sequences = load(name, threads=2)
    whole = np.full((N_TOKENS, len(spec.layers), most), -1, np.int32)
    batch = sequences.batch([("a", TOKENS, 0)], [N_TOKENS - 1], whole)
    same_bits(sequences.executor.forward(batch), expected[name][-1:])
    one_by_one = np.full_like(whole, -1)
    for i in range(N_TOKENS):
        rows = [("b", TOKENS[i : i + 1], i)]
        sequences.executor.forward(sequences.batch(rows, [], one_by_one[i : i + 1]))
    np.testing.assert_array_equal(one_by_one, whole)
    for index, layer in enumerate(spec.layers):
        if isinstance(layer.mlp, MoeSpec):
            used = whole[:, index, : layer.mlp.n_used]
            assert used.min() >= 0
            assert used.max() < layer.mlp.n_experts
            assert all(len(set(row)) == layer.mlp.n_used for row in used.tolist())
        else:
            assert (whole[:, index] == -1).all()
