"""Models that transformers computes, with the reference backend's paged KV under its attention."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor

from tenure.backend.base import BackendSettings
from tenure.backend.reference import ReferenceExecutor, arithmetic_for
from tenure.backend.reference_layers import slots_in_groups
from tenure.backend.reference_load import Arithmetic, Linear, Step
from tenure.backend.reference_ops import attend
from tenure.core.progress import Progress
from tenure.model.foreign import attention_as
from tenure.model.spec import ModelSpec
from tenure.model.weights.base import WeightSource


class ForeignDecoder:
    """A model of transformers in the place of `reference.Decoder`."""

    def __init__(self, folder: Path, spec: ModelSpec, arithmetic: Arithmetic) -> None:
        from transformers import AutoModelForCausalLM

        self.spec = spec
        # Of its own, since two engines of a process may compute at once.
        self._name = f"tenure_paged_{id(self)}"
        with attention_as(self._name, self._attend):
            self._model: Any = AutoModelForCausalLM.from_pretrained(
                folder,
                dtype=arithmetic.dtype,
                attn_implementation=self._name,
                trust_remote_code=False,
                use_safetensors=True,
            )
        self._model.to(arithmetic.device).eval()
        self._attentions = dict(spec.attentions())
        self._slots = [slot for (slot,) in slots_in_groups(spec)]
        self.n_bytes = sum(weight.nbytes for weight in self._model.parameters())

    @property
    def linears(self) -> Mapping[str, Linear]:
        """None: transformers computes them by itself."""
        return {}

    def __call__(
        self, tokens: Tensor, step: Step, logits_at: Tensor, hidden_at: Tensor
    ) -> tuple[Tensor, Tensor]:
        """See `reference.Forward`."""
        with attention_as(self._name, partial(self._attend, step=step)):
            out = self._model(
                tokens[None],
                position_ids=step.positions[None],
                use_cache=False,
                logits_to_keep=logits_at,
                output_hidden_states=len(hidden_at) > 0,
            )
        # The last entry stands behind the final norm.
        return out.logits[0], out.hidden_states[-1][0, hidden_at] if len(hidden_at) else hidden_at

    def _attend(
        self,
        module: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        _mask: object,
        *,
        step: Step,
        **more: Any,
    ) -> tuple[Tensor, None]:
        spec, slot = self._attentions[module.layer_idx], self._slots[module.layer_idx]
        group = step.groups[spec.group]
        group.kv.write(slot, group.writes, k[0].transpose(0, 1), v[0].transpose(0, 1))
        mixed = attend(q[0].transpose(0, 1), group, slot, spec, more.get("s_aux"))
        return mixed[None], None


class ForeignBackend:
    """Loads one folder, whatever the weights it is given."""

    name = "reference"

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def load(
        self,
        spec: ModelSpec,
        weights: WeightSource,  # noqa: ARG002 - transformers reads its own
        settings: BackendSettings,
        progress: Progress,
    ) -> ReferenceExecutor:
        """Settings are those of the reference backend."""
        arithmetic, kv_dtype = arithmetic_for(settings)
        decoder = ForeignDecoder(self._folder, spec, arithmetic)
        progress("weights", 1, 1)
        return ReferenceExecutor(decoder, arithmetic, kv_dtype, decoder.n_bytes)
