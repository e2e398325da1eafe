"""Whole models against transformers: the same logits and the same greedy continuations."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from tenure.backend.base import BackendSettings
from tenure.backend.reference import ReferenceBackend
from tenure.model.default import default_model_path
from tenure.model.families.base import hf_places
from tenure.model.load import Checkpoint, load_checkpoint
from tenure.model.spec import RopeSpec
from tenure.model.tokenizer.load import load_tokenizer
from tenure.model.weights.base import Encoding
from tenure.model.weights.dequant import dequantise
from tenure.testing.machine import Machine
from tenure.testing.tiny_models import ARCHITECTURES, TinyShape, write_tiny_gguf, write_tiny_model

PAGE = 16
N_CONTEXT = 70
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}

PROSE = """
The harbour master kept two ledgers. In the first he wrote what came in: timber from the north,
barrels of salted fish, a crate of oranges that had already begun to turn. In the second he wrote
what he thought of it, and that ledger was much the longer of the two. Nobody else had ever read it,
though the whole town knew that it existed, and on quiet evenings people would argue about what it
said of them. The baker was sure that it praised his bread. The ferryman, who drank, hoped that it
stopped before the winter of the great storm. When the old man died, his daughter carried both books
to the square and set them side by side on the steps of the church. She opened the first and read
aloud, line by line, every cargo of thirty years, until the light was almost gone. Then she closed
it, lifted the second, and put it unopened into the fire that the children had built against the
cold. There was some grumbling, but not much. The baker went home and baked, and the ferryman, for
the first time that anyone could remember, rowed straight across the bay and back without stopping.
"""

QUESTIONS = (
    "What is the capital of France?",
    "Write one sentence about the sea.",
    "How many days are there in a week?",
    "Name three fruits that are red.",
    "Why is the sky blue during the day?",
    "Explain what a compiler does.",
    "Who wrote the play Hamlet?",
    "Give me a short recipe for pancakes.",
    "What is the square root of 81?",
    "Tell me a fact about elephants.",
    "Translate good morning into Spanish.",
    "What does a heart do in the body?",
    "Describe winter in two sentences.",
    "Which planet is closest to the sun?",
    "What is the opposite of cold?",
    "How do bees make honey?",
    "List the primary colours.",
    "What language is spoken in Brazil?",
    "Suggest a name for a small cat.",
    "What happens when ice is heated?",
)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Tiny operations gain nothing from threads, and lose much on a busy machine."""
    n_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(n_threads)


def silent(what: str, done: int, total: int) -> None:
    pass


