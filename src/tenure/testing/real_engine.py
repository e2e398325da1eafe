"""A stepped engine over a real executor: what the server runs, less the thread and the network."""

from __future__ import annotations

from tenure.backend.base import Executor
from tenure.core.clock import ManualClock
from tenure.core.config import EngineConfig
from tenure.core.info import ModelInfo
from tenure.engine.place import KvBytes
from tenure.engine.text import Text
from tenure.engine.wire import Wiring
from tenure.kv.spec import FullGroup, Group, KvSpec, RecurrentGroup, SlidingGroup
from tenure.kv.tier import PageTier
from tenure.model.spec import ModelSpec
from tenure.runner.adapters import ModelAdapters
from tenure.runner.batch import Outlets
from tenure.runner.runner import Runner
from tenure.runner.sizing import kv_groups
from tenure.testing.byte_tokenizer import byte_text
from tenure.testing.stepped import SteppedEngine


class RealEngine(SteppedEngine):
    """Owns `executor` from here on; `close` frees it. `text` defaults to the byte tokenizer."""

    def __init__(
        self,
        executor: Executor,
        spec: ModelSpec,
        kv: KvSpec,
        config: EngineConfig,
        text: Text | None = None,
        tier: PageTier | None = None,
    ) -> None:
        text = text or byte_text(spec.n_vocab)
        clock = ManualClock()
        wiring = Wiring(
            runner=Runner(
                executor, kv, Outlets(spec.d_model, len(spec.layers), spec.n_experts_used)
            ),
            kv=kv,
            kv_bytes=KvBytes(
                executor,
                executor.kv_bytes_per_page(kv.page_size),
                f"tiny {executor.page_format()} {kv.page_size}",
                tier,
            ),
            config=config,
            model=ModelInfo(
                name="tiny",
                path="tiny",
                family=spec.family,
                fingerprint="tiny",
                n_vocab=spec.n_vocab,
                context_len=spec.context_len,
                has_chat_template=False,
                n_layers=len(spec.layers),
                n_experts_used=spec.n_experts_used,
            ),
            text=text,
            backend=executor.describe(),
            clock=clock,
            shelf=ModelAdapters(executor, spec),
            hidden_size=spec.d_model,
        )
        super().__init__(wiring, clock)
        self._executor = executor

    def close(self) -> None:
        self._executor.close()


def tight_kv(spec: ModelSpec, page_size: int, n_tokens: int) -> KvSpec:
    """A cache in which one sequence of `n_tokens` just fits; windows get no more than four, and
    running states with their checkpoints no more than eight.
    """
    n_pages = -(-n_tokens // page_size)
    groups: list[Group] = []
    for kind in kv_groups(spec):
        match kind:
            case FullGroup():
                groups.append(FullGroup(n_pages))
            case SlidingGroup(window=window):
                least = 4 * (-(-window // page_size) + 1)
                groups.append(SlidingGroup(min(n_pages, least), window))
            case RecurrentGroup():
                groups.append(RecurrentGroup(8, 4 * page_size))
    return KvSpec(page_size, tuple(groups))
