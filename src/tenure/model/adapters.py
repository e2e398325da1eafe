"""Low-rank adapters in PEFT's format (LoRA, Hu et al., arXiv:2106.09685), as data.

A folder holds `adapter_config.json` and `adapter_model.safetensors`. An adapter adds to the linear
map y = W x of a module

    scale * B (A x)        scale = alpha / r, or alpha / sqrt(r) with `use_rslora`

for A [r, n_in] and B [n_out, r]. What the tensors do not say comes from the configuration; whatever
else it asks for is refused by name.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import numpy as np
import numpy.typing as npt
import re2  # pyright: ignore[reportMissingTypeStubs]

from tenure.core.errors import ModelError
from tenure.model.families.settings import Settings
from tenure.model.parameters import parameter_shapes
from tenure.model.spec import ModelSpec
from tenure.model.weights.base import StoredTensor
from tenure.model.weights.dequant import dequantise
from tenure.model.weights.safetensors import read_safetensors

F32 = npt.NDArray[np.float32]

CONFIG = "adapter_config.json"
WEIGHTS = "adapter_model.safetensors"
PREFIX = "base_model.model."
"""What PEFT puts before the module names of the model that it wrapped."""

SIDES = {"lora_A.weight": "a", "lora_B.weight": "b"}

MODULES = {
    "q": "self_attn.q_proj",
    "k": "self_attn.k_proj",
    "v": "self_attn.v_proj",
    "o": "self_attn.o_proj",
    "gate": "mlp.gate_proj",
    "up": "mlp.up_proj",
    "down": "mlp.down_proj",
}
"""What may be adapted in a layer: last parts of canonical names, and their modules."""

MAX_RANK = 1024

NEUTRAL: dict[str, tuple[object, ...]] = {
    "peft_type": ("LORA",),
    "bias": ("none",),
    "fan_in_fan_out": (False,),
    "use_dora": (False,),
    "lora_bias": (False,),
    "use_qalora": (False,),
    "init_lora_weights": (True, False, "gaussian", "eva", "orthogonal"),
}
"""Keys that would change the arithmetic, with the values that do not."""

HARMLESS = (
    "auto_mapping",
    "base_model_name_or_path",
    "ensure_weight_tying",
    "eva_config",
    "exclude_modules",
    "inference_mode",
    "layers_pattern",
    "layers_to_transform",
    "lora_dropout",
    "megatron_core",
    "peft_version",
    "qalora_group_size",
    "revision",
    "target_modules",
    "task_type",
)
"""Keys that say how the adapter was made, or which modules it has: the tensors say that too."""

EMPTY: tuple[object, ...] = (None, False, "", [], {})


@dataclass(frozen=True, slots=True, eq=False)
class LowRank:
    """What is added to one linear map: `a` float32 [rank, n_in], `b` float32 [n_out, rank]."""

    a: F32
    b: F32
    scale: float

    @property
    def rank(self) -> int:
        return len(self.a)


@dataclass(frozen=True, slots=True, eq=False)
class Adapter:
    """An adapter that was read and checked; `maps` has its parts by canonical names of weights.

    `fingerprint` is 32 hex digits over all that decides the arithmetic.
    """

    fingerprint: str
    maps: Mapping[str, LowRank]

    @property
    def rank(self) -> int:
        """The largest of its maps."""
        return max((part.rank for part in self.maps.values()), default=0)

    @property
    def size_bytes(self) -> int:
        return sum(part.a.nbytes + part.b.nbytes for part in self.maps.values())


def read_adapter(folder: Path, spec: ModelSpec) -> Adapter:
    """Read a PEFT folder for a model; tensors become float32 copies.

    Raises ModelError, naming the file and the key or tensor, for what is damaged, does not fit the
    model, or is not computed here.
    """
    scales = _Scales(_settings(folder / CONFIG))
    places = _places(spec)
    path = folder / WEIGHTS
    maps: dict[str, LowRank] = {}
    for module, sides in _by_module(path, read_safetensors(path)).items():
        place = _place(path, module, places)
        if place.name in maps:
            raise ModelError(f"{path}: two modules stand for {place.name}")
        maps[place.name] = _low_rank(path, place, sides, scales)
    if not maps:
        raise ModelError(f"{path}: holds no adapted module")
    return Adapter(_fingerprint(maps), maps)


def _settings(path: Path) -> Settings:
    try:
        value = json.loads(path.read_bytes())
    except OSError as error:
        raise ModelError(
            f"{path}: cannot be read ({error.strerror}); an adapter is a folder with {CONFIG} and "
            f"{WEIGHTS}"
        ) from error
    except ValueError as error:
        raise ModelError(f"{path}: not JSON: {error}") from error
    if type(value) is not dict:
        raise ModelError(f"{path}: must hold a JSON object")
    values = cast("dict[str, object]", value)
    config = Settings(str(path), values)
    config.require_neutral(NEUTRAL)
    return config


class _Scales:
    """Rank and scale of each module, from the configuration; every other key must be neutral."""

    def __init__(self, config: Settings) -> None:
        self._config = config
        self._rank = config.integer("r")
        self._alpha = config.number("lora_alpha")
        self._ranks = _patterns(config, "rank_pattern")
        self._alphas = _patterns(config, "alpha_pattern")
        self._rooted = config.flag_or("use_rslora", False)
        for key in config.unread(HARMLESS):
            config.require(key, EMPTY)

    def rank(self, module: str) -> float:
        return _matching(self._ranks, module, self._rank)

    def scale(self, module: str) -> float:
        rank, alpha = self.rank(module), _matching(self._alphas, module, self._alpha)
        return alpha / (math.sqrt(rank) if self._rooted else rank)


def _patterns(config: Settings, key: str) -> list[tuple[str, float]]:
    """RE2 patterns of whole module names, in order. PEFT's stand for trailing parts of a name."""
    section = config.section(key)
    found: list[tuple[str, float]] = []
    for pattern in section.unread(()):
        whole = rf"(?:.*\.)?(?:{pattern})"
        try:
            re2.compile(whole)
        except re2.error as error:
            raise ModelError(f"{config.where}: {key}: {pattern!r} is no pattern") from error
        found.append((whole, section.number(pattern)))
    return found


