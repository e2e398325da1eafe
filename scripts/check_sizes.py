"""Hold the size budgets: 60 lines a function, 400 a file, 15 fields a dataclass."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MAX_FILE_LINES = 400
MAX_FUNCTION_LINES = 60
MAX_FIELDS = 15
NATIVE_SUFFIXES = (".cpp", ".hpp")
FLAT_RECORDS = frozenset(
    {
        "SamplingBody",
        "GenerateBody",
        "ExtendedBody",
        "ChatBody",
        "ResponseBody",
        "MessagesBody",
        "TurnMeta",
        "SummaryDoc",
        "SessionState",
        "Counters",
        "EngineInfo",
        "EngineSettings",
        "TurnRequest",
        "EngineFlags",
    }
)
"""Records that mirror a list from outside field by field; nesting them would hide it."""


def too_large(path: Path) -> Iterator[str]:
    text = path.read_text()
    n_lines = text.count("\n")
    name = path.relative_to(ROOT)
    if n_lines > MAX_FILE_LINES:
        yield f"{name}: {n_lines} lines, the limit is {MAX_FILE_LINES}"
    if path.suffix != ".py":
        return
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                n = (node.end_lineno or node.lineno) - node.lineno + 1
                if n > MAX_FUNCTION_LINES:
                    yield f"{name}:{node.lineno} {node.name}: {n} lines"
            case ast.ClassDef():
                n = sum(isinstance(part, ast.AnnAssign) for part in node.body)
                if n > MAX_FIELDS and node.name not in FLAT_RECORDS:
                    yield f"{name}:{node.lineno} {node.name}: {n} fields"
            case _:
                pass


def main() -> int:
    files = [*ROOT.glob("src/**/*.py"), *ROOT.glob("scripts/*.py")]
    files += [path for suffix in NATIVE_SUFFIXES for path in ROOT.glob(f"native/**/*{suffix}")]
    problems = [line for path in sorted(files) for line in too_large(path)]
    print("\n".join(problems) or f"sizes: {len(files)} files within budget")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