class Paged(Machine):
    """The reference backend on a few sequences named 0, 1, 2, ..."""

    def __init__(self, checkpoint: Checkpoint, n_rows: int, n_positions: int) -> None:
        settings = BackendSettings(device="cpu", dtype="float32", kv_dtype="float32")
        executor = ReferenceBackend().load(checkpoint.spec, checkpoint.weights, settings, silent)
        n_pages = n_rows * -(-n_positions // PAGE)
        super().__init__(executor, checkpoint.spec, PAGE, n_pages)

    def __call__(self, rows: Sequence[Sequence[int]]) -> np.ndarray:
        """Append to each row; logits [n_rows, n_new, n_vocab] of equally long rows."""
        logits = self.run({str(i): ids for i, ids in enumerate(rows)})
        return logits.reshape(len(rows), len(rows[0]), -1)

    def greedy(self, prompts: Sequence[Sequence[int]], n: int) -> np.ndarray:
        """The n greedy tokens after each of equally long prompts: int64 [n_prompts, n]."""
        chosen = [self(prompts)[:, -1].argmax(-1)]
        while len(chosen) < n:
            chosen.append(self(chosen[-1][:, None].tolist())[:, -1].argmax(-1))
        return np.stack(chosen, axis=1)


@torch.inference_mode()
def check_greedy(model: Any, prompts: Sequence[Sequence[int]], tokens: np.ndarray) -> None:
    """Each token is transformers' greedy choice after the prompt and the tokens before it.

    One forward over the whole text settles it: equal choices at every step are, by induction, the
    continuation that transformers would have written itself.
    """
    n = tokens.shape[1]
    text = torch.tensor(np.concatenate([prompts, tokens[:, :-1]], axis=1))
    chosen = model(text, use_cache=False, logits_to_keep=n).logits.argmax(-1)
    np.testing.assert_array_equal(tokens, chosen.numpy())


@torch.inference_mode()
def logits_of(model: Any, ids: Sequence[int]) -> np.ndarray:
    return model(torch.tensor([ids]), use_cache=False).logits[0].numpy()


def random_ids(seed: int, shape: tuple[int, ...], n_vocab: int) -> list[Any]:
    return np.random.default_rng(seed).integers(0, n_vocab, shape).tolist()


def check_against_transformers(folder: Path, checkpoint: Checkpoint) -> None:
    model = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager"
    ).eval()
    n_vocab = checkpoint.spec.n_vocab
    ids = random_ids(1, (N_CONTEXT,), n_vocab)
    ours = Paged(checkpoint, 1, N_CONTEXT)
    split = np.concatenate([ours([ids[:41]])[0], ours([ids[41:]])[0]])
    np.testing.assert_allclose(split, logits_of(model, ids), atol=1e-4, rtol=0)

    prompts = random_ids(2, (4, 9), n_vocab)
    tokens = Paged(checkpoint, 4, 48).greedy(prompts, 32)
    check_greedy(model, prompts, tokens)
    assert len(np.unique(tokens)) > 10, "too monotonous to tell models apart"


@pytest.mark.parametrize("tied", [False, True], ids=["head", "tied"])
@pytest.mark.parametrize("family", list(ARCHITECTURES))
def test_every_family_computes_what_transformers_does(
    tmp_path: Path, family: str, tied: bool
) -> None:
    folder = write_tiny_model(tmp_path / "m", family, tied=tied)
    check_against_transformers(folder, load_checkpoint(folder, progress=silent))


VARIANTS = {
    "llama-linear": ("llama", TinyShape(rope={"rope_type": "linear", "factor": 3.0})),
    "llama-llama3": ("llama", TinyShape(rope=LLAMA3)),
    "llama-bias": ("llama", TinyShape(attention_bias=True)),
    "llama-wide-heads": ("llama", TinyShape(d_model=96, n_heads=3, n_kv_heads=1, head_dim=48)),
    "mistral-sliding": ("mistral", TinyShape(window=20)),
    "qwen2-yarn": ("qwen2", TinyShape(rope=YARN, context_len=128)),
    "qwen2-half-sliding": ("qwen2", TinyShape(window=20, n_layers=3)),
    "qwen3-bias": ("qwen3", TinyShape(attention_bias=True)),
}


@pytest.mark.parametrize("variant", list(VARIANTS))
def test_every_variant_computes_what_transformers_does(tmp_path: Path, variant: str) -> None:
    family, shape = VARIANTS[variant]
    folder = write_tiny_model(tmp_path / "m", family, shape=shape)
    check_against_transformers(folder, load_checkpoint(folder, progress=silent))


@pytest.mark.parametrize("encoding", [Encoding.F16, Encoding.BF16])
def test_half_precision_weights_are_read_exactly(tmp_path: Path, encoding: Encoding) -> None:
    folder = write_tiny_model(tmp_path / "m", "llama", encoding=encoding)
    check_against_transformers(folder, load_checkpoint(folder, progress=silent))


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
def test_gguf_files_compute_what_transformers_does(tmp_path: Path, family: str) -> None:
    folder = write_tiny_model(tmp_path / "m", family)
    file = write_tiny_gguf(tmp_path / "m.gguf", family)
    check_against_transformers(folder, load_checkpoint(file, progress=silent))


