"""The composition root: from what a user chose to a running engine."""

from __future__ import annotations

import secrets
import sys
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from tenure.backend.base import Backend, BackendSettings, Executor
from tenure.backend.registry import find_backend, foreign_backend
from tenure.core.clock import MonotonicClock
from tenure.core.config import EngineConfig, EngineSettings
from tenure.core.info import ModelInfo
from tenure.core.progress import Progress
from tenure.engine.message_client import MessageClient
from tenure.engine.place import KvBytes
from tenure.engine.text import Text, load_text
from tenure.engine.wire import Wiring, launch
from tenure.kv.spec import KvSpec
from tenure.model.default import default_model_path
from tenure.model.load import Checkpoint, CheckpointFormat, load_checkpoint
from tenure.runner.adapters import ModelAdapters
from tenure.runner.batch import Outlets
from tenure.runner.memory import free_memory_bytes
from tenure.runner.runner import Runner
from tenure.runner.sizing import KvWish, size_kv
from tenure.session.journal import Journal, NoJournal
from tenure.store.journal import open_journal
from tenure.store.pages import open_tier

STEP_TOKENS = 256
"""Tokens of a step: enough for the kernels to reach full speed on prefill, few enough that the
first of several prompts is not held up by the last.
"""

MIXED_TOKENS = 64
"""Prefill in a step in which others decode; it bounds their time between tokens."""


def quiet(what: str, done: int, total: int) -> None:
    """A Progress that says nothing."""


def start_engine(settings: EngineSettings, progress: Progress = quiet) -> MessageClient:
    """Load the model, size the KV cache, and start the engine's thread.

    Raises ModelError and ConfigError, with what to do next.
    """
    return launch(build(settings, progress))


def locate(settings: EngineSettings, progress: Progress) -> tuple[EngineSettings, Checkpoint]:
    """The model's files, fetched if need be; and settings that name just these.

    Several engines that are built from these settings, one after the other, are the same.
    Raises ModelError.
    """
    checkpoint = load_checkpoint(_where(settings.model, progress), progress=progress)
    settings = replace(
        settings,
        model=str(checkpoint.path),
        served_model_name=_name(settings, checkpoint),
        seed=secrets.randbits(63) if settings.seed is None else settings.seed,
    )
    return settings, checkpoint


def build(settings: EngineSettings, progress: Progress = quiet) -> Wiring:
    """Everything that `start_engine` starts, not running yet."""
    settings, checkpoint = locate(settings, progress)
    text = load_text(checkpoint)
    model = _model_info(settings, checkpoint, text)
    # Before the weights are prepared: a folder that cannot be used is told at once.
    journal = NoJournal() if settings.journal is None else open_journal(settings.journal, model)
    with ExitStack() as undo:
        undo.callback(journal.close)
        wiring = _wiring(settings, checkpoint, (text, model, journal), progress)
        undo.pop_all()
    return wiring


def _wiring(
    settings: EngineSettings,
    checkpoint: Checkpoint,
    known: tuple[Text, ModelInfo, Journal],
    progress: Progress,
) -> Wiring:
    text, model, journal = known
    executor = _backend(settings, checkpoint).load(
        checkpoint.spec,
        checkpoint.weights,
        BackendSettings(settings.device, settings.dtype, settings.kv_dtype, settings.threads),
        progress,
    )
    step_tokens = STEP_TOKENS if settings.step_tokens is None else settings.step_tokens
    config = _config(settings, step_tokens)
    kv = _kv_spec(executor, checkpoint, config, settings)
    outlets = Outlets(checkpoint.spec.d_model, model.n_layers, model.n_experts_used)
    runner = Runner(executor, kv, outlets)
    page_format = " ".join(
        (model.fingerprint, executor.page_format(), f"page_size={kv.page_size}", sys.byteorder)
    )
    tier = None
    if settings.journal is not None:
        tier = open_tier(settings.journal, model.fingerprint, page_format)
    return Wiring(
        runner=runner,
        kv=kv,
        kv_bytes=KvBytes(executor, executor.kv_bytes_per_page(kv.page_size), page_format, tier),
        config=config,
        model=model,
        text=text,
        backend=executor.describe(),
        clock=MonotonicClock(),
        journal=journal,
        shelf=ModelAdapters(executor, checkpoint.spec),
        adapters=settings.adapters,
        hidden_size=checkpoint.spec.d_model,
    )


def _backend(settings: EngineSettings, checkpoint: Checkpoint) -> Backend:
    match checkpoint.format:
        case CheckpointFormat.GGUF | CheckpointFormat.HF:
            return find_backend(settings.backend)
        case CheckpointFormat.FOREIGN:
            return foreign_backend(settings.backend, checkpoint.path)


def _where(model: str | None, progress: Progress) -> str | Path:
    if model is not None:
        return model
    return default_model_path(lambda done, total: progress("Fetching the model", done, total))


def _config(settings: EngineSettings, step_tokens: int) -> EngineConfig:
    assert settings.seed is not None, "settings that were located have a seed"
    return EngineConfig(
        step_tokens=step_tokens,
        mixed_tokens=min(MIXED_TOKENS, step_tokens),
        max_running=settings.max_running,
        max_queue=settings.max_queue,
        order=settings.order,
        seed=settings.seed,
    )


def _kv_spec(
    executor: Executor, checkpoint: Checkpoint, config: EngineConfig, settings: EngineSettings
) -> KvSpec:
    wish = KvWish(
        settings.page_size,
        settings.max_kv_tokens,
        config.max_running,
        config.step_tokens,
        settings.recurrent_checkpoints,
    )
    page_bytes = executor.kv_bytes_per_page(settings.page_size)
    return size_kv(checkpoint.spec, page_bytes, wish, free_memory_bytes())


def _name(settings: EngineSettings, checkpoint: Checkpoint) -> str:
    return settings.served_model_name or settings.model or checkpoint.path.stem


def _model_info(settings: EngineSettings, checkpoint: Checkpoint, text: Text) -> ModelInfo:
    return ModelInfo(
        name=_name(settings, checkpoint),
        path=str(checkpoint.path),
        family=checkpoint.spec.family,
        fingerprint=checkpoint.weights.fingerprint,
        n_vocab=checkpoint.spec.n_vocab,
        context_len=checkpoint.spec.context_len,
        has_chat_template=text.chat is not None,
        n_layers=len(checkpoint.spec.layers),
        n_experts_used=checkpoint.spec.n_experts_used,
    )
