"""How close each engine comes to the truth: the float32 reference on the same dequantised weights.

Over contexts of real prose and code, for every position: the divergence of the engine's next-token
distribution from the reference's, whether both put the same token first, and the perplexity of the
text. llama.cpp runs as it does in `versus_llamacpp.py`: float16 KV, no flash attention; its Q8_0
variant has rounded the weights once more, so its divergence counts that too.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
from cyclopts import App, Parameter
from rich.console import Console
from rich.table import Table

from _divergence import Divergence
from _scorers import Scorer, backend_scorer, llama_scorer
from _text import digest, prose_and_code
from peer import q8_variant
from tenure.backend.base import BackendSettings
from tenure.backend.registry import why_not_native
from tenure.model.default import default_model_path
from tenure.model.load import Checkpoint, load_checkpoint
from tenure.model.tokenizer import load_tokenizer

TRUTH, OURS, PEER = "reference, float32", "tenure, native", "llama.cpp, same file"

app = App(name="quality", help=__doc__, result_action="return_value")
console = Console(stderr=True)


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Flags:
    """What is compared, over how much text."""

    model: Path | None = None
    context: Annotated[int, Parameter(help="Tokens of one context.")] = 1024
    contexts: Annotated[int, Parameter(help="Contexts, half prose and half code.")] = 10
    threads: int = 2
    kv_dtype: Annotated[str, Parameter(help="Type of the native backend's KV.")] = "auto"
    peer: Annotated[bool, Parameter(help="Compare llama.cpp too.")] = True
    json_file: Annotated[Path | None, Parameter(name="--json")] = None


def contexts(checkpoint: Checkpoint, flags: Flags) -> list[list[int]]:
    """Stretches of text without overlap, prose first."""
    n_each = -(-flags.contexts // 2)
    kinds = prose_and_code(load_tokenizer(checkpoint.metadata), n_each * flags.context)
    starts = range(0, n_each * flags.context, flags.context)
    return [kind[start : start + flags.context] for kind in kinds for start in starts]


def scorers(
    checkpoint: Checkpoint, flags: Flags, stack: ExitStack
) -> tuple[Scorer, dict[str, Scorer]]:
    """The truth, and the engines to compare with it."""
    exact = BackendSettings(dtype="float32", kv_dtype="float32", threads=flags.threads)
    truth = stack.enter_context(backend_scorer("reference", checkpoint, flags.context, exact))
    found: dict[str, Scorer] = {}
    if reason := why_not_native():
        console.print(f"[yellow]The native backend is left out: {reason}[/]")
    else:
        native = BackendSettings(kv_dtype=flags.kv_dtype, threads=flags.threads)
        found[OURS] = stack.enter_context(
            backend_scorer("native", checkpoint, flags.context, native)
        )
    if flags.peer:
        logs = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        n_vocab = checkpoint.spec.n_vocab
        files = {PEER: checkpoint.path, "llama.cpp, Q8_0": q8_variant(checkpoint.path)}
        for name, file in files.items():
            found[name] = stack.enter_context(
                llama_scorer(file, n_vocab, flags.context, flags.threads, logs / name)
            )
    return truth, found


def measure(
    truth: Scorer, engines: dict[str, Scorer], texts: Sequence[list[int]]
) -> dict[str, Divergence]:
    """Every engine over every context; the truth is also compared with itself."""
    results = {name: Divergence() for name in (TRUTH, *engines)}
    for done, ids in enumerate(texts):
        following = np.array([*ids[1:], -1])
        wanted = np.concatenate([part.copy() for part in truth.logits(ids)])
        results[TRUTH].add(wanted, wanted, following)
        for name, engine in engines.items():
            start = 0
            for part in engine.logits(ids):
                rows = slice(start, start + len(part))
                results[name].add(wanted[rows], part, following[rows])
                start += len(part)
        console.print(f"  context {done + 1} of {len(texts)}")
    return results


def table(results: dict[str, Divergence]) -> Table:
    n_positions = results[TRUTH].n_positions
    result = Table(title=f"Against the float32 reference, {n_positions:,} positions")
    result.add_column("engine")
    for heading in ("mean KL, nats", "KL, 99th percentile", "same first token", "perplexity"):
        result.add_column(heading, justify="right")
    for name, each in results.items():
        result.add_row(
            name,
            f"{each.mean_kl:.6f} ± {each.kl_error:.6f}",
            f"{each.kl_p99:.6f}",
            f"{each.agreement:.2%}",
            f"{each.perplexity:.4f}",
        )
    return result


@app.default
def main(flags: Flags = Flags()) -> None:
    """Compare, print one table, and write the numbers as JSON if asked to."""
    checkpoint = load_checkpoint(flags.model or default_model_path(), progress=lambda *_: None)
    texts = contexts(checkpoint, flags)
    with ExitStack() as stack:
        truth, engines = scorers(checkpoint, flags, stack)
        results = measure(truth, engines, texts)
    Console(width=None if sys.stdout.isatty() else 110).print(table(results))
    if OURS in results and PEER in results:
        difference, error = results[OURS].kl_over(results[PEER])
        print(f"KL of {OURS} minus that of {PEER}, paired: {difference:+.6f} ± {error:.6f}")
    if flags.json_file is not None:
        report = {
            "model": checkpoint.path.name,
            "text": digest([token for ids in texts for token in ids]),
            "n_positions": results[TRUTH].n_positions,
            "engines": {
                name: {
                    "mean_kl": each.mean_kl,
                    "mean_kl_error": each.kl_error,
                    "kl_p99": each.kl_p99,
                    "same_first_token": each.agreement,
                    "perplexity": each.perplexity,
                }
                for name, each in results.items()
            },
        }
        flags.json_file.write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    app()
