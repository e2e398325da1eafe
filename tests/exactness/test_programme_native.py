"""Native backend: whatever happens around a turn, each logit of its contexts has the same bits."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest

from tenure.backend.native import ISA_VARIABLE, why_not
from tenure.model.weights.base import Encoding
from tenure.testing.exactness import Arrangement, Trial
from tenure.testing.random_turns import Scale
from tenure.testing.tiny_adapters import random_adapter
from tenure.testing.tiny_models import TinyShape

pytestmark = pytest.mark.skipif(why_not() is not None, reason=f"no native backend: {why_not()}")

GRID = [(1, 1), (16, 2), (64, 3), (4, 1)]
"""(page size, threads)"""

SMALL = TinyShape(head_dim=32)
WINDOW = TinyShape(head_dim=32, window=24)
WIDE = TinyShape(d_model=256, d_ff=256, head_dim=64)
"""Rows of whole K-quant blocks."""
ODD = TinyShape(n_heads=6, n_kv_heads=2, head_dim=48, d_model=96, d_ff=160, n_layers=3)


@dataclass(frozen=True)
class Case:
    family: str
    encoding: Encoding
    kv_dtype: str = "auto"
    shape: TinyShape = SMALL
    gguf: bool = True
    dtype: str = "auto"

    def __str__(self) -> str:
        kind = "" if self.dtype == "auto" else f"-as-{self.dtype}"
        return f"{self.family}-{self.encoding.value}{kind}-kv-{self.kv_dtype}"


CASES = [
    Case("llama", Encoding.F32, "float32"),
    Case("llama", Encoding.Q4_1, "float16", ODD),
    Case("llama", Encoding.Q8_0, "int8"),
    Case("llama", Encoding.Q4_K, "float16", WIDE),
    Case("mistral", Encoding.F16, "float16", WINDOW),
    Case("mistral", Encoding.Q4_0, "int8", WINDOW),
    Case("qwen2", Encoding.BF16, "float32"),
    Case("qwen2", Encoding.Q5_1, "float16"),
    Case("qwen2", Encoding.F16, "int8", WINDOW, gguf=False),
    Case("qwen3", Encoding.Q6_K, "float16", WIDE),
    Case("qwen3", Encoding.F32, "float16", WINDOW, gguf=False),
    Case("qwen3", Encoding.BF16, "float16", gguf=False, dtype="int4"),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_answers_and_logits_have_the_bits_of_fresh_runs(case: Case, tiny, run_all) -> None:
    subject = tiny(
        case.family,
        case.encoding,
        case.shape,
        case.gguf,
        backend="native",
        dtype=case.dtype,
        kv_dtype=case.kv_dtype,
    )
    trial = Trial(subject, Scale(n_moves=160))
    run_all(trial, GRID)
    trial.report.check()
    assert trial.report.book.n_repeats > 1000


@pytest.mark.parametrize("encoding", [Encoding.F32, Encoding.Q4_K])
def test_adapters_come_and_go_without_a_trace(encoding: Encoding, tiny, run_all) -> None:
    """Two adapters and none, mixed in every batch and from turn to turn of a session."""
    plain = tiny("llama", encoding, WIDE, backend="native")
    adapters = (
        random_adapter(plain.spec, seed=1, rank=5),
        random_adapter(plain.spec, seed=2, rank=16, targets=("q", "v", "down")),
    )
    trial = Trial(replace(plain, adapters=adapters), Scale(n_moves=160))
    run_all(trial, GRID)
    assert not trial.report.problems, str(trial.report)
    assert not trial.report.book.differences, str(trial.report)
    assert trial.report.census["adapted"] > 100
    assert trial.report.book.n_repeats > 1000


def test_long_contexts_are_split_without_a_trace(tiny, run_all) -> None:
    """Contexts of several attention parts, which threads share, against whole prefills."""
    subject = tiny("llama", Encoding.Q8_0, backend="native")
    trial = Trial(subject, Scale(n_moves=40, max_prompt=900, max_new=400))
    run_all(trial, [(16, 3), (64, 2)])
    assert not trial.report.problems, str(trial.report)
    assert not trial.report.book.differences, str(trial.report)
    assert trial.report.census["shared steps"]


@pytest.mark.parametrize("encoding", [Encoding.F32, Encoding.Q4_1])
def test_instruction_sets_agree(encoding: Encoding, tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    """One logbook for all instruction sets that this machine has."""
    from tenure import _native

    known = ["portable", "avx2", "avx512"]
    best = known.index(_native.detect_isa())
    trial = Trial(tiny("qwen3", encoding, backend="native"), Scale(n_moves=60))
    for seed, isa in enumerate(known[: best + 1]):
        monkeypatch.setenv(ISA_VARIABLE, isa)
        trial.run(Arrangement(step_tokens=7), seed)
    trial.close()
    assert not trial.report.problems, str(trial.report)
    assert not trial.report.book.differences, str(trial.report)
