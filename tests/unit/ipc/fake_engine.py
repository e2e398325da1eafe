"""An engine over a fake model, as a process of its own; `model` says how it behaves."""

from __future__ import annotations

import os
import sys
import threading
from dataclasses import replace
from pathlib import Path

from tenure.core.clock import MonotonicClock
from tenure.core.config import EngineSettings
from tenure.core.errors import ModelError
from tenure.core.plan import Plan, Result
from tenure.core.progress import Progress
from tenure.engine.ipc.child import run
from tenure.engine.wire import Wiring
from tenure.model.chat_template import CHATML
from tenure.store.journal import open_journal
from tenure.testing.fake_runner import FakeRunner
from tenure.testing.harness import FakeSetup


class FallingRunner(FakeRunner):
    """Ends the engine's thread in the third step."""

    def execute(self, plan: Plan) -> Result:
        if self.n_steps == 3:
            raise KeyboardInterrupt
        return super().execute(plan)


class LaterClock(MonotonicClock):
    """A day later."""

    def wall(self) -> float:
        return super().wall() + 86_400.0


def build(settings: EngineSettings, progress: Progress) -> Wiring:
    """`good`; `bad` cannot be loaded; `dead` ends while it loads; `falls` ends in a step.

    `once-bad`, `once-other`, `once` and `later` are good the first time; then bad, another model,
    never ready, and a day later.
    """
    progress("Loading", 1, 2)
    assert settings.model is not None
    assert settings.served_model_name is not None
    seen = Path(settings.served_model_name)
    first = not seen.exists()
    seen.touch()
    match settings.model:
        case "dead":
            os._exit(9)
        case "bad":
            raise ModelError("this model is bad")
        case "once" if not first:
            threading.Event().wait()
        case "once-bad" if not first:
            raise ModelError("this model has become bad")
        case _:
            pass
    setup = FakeSetup(n_pages=2**16, template=CHATML)
    kind = FallingRunner if settings.model == "falls" else FakeRunner
    runner = kind(setup.kv_spec(), setup.model, verify_all=False)
    later = settings.model == "later" and not first
    wiring = setup.wiring(runner, LaterClock() if later else MonotonicClock())
    if settings.model == "once-other" and not first:
        wiring = replace(wiring, model=replace(wiring.model, fingerprint="other"))
    if settings.journal is not None:
        wiring = replace(wiring, journal=open_journal(settings.journal, wiring.model))
    return wiring


if __name__ == "__main__":
    sys.exit(run(Path(sys.argv[1]), sys.argv[2], build))
