"""What sessions hold by the kinds of a model's layers, as a running server tells it."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, cast

from _http import exchange
from _tenure import TenureSettings, running_tenure
from tenure.client import Client
from tenure.client.types import Pool
from tenure.testing.byte_vocabulary import N_VOCAB
from tenure.testing.tiny_models import write_configured

LENGTHS = (256, 512, 1024, 2048)
WINDOW = 128
STEP_TOKENS = 256
N_OUTPUT = 8
SIZES: dict[str, object] = {
    "vocab_size": N_VOCAB,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-5,
}
GEMMA: dict[str, object] = {
    "query_pre_attn_scalar": 32,
    "hidden_activation": "gelu_pytorch_tanh",
    "sliding_window": WINDOW,
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
}
GRANITE: dict[str, object] = {
    "shared_intermediate_size": 96,
    "layer_types": ["mamba", "attention", "mamba"],
    "mamba_n_heads": 6,
    "mamba_expand": 1.5,
    "mamba_d_head": 16,
    "mamba_n_groups": 2,
    "mamba_d_state": 24,
    "mamba_d_conv": 4,
}
MODELS: dict[str, dict[str, object]] = {
    "full (Llama)": {"architectures": ["LlamaForCausalLM"]},
    f"sliding, window {WINDOW} (Mistral)": {
        "architectures": ["MistralForCausalLM"],
        "sliding_window": WINDOW,
    },
    f"two sliding, window {WINDOW}, one full (Gemma 3)": {
        "architectures": ["Gemma3ForCausalLM"],
        **GEMMA,
    },
    "two Mamba-2, one full (Granite 4)": {
        "architectures": ["GraniteMoeHybridForCausalLM"],
        **GRANITE,
    },
}


@dataclass(frozen=True, slots=True)
class Held:
    """What one session holds at each of LENGTHS, and the server's checkpoints of its states."""

    model: str
    pools: Sequence[Pool]
    checkpoint_bytes: Sequence[int]


def held(model: str, backend: str) -> Held:
    """Grow one session through LENGTHS on a server of its own."""
    rng, pools, checkpoints = Random(0), list[Pool](), list[int]()
    with _served(MODELS[model], backend) as address, Client(address) as client:
        session = client.open("s")
        for n_before, n in zip((0, *LENGTHS), LENGTHS, strict=False):
            ids = [rng.randrange(256) for _ in range(n - n_before - N_OUTPUT)]
            session.turn(ids, temperature=0, max_new_tokens=N_OUTPUT, ignore_eos=True)
            pool = session.info().kv.pool
            pools.append(pool)
            checkpoints.append(_checkpoint_bytes(address))
    return Held(model, pools, checkpoints)


@contextmanager
def _served(config: dict[str, object], backend: str) -> Iterator[str]:
    flags = (
        f"--step-tokens={STEP_TOKENS}",
        "--recurrent-checkpoints=64",
        "--max-running=8",
        f"--backend={backend}",
    )
    with tempfile.TemporaryDirectory() as folder:
        model = write_configured(Path(folder), SIZES | config)
        settings = TenureSettings(model, max_kv_tokens=1 << 15, threads=1, flags=flags)
        with running_tenure("tenure", settings) as server:
            yield server.address


def _checkpoint_bytes(address: str) -> int:
    """States that the prefix tree keeps; they are no session's, and may go at any time."""
    info = cast("dict[str, Any]", asyncio.run(exchange(address, "/server_info")).json())
    (state,) = info["internal_states"]
    return sum(
        group["n_tree"] * group["page_bytes"]
        for group in state["groups"]
        if group["kind"] == "recurrent"
    )


def print_held(backend: str) -> None:
    """A row for each group's pages, and one for the bytes of them all."""
    print("| a session's pages, 3 layers | " + " | ".join(map(str, LENGTHS)) + " tokens |")
    print("|---" * (1 + len(LENGTHS)) + "|")
    for model in MODELS:
        found = held(model, backend)
        for at, group in enumerate(found.pools[0].groups):
            counts = [
                pool.groups[at].private_pages + pool.groups[at].shared_pages for pool in found.pools
            ]
            _row(f"{model}: {group.kind}, {group.page_bytes:,} bytes each", counts)
        _row(f"{model}: bytes", [pool.bytes for pool in found.pools])
        if any(found.checkpoint_bytes):
            _row(f"{model}: bytes of checkpoints in the tree", found.checkpoint_bytes)


def _row(what: str, numbers: Sequence[int]) -> None:
    print(f"| {what} | " + " | ".join(f"{number:,}" for number in numbers) + " |")
