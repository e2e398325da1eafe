"""The process in which a grammar is compiled for the first time.

Some grammars keep llguidance busy for hours whatever its own limits say, and nothing can stop a
thread. This process stops itself: at the end of its time it is killed by its own timer, at the end
of its memory by the allocator. It runs as a script, apart from the package.

A line in is `{"kind": ..., "source": ...}`, and the line out `{"grammar": ...}`, in llguidance's
own notation, or `{"error": ...}`.
"""

from __future__ import annotations

import json
import resource
import signal
import sys
from contextlib import suppress
from typing import TYPE_CHECKING

from llguidance import LLMatcher, LLParserLimits
from llguidance.gbnf_to_lark import any_to_lark

if TYPE_CHECKING:
    from llguidance._lib import JsonCompileOptions

CPU_LIMIT_S = 3.0
WALL_LIMIT_S = 20.0
MEMORY_BYTES = 2 * 2**30
LIMITS = LLParserLimits(
    initial_lexer_fuel=500_000,
    step_lexer_fuel=100_000,
    max_lexer_states=100_000,
    verbose_errors=False,
)
"""What bounds one step of a matcher to a fraction of a second; the engine keeps to the same."""

JSON_STYLE: JsonCompileOptions = {
    "item_separator": ", ",
    "key_separator": ": ",
    "whitespace_flexible": False,
}
"""One line, as Python's json module writes it: most tokens between values are then forced."""


def notation(kind: str, source: str) -> str:
    """A grammar in llguidance's own notation. Raises ValueError, RecursionError."""
    match kind:
        case "json_schema":
            return LLMatcher.grammar_from_json_schema(source, defaults=JSON_STYLE)
        case "regex":
            return LLMatcher.grammar_from_regex(source)
        case _:
            return LLMatcher.grammar_from_lark(any_to_lark(source))


def answer(kind: str, source: str) -> dict[str, str]:
    """The outcome for one grammar."""
    try:
        grammar = notation(kind, source)
    except Exception as error:
        return {"error": f"{error or type(error).__name__}"}
    reason = LLMatcher.validate_grammar(grammar, None, limits=LIMITS)
    if reason and not reason.startswith("WARNING"):
        return {"error": reason}
    return {"grammar": grammar}


def main() -> None:
    # Not every system lets a process bound its address space.
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    for line in sys.stdin:
        asked = json.loads(line)
        signal.setitimer(signal.ITIMER_PROF, CPU_LIMIT_S)
        signal.setitimer(signal.ITIMER_REAL, WALL_LIMIT_S)
        found = answer(asked["kind"], asked["source"])
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.setitimer(signal.ITIMER_REAL, 0)
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
