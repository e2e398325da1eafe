"""What sessions hold on tiny models of full, sliding and recurrent layers, and what checkpoints of
running states are worth.

    python bench/hybrid.py [--backend reference]

First the pages and bytes of one session by its length, as running servers tell them, for models of
one kind of layer and of two. The rest runs in an engine of this process: a session of 2,000 tokens
whose turn is aborted, or which is rewound, and how much is then computed again, with checkpoints
and without; and conversations that share system prompts, and what part of their prompts is found in
the cache, for several numbers of states kept.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from random import Random

from _held import print_held
from tenure.backend.base import BackendSettings
from tenure.backend.registry import find_backend
from tenure.core.config import EngineConfig
from tenure.core.params import SamplingParams
from tenure.core.turns import SessionRef
from tenure.kv.spec import RecurrentGroup
from tenure.runner.sizing import KvWish, size_kv
from tenure.testing.dict_weights import DictWeights
from tenure.testing.real_engine import RealEngine
from tenure.testing.tiny_specs import MAMBA, heads, mixed

SPEC = replace(
    mixed((MAMBA,), (heads(),), (MAMBA,)), n_vocab=264, context_len=4096, family="tiny hybrid"
)
NEW = SamplingParams(temperature=0.0, max_new_tokens=8, ignore_eos=True)
N_SESSION = 2000
N_RUNNING = 8
STEP_TOKENS = 256
N_SYSTEM, N_CONVERSATIONS, N_TURNS = 16, 64, 4
SYSTEM_TOKENS, TURN_TOKENS = 520, 150


def engine_with(n_checkpoints: int, backend: str) -> RealEngine:
    settings = BackendSettings("cpu", threads=1)
    weights = DictWeights.random(SPEC)
    executor = find_backend(backend).load(SPEC, weights, settings, lambda *_: None)
    wish = KvWish(16, 1 << 17, N_RUNNING, STEP_TOKENS, n_checkpoints)
    kv = size_kv(SPEC, executor.kv_bytes_per_page(16), wish, 1 << 34)
    config = EngineConfig(STEP_TOKENS, STEP_TOKENS, N_RUNNING)
    return RealEngine(executor, SPEC, kv, config)


def state_bytes(backend: str) -> int:
    engine = engine_with(0, backend)
    _, states = engine.parts.reporter.info().groups
    engine.close()
    return states.page_bytes


def ids(rng: Random, n: int) -> list[int]:
    return [rng.randrange(256) for _ in range(n)]


def recomputed(n_checkpoints: int, backend: str) -> dict[str, int]:
    """Tokens of the history that the turn after each event computes again."""
    engine, rng, found = engine_with(n_checkpoints, backend), Random(0), dict[str, int]()
    engine.open("s")
    engine.turn("first", ids(rng, N_SESSION), SessionRef("s"), NEW)

    engine.submit("aborted", ids(rng, 700), SessionRef("s", "first"), NEW)
    engine.engine.step()
    engine.engine.step()
    engine.engine.abort("aborted")
    engine.turn("after", ids(rng, 10), SessionRef("s", "first"), NEW)
    found["abort in the middle of a prompt"] = engine.finished["after"].usage.n_recomputed

    for offset in (1900, 1300, 700):
        turn = f"rewound to {offset}"
        engine.turn(turn, ids(rng, 10), SessionRef("s", "first", offset=offset), NEW)
        found[f"rewind from {N_SESSION} to {offset}"] = engine.finished[turn].usage.n_recomputed

    engine.engine.flush()
    engine.turn("evicted", ids(rng, 10), SessionRef("s", "first"), NEW)
    found["eviction of everything"] = engine.finished["evicted"].usage.n_recomputed
    engine.check()
    engine.close()
    return found


def hit_share(n_checkpoints: int, backend: str) -> float:
    """Cached tokens by prompt tokens, over conversations whose turns come in random order."""
    engine, rng = engine_with(n_checkpoints, backend), Random(1)
    systems = [ids(rng, SYSTEM_TOKENS) for _ in range(N_SYSTEM)]
    histories = [list(systems[n % N_SYSTEM]) for n in range(N_CONVERSATIONS)]
    order = list(range(N_CONVERSATIONS)) * N_TURNS
    rng.shuffle(order)
    n_prompt = n_cached = 0
    for number, who in enumerate(order):
        histories[who] += ids(rng, TURN_TOKENS)
        turn = f"t{number}"
        histories[who] += engine.turn(turn, histories[who], None, NEW)
        usage = engine.finished[turn].usage
        n_prompt += usage.n_prompt
        n_cached += usage.n_cached
    engine.check()
    engine.close()
    return n_cached / n_prompt


def checkpoint_interval(backend: str) -> int:
    engine = engine_with(1, backend)
    (every,) = [
        group.checkpoint_every
        for group in engine.parts.kv.spec.groups
        if type(group) is RecurrentGroup
    ]
    engine.close()
    return every


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--backend", default="auto", help="auto, native or reference")
    backend = parser.parse_args().backend
    print_held(backend)
    print()
    every, each = checkpoint_interval(backend), state_bytes(backend)
    print(f"{SPEC.family}: a state of {each:,} bytes, a checkpoint every {every} tokens\n")
    some, none = recomputed(64, backend), recomputed(0, backend)
    print("| tokens computed again after | 64 checkpoints | none |")
    print("|---|---|---|")
    for what, n_some in some.items():
        print(f"| {what} | {n_some} | {none[what]} |")
    print(
        f"\n{N_CONVERSATIONS} conversations of {N_TURNS} turns, {N_SYSTEM} system prompts of "
        f"{SYSTEM_TOKENS} tokens; each turn sends its whole prompt\n"
    )
    print("| checkpoints kept | bytes | prompt tokens found in the cache |")
    print("|---|---|---|")
    for n_kept in (0, 8, 32, 64, 128, 256):
        print(f"| {n_kept} | {n_kept * each:,} | {hit_share(n_kept, backend):.1%} |")


if __name__ == "__main__":
    main()