@pytest.mark.parametrize("encoding", [Encoding.Q4_K, Encoding.Q6_K, Encoding.Q5_0])
def test_quantised_gguf_is_its_dequantised_weights(tmp_path: Path, encoding: Encoding) -> None:
    shape = TinyShape(d_model=256, d_ff=256, n_heads=4, head_dim=64)
    path = write_tiny_gguf(tmp_path / "m.gguf", "llama", shape=shape, encoding=encoding)
    checkpoint = load_checkpoint(path, progress=silent)
    ids = random_ids(3, (40,), checkpoint.spec.n_vocab)
    ours = Paged(checkpoint, 1, 40)([ids])[0]
    np.testing.assert_allclose(ours, logits_of(as_transformers(checkpoint), ids), atol=1e-4)


def as_transformers(checkpoint: Checkpoint) -> LlamaForCausalLM:
    """The same dequantised weights in transformers' Llama."""
    spec = checkpoint.spec
    _, a = next(spec.attentions())
    assert a.rope is not None
    assert a.rope == RopeSpec(dim=a.head_dim, theta=a.rope.theta), "plain rotary positions only"
    config = LlamaConfig(
        vocab_size=spec.n_vocab,
        hidden_size=spec.d_model,
        intermediate_size=checkpoint.weights.get("layers.0.up").shape[0],
        num_hidden_layers=len(spec.layers),
        num_attention_heads=a.n_heads,
        num_key_value_heads=a.n_kv_heads,
        head_dim=a.head_dim,
        max_position_embeddings=spec.context_len,
        rms_norm_eps=spec.norm_eps,
        rope_parameters={"rope_type": "default", "rope_theta": a.rope.theta},
        tie_word_embeddings=spec.tied_head,
    )
    model = LlamaForCausalLM(config).eval()
    values = {
        place.name: torch.from_numpy(dequantise(checkpoint.weights.get(name)))
        for name, place in hf_places(spec).items()
    }
    if spec.tied_head:
        values["lm_head.weight"] = values["model.embed_tokens.weight"]
    model.load_state_dict(values, assign=True)
    return model


@pytest.fixture(scope="module")
def checkpoint() -> Checkpoint:
    return load_checkpoint(default_model_path(), progress=silent)


@pytest.fixture(scope="module")
def model(checkpoint: Checkpoint) -> LlamaForCausalLM:
    return as_transformers(checkpoint)


@pytest.mark.weights
def test_the_default_model_is_described_in_full(checkpoint: Checkpoint) -> None:
    spec = checkpoint.spec
    _, a = next(spec.attentions())
    assert (len(spec.layers), spec.d_model, spec.n_vocab) == (30, 576, 49152)
    assert (a.n_heads, a.n_kv_heads, a.head_dim) == (9, 3, 64)
    assert (spec.context_len, spec.tied_head, spec.notes) == (8192, True, ())
    assert (checkpoint.eos_token_ids, checkpoint.bos_token_id) == ((2,), 1)


@pytest.mark.weights
def test_logits_over_prose_are_those_of_transformers(
    checkpoint: Checkpoint, model: LlamaForCausalLM
) -> None:
    ids = load_tokenizer(checkpoint.metadata).encode(PROSE, add_special=False)[:256]
    assert len(ids) == 256
    ours = Paged(checkpoint, 1, 256)([ids])[0]
    np.testing.assert_allclose(ours, logits_of(model, ids), atol=1e-3, rtol=0)


@pytest.mark.weights
def test_greedy_continuations_are_those_of_transformers(
    checkpoint: Checkpoint, model: LlamaForCausalLM
) -> None:
    tokenizer = load_tokenizer(checkpoint.metadata)
    asked = "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"
    prompts = [tokenizer.encode(asked.format(q), add_special=False) for q in QUESTIONS]
    # One batch without padding: the longer prompts lose their first tokens.
    length = min(map(len, prompts))
    prompts = [prompt[-length:] for prompt in prompts]
    tokens = Paged(checkpoint, len(prompts), length + 64).greedy(prompts, 64)
    check_greedy(model, prompts, tokens)
    assert "Paris" in tokenizer.decode(tokens[0].tolist(), skip_special=True)
