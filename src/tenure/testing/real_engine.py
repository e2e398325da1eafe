"""A stepped engine over a real executor: what the server runs, less the thread and the network."""

from __future__ import annotations

from tenure.backend.base import Executor
from tenure.core.clock import ManualClock
from tenure.core.config import EngineConfig
from tenure.core.info import ModelInfo
from tenure.engine.text import Text
from tenure.engine.wire import Wiring
from tenure.kv.spec import FullGroup, KvSpec, SlidingGroup
from tenure.model.spec import ModelSpec
from tenure.runner.runner import Runner
from tenure.runner.sizing import kv_groups
from tenure.testing.byte_tokenizer import ByteTokenizer
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
    ) -> None:
        text = text or Text(ByteTokenizer(spec.n_vocab), None)
        clock = ManualClock()
        wiring = Wiring(
            runner=Runner(executor, kv),
            kv=kv,
            config=config,
            model=ModelInfo(
                name="tiny",
                path="tiny",
                family=spec.family,
                fingerprint="tiny",
                n_vocab=spec.n_vocab,
                context_len=spec.context_len,
                has_chat_template=False,
            ),
            text=text,
            eos_ids=text.tokenizer.eos_ids,
            backend=executor.describe(),
            page_bytes=executor.kv_bytes_per_page(kv.page_size),
            clock=clock,
        )
        super().__init__(wiring, clock)
        self._executor = executor

    def close(self) -> None:
        self._executor.close()


def tight_kv(spec: ModelSpec, page_size: int, n_tokens: int) -> KvSpec:
    """A cache in which one sequence of `n_tokens` just fits; windows get no more than four."""
    n_pages = -(-n_tokens // page_size)
    groups: list[FullGroup | SlidingGroup] = []
    for window in kv_groups(spec):
        if window is None:
            groups.append(FullGroup(n_pages))
        else:
            least = 4 * (-(-window // page_size) + 1)
            groups.append(SlidingGroup(min(n_pages, least), window))
    return KvSpec(page_size, tuple(groups))
