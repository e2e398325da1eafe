"""How families of models write tool calls: data for one parser."""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType

from tenure.core.errors import ConfigError


@dataclass(frozen=True, slots=True)
class CallFormat:
    """The marks around calls; what stands between them is JSON objects, alone or in an array.

    One of `starts` begins calls, and `end`, if any, closes them. `bare`: a reply that begins with
    JSON is a call without a mark. `named`: the tool's name stands before an object that holds the
    arguments alone. `id_chars` is the length of call ids, which some templates check. Models are
    held to write the key `arguments`, and with `listed`, calls in one array behind the first mark.
    """

    starts: tuple[str, ...] = ()
    end: str = ""
    bare: bool = False
    named: bool = False
    id_chars: int = 24
    arguments: str = "arguments"
    listed: bool = False

    @property
    def marks(self) -> tuple[str, ...]:
        """Texts that a vocabulary may hold as special tokens, and that must be seen even so."""
        end = (self.end,) if self.end else ()
        inner = ("[ARGS]", "[CALL_ID]") if self.named else ()
        return (*self.starts, *end, *inner)


HERMES = CallFormat(starts=("<tool_call>",), end="</tool_call>")
LLAMA3 = CallFormat(starts=("<|python_tag|>",), bare=True, arguments="parameters")
MISTRAL = CallFormat(starts=("[TOOL_CALLS]",), named=True, id_chars=9, listed=True)
GRANITE = CallFormat(starts=("<|tool_call|>", "<tool_call>"), end="</tool_call>", listed=True)
JSON = CallFormat(bare=True)

FORMATS = MappingProxyType(
    {
        "hermes": HERMES,
        "qwen": HERMES,
        "qwen25": HERMES,
        "llama3": LLAMA3,
        "mistral": MISTRAL,
        "granite": GRANITE,
        "json": JSON,
    }
)
"""By the names that a server's setting may give."""

_SIGNS = (
    ("[TOOL_CALLS]", MISTRAL),
    ("<|tool_call|>", GRANITE),
    ("<tool_call>", HERMES),
    ("<|python_tag|>", LLAMA3),
    ("ipython", LLAMA3),
)
"""What in a chat template gives its family away, the telling ones first."""


def named_format(name: str) -> CallFormat:
    """Raises ConfigError for an unknown name."""
    if name not in FORMATS:
        raise ConfigError(f"tool_call_parser must be one of {', '.join(FORMATS)}, got {name!r}")
    return FORMATS[name]


def format_of(template: str) -> CallFormat:
    """The format that a chat template shows its model; plain JSON where it shows none."""
    return next((found for sign, found in _SIGNS if sign in template), JSON)