def _matching(patterns: list[tuple[str, float]], module: str, default: float) -> float:
    """The value of the first pattern that matches."""
    return next((value for pattern, value in patterns if re2.fullmatch(pattern, module)), default)


def _by_module(
    path: Path, tensors: Mapping[str, StoredTensor]
) -> dict[str, dict[str, StoredTensor]]:
    """Both sides of each module. Raises ModelError for a tensor that is none of the two."""
    found: dict[str, dict[str, StoredTensor]] = {}
    for name, tensor in tensors.items():
        module, side = _split(name.removeprefix(PREFIX))
        if side is None:
            raise ModelError(
                f"{path}: {name} is not computed here; an adapter may hold lora_A and lora_B of "
                "linear maps, and nothing else"
            )
        found.setdefault(module, {})[side] = tensor
    return found


def _split(name: str) -> tuple[str, str | None]:
    for suffix, side in SIDES.items():
        if name.endswith(f".{suffix}"):
            return name.removesuffix(f".{suffix}"), side
    return name, None


@dataclass(frozen=True, slots=True)
class _Place:
    """A linear map that may be adapted: its module, its canonical name, its shape [n_out, n_in]."""

    module: str
    name: str
    shape: tuple[int, ...]


def _places(spec: ModelSpec) -> dict[str, _Place]:
    """By the modules' names in Hugging Face's checkpoints."""
    places: dict[str, _Place] = {}
    for name, shape in parameter_shapes(spec).items():
        match name.split("."):
            case ["layers", layer, part] if part in MODULES:
                module = f"model.layers.{layer}.{MODULES[part]}"
                places[module] = _Place(module, name, shape)
            case _:
                pass
    return places


def _place(path: Path, module: str, places: Mapping[str, _Place]) -> _Place:
    # An adapter made on the model without its head leaves the outermost name out.
    for known in (module, f"model.{module}"):
        if known in places:
            return places[known]
    raise ModelError(
        f"{path}: {module} cannot be adapted here; adapters may change {', '.join(MODULES)} of "
        "the model's layers"
    )


def _low_rank(
    path: Path, place: _Place, sides: Mapping[str, StoredTensor], scales: _Scales
) -> LowRank:
    module, (n_out, n_in) = place.module, place.shape
    if len(sides) != 2:
        raise ModelError(f"{path}: {module} has only one of lora_A and lora_B")
    rank = scales.rank(module)
    if not 1 <= rank <= MAX_RANK:
        raise ModelError(f"{path}: {module} must have a rank in [1, {MAX_RANK}], got {rank:g}")
    for side, wanted in (("a", (rank, n_in)), ("b", (n_out, rank))):
        if sides[side].shape != wanted:
            raise ModelError(
                f"{path}: lora_{side.upper()} of {module} has shape {list(sides[side].shape)}, but "
                f"the model and a rank of {rank:g} call for {[int(n) for n in wanted]}"
            )
    a, b = (_values(path, module, sides[side]) for side in ("a", "b"))
    return LowRank(a, b, scales.scale(module))


def _values(path: Path, module: str, stored: StoredTensor) -> F32:
    values = np.array(dequantise(stored), np.float32, order="C")
    if not np.isfinite(values).all():
        raise ModelError(f"{path}: {module} holds a NaN or an infinity")
    return values


def _fingerprint(maps: Mapping[str, LowRank]) -> str:
    total = hashlib.blake2b(digest_size=16)
    for part in _facts(maps):
        total.update(part)
    return total.hexdigest()


def _facts(maps: Mapping[str, LowRank]) -> Iterator[bytes]:
    for name in sorted(maps):
        part = maps[name]
        yield repr((name, part.a.shape, part.b.shape, part.scale)).encode()
        yield part.a.tobytes()
        yield part.b.tobytes()
