"""Architectures that this build has no reader for, run by transformers over our paged KV.

What such a model looks like is found out by running it once without weights, with an attention
function of ours that writes down what it is asked for. It is taken where every layer attends
exactly once, and nothing else keeps state.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from tenure.core.errors import ModelError
from tenure.model.families.base import with_groups
from tenure.model.families.settings import Settings
from tenure.model.spec import AttentionSpec, LayerSpec, ModelSpec
from tenure.model.weights.base import StoredTensor
from tenure.model.weights.mapped import map_file

Attend: TypeAlias = Callable[..., Any]
"""(module, q [1, heads, n, head_dim], k, v, mask, **options) to ([1, n, heads, head_dim], None)."""

MOVING_ROPES = ("dynamic", "longrope")
"""Kinds of rotary scaling that depend on how long the batch is."""

FAILURES = (
    AttributeError,
    KeyError,
    ModelError,
    OSError,
    RuntimeError,
    TypeError,
    ValueError,
)
"""What foreign code raises for a model that it does not know, or that is of another kind."""


@dataclass(frozen=True, slots=True)
class ForeignWeights:
    """The files of a folder, which transformers reads itself."""

    folder: Path

    def names(self) -> Iterable[str]:
        return ()

    def get(self, name: str) -> StoredTensor:
        raise ModelError(f"{self.folder}: only transformers reads its weights, also {name}")

    @property
    def fingerprint(self) -> str:
        """32 hex digits over config.json and all bytes of the weights."""
        total = hashlib.blake2b(digest_size=16)
        for path in (self.folder / "config.json", *sorted(self.folder.glob("*.safetensors"))):
            total.update(map_file(path).data)
        return total.hexdigest()


def foreign_spec(folder: Path, config: Mapping[str, object], refused: ModelError) -> ModelSpec:
    """The parts of a model that transformers knows and this build does not.

    Raises ModelError with what `refused` says, and why transformers does not help: it is not
    installed, does not know the architecture either, or the model is not all attention.
    """
    try:
        from transformers import AutoConfig, AutoModelForCausalLM
    except ImportError as error:
        advice = "tenure[hf] would run others of full or sliding attention through transformers"
        raise ModelError(f"{refused.message}; {advice}") from error
    import torch

    asked: dict[int, AttentionSpec] = {}
    try:
        settings = AutoConfig.from_pretrained(folder, trust_remote_code=False)
        with attention_as("tenure_probe", _recorder(asked)), torch.device("meta"):
            model = AutoModelForCausalLM.from_config(settings, attn_implementation="tenure_probe")
            with torch.no_grad():
                ids, positions = torch.zeros((1, 2), dtype=torch.long), torch.arange(2)[None]
                model(ids, position_ids=positions, use_cache=False)
        _check(Settings(str(folder / "config.json"), config), model, sorted(asked))
        return ModelSpec(
            family=type(model).__name__,
            n_vocab=settings.vocab_size,
            d_model=settings.hidden_size,
            context_len=settings.max_position_embeddings,
            layers=with_groups([LayerSpec((asked[index],), None) for index in sorted(asked)]),
            norm_eps=1e-6,
            tied_head=True,
            notes=(f"{folder}: run by transformers on the reference backend's paged KV",),
        )
    except FAILURES as error:
        reason = str(error).strip().split("\n")[0]
        raise ModelError(f"{refused.message}; nor through transformers: {reason}") from error


@contextmanager
def attention_as(name: str, attend: Attend) -> Iterator[None]:
    """While it lasts, transformers finds `attend` under `name`."""
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    ALL_ATTENTION_FUNCTIONS[name] = attend
    try:
        yield
    finally:
        del ALL_ATTENTION_FUNCTIONS[name]


def _recorder(asked: dict[int, AttentionSpec]) -> Attend:
    """Notes by layer what is asked, and answers with the queries."""

    def attend(module: Any, q: Any, k: Any, v: Any, _mask: object, **options: Any) -> Any:
        if k.shape != v.shape:
            raise ValueError("keys and values of unlike shapes are not paged")
        if module.layer_idx in asked:
            raise ValueError(f"layer {module.layer_idx} attends twice")
        head_dim = q.shape[-1]
        asked[module.layer_idx] = AttentionSpec(
            n_heads=q.shape[1],
            n_kv_heads=k.shape[1],
            head_dim=head_dim,
            scale=options.get("scaling") or head_dim**-0.5,
            rope=None,
            window=options.get("sliding_window"),
            softcap=options.get("softcap"),
            sinks=options.get("s_aux") is not None,
        )
        return q.transpose(1, 2), None

    return attend


def _check(config: Settings, model: Any, layers: Sequence[int]) -> None:
    n_layers = model.config.num_hidden_layers
    if list(layers) != list(range(n_layers)):
        raise ModelError(f"{len(layers)} of its {n_layers} layers attend where KV can be paged")
    if model._is_stateful:
        raise ModelError("its layers keep other state than keys and values")
    for key in ("rope_parameters", "rope_scaling"):
        rope = config.section(key)
        kind = rope.text_or("rope_type", rope.text_or("type", "default"))
        if kind in MOVING_ROPES:
            raise ModelError(f"rope type {kind} depends on the length of the batch")
