"""Where a turn's text must stop: stop tokens, stop strings and stop regexes.

The engine decides with a StopWatcher, and with `ends_of`. The client side runs the same
StopScanner over the same tokens, so that it knows which text may be shown and where to cut.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Protocol, cast

import re2  # pyright: ignore[reportMissingTypeStubs]

from tenure.core.errors import InvalidField
from tenure.core.events import Stopped
from tenure.core.params import SamplingParams
from tenure.core.turns import TurnRequest
from tenure.model.tokenizer import TextStream, Tokenizer

MAX_PATTERNS = 8
MAX_PATTERN_CHARS = 4096
MAX_PROGRAM = 8192
"""RE2 instructions of all patterns of a turn; with SCAN_CHARS it bounds the work of one token."""
MAX_PROGRAM_BYTES = 2**18
SCAN_CHARS = 2048
"""The longest match of a regex: a search sees so much text before what is new."""
HOLD_CHARS = 256
"""Text at the end that waits for a regex to match; a longer match is cut where the text stands."""
LOOKBEHIND_CHARS = 256
FORGET_CHARS = 4096
"""Text that is no longer needed is dropped in pieces of this size."""


class _Match(Protocol):
    def start(self) -> int: ...
    def group(self) -> str: ...


class _Pattern(Protocol):
    """The part of a compiled RE2 pattern that is used here; a search takes linear time."""

    @property
    def programsize(self) -> int: ...

    def search(self, text: str, pos: int = 0) -> _Match | None: ...


class _Re2(Protocol):
    """The part of the untyped module `re2` that is used here."""

    @property
    def error(self) -> type[Exception]: ...

    @property
    def Options(self) -> Callable[[], Any]: ...  # noqa: N802

    def compile(self, pattern: str, options: object) -> _Pattern: ...


_RE2 = cast("_Re2", re2)


@dataclass(frozen=True, slots=True)
class StopRules:
    """Stop strings and compiled stop regexes of one turn."""

    strings: tuple[str, ...]
    patterns: tuple[_Pattern, ...]

    @classmethod
    def of(cls, params: SamplingParams) -> StopRules:
        """Raises InvalidField, naming stop_regex, for patterns that cannot be used."""
        texts = params.stop_regex
        if len(texts) > MAX_PATTERNS:
            raise InvalidField("stop_regex", f"{len(texts)}", f"at most {MAX_PATTERNS} patterns")
        patterns = tuple(map(_compile, texts))
        size = sum(pattern.programsize for pattern in patterns)
        if size > MAX_PROGRAM:
            allowed = f"simpler or fewer patterns (at most {MAX_PROGRAM} RE2 instructions)"
            raise InvalidField("stop_regex", f"{size} instructions", allowed)
        return cls(params.stop, patterns)

    def __bool__(self) -> bool:
        return bool(self.strings or self.patterns)


@dataclass(frozen=True, slots=True)
class StopMatch:
    """`text` was matched; `start` counts characters from the turn's beginning."""

    start: int
    text: str


class StopScanner:
    """Finds stop strings and regexes in text that grows.

    Keeps only the end of the text that can still matter. A match of regex `i` that begins before
    `_starts[i]` was passed over.
    """

    __slots__ = ("_base", "_buffer", "_reach", "_rules", "_starts")

    def __init__(self, rules: StopRules) -> None:
        self._rules = rules
        self._reach = max(map(len, rules.strings), default=1) - 1
        self._buffer = ""
        self._base = 0
        self._starts = [0] * len(rules.patterns)

    def push(self, fresh: str, counts: bool) -> StopMatch | None:
        """Add text; the match that starts first among those that end in it.

        A match that ends while `counts` is false is passed over.
        """
        old = len(self._buffer)
        self._buffer += fresh
        found = [*self._strings(old), *self._patterns(old, counts)] if fresh else []
        first = min(found, key=lambda match: match.start, default=None)
        self._forget()
        return first if counts else None

    def open_from(self) -> int:
        """The position from which text may still turn out to belong to a match.

        RE2 does not say whether a match has begun, so a regex holds back HOLD_CHARS.
        """
        starts = [_open_from(self._buffer, text) for text in self._rules.strings]
        held = HOLD_CHARS if self._rules.patterns else 0
        return self._base + min([*starts, max(0, len(self._buffer) - held)])

    def _strings(self, old: int) -> Iterable[StopMatch]:
        for text in self._rules.strings:
            at = self._buffer.find(text, max(0, old - len(text) + 1))
            if at >= 0:
                yield StopMatch(self._base + at, text)

    def _patterns(self, old: int, counts: bool) -> Iterable[StopMatch]:
        for i, pattern in enumerate(self._rules.patterns):
            match = self._search(i, pattern, old)
            if match is not None:
                yield match
            while match is not None and not counts:
                past = match.start - self._base + max(1, len(match.text))
                self._starts[i] = min(past, len(self._buffer))
                match = self._search(i, pattern, old)

    def _search(self, i: int, pattern: _Pattern, old: int) -> StopMatch | None:
        match = pattern.search(self._buffer, max(self._starts[i], old - SCAN_CHARS))
        return None if match is None else StopMatch(self._base + match.start(), match.group())

    def _forget(self) -> None:
        """Drop text that no rule will read again, once there is enough of it."""
        keep = len(self._buffer) - self._reach
        if self._starts:
            keep = min(keep, len(self._buffer) - SCAN_CHARS) - LOOKBEHIND_CHARS
        if keep > FORGET_CHARS:
            self._buffer = self._buffer[keep:]
            self._base += keep
            self._starts = [max(0, start - keep) for start in self._starts]


class StopWatcher:
    """Says when the text of one turn must stop; feed it every output token, in order.

    Special tokens count with their text, so a stop string may name one. Nothing stops the first
    `min_new_tokens - 1` tokens; a match that ends among them is passed over.
    """

    __slots__ = ("_min_new", "_n", "_scanner", "_stream")

    def __init__(self, rules: StopRules, min_new_tokens: int, stream: TextStream) -> None:
        self._scanner = StopScanner(rules)
        self._min_new = min_new_tokens
        self._stream = stream
        self._n = 0

    def feed(self, token: int) -> Stopped | None:
        """Why the turn ends with `token`, None when it goes on."""
        self._n += 1
        text = self._stream.push(token)
        match = self._scanner.push(text, counts=self._n >= self._min_new)
        return None if match is None else Stopped(match.text)


def make_watch(
    params: SamplingParams, tokenizer: Tokenizer
) -> Callable[[int], Stopped | None] | None:
    """A StopWatcher's `feed`, None where no stop string or regex is asked for.

    Raises InvalidField for a stop regex that cannot be used.
    """
    rules = StopRules.of(params)
    if not rules:
        return None
    return StopWatcher(rules, params.min_new_tokens, tokenizer.stream(skip_special=False)).feed


def ends_of(turn: TurnRequest, eos_ids: frozenset[int]) -> frozenset[int]:
    """The ids that end a turn of a model that ends with `eos_ids`.

    `ignore_eos` lets the model's own EOS pass, unless a grammar says where the output ends, which
    EOS marks; `stop_token_ids` still count.
    """
    passes = turn.params.ignore_eos and turn.grammar is None
    eos = frozenset[int]() if passes else eos_ids
    return eos.union(turn.params.stop_token_ids) if turn.params.stop_token_ids else eos


def _compile(text: str) -> _Pattern:
    """RE2 keeps the patterns used last, so the client side and the engine compile one once."""
    if len(text) > MAX_PATTERN_CHARS:
        raise InvalidField("stop_regex", text, f"at most {MAX_PATTERN_CHARS} characters long")
    options = _RE2.Options()
    options.max_mem = MAX_PROGRAM_BYTES
    options.log_errors = False
    try:
        pattern = _RE2.compile(text, options)
    except (_RE2.error, UnicodeEncodeError) as error:
        allowed = f"a valid regular expression of RE2 ({_reason(error)})"
        raise InvalidField("stop_regex", text, allowed) from None
    if pattern.search("") is not None:
        raise InvalidField("stop_regex", text, "a pattern that does not match the empty string")
    return pattern


def _reason(error: Exception) -> str:
    match error.args:
        case (bytes() as reason,):
            return reason.decode(errors="replace")
        case _:
            return str(error)


def _open_from(buffer: str, text: str) -> int:
    """Start of the longest end of `buffer` that begins `text`, short of all of it.

    Example: buffer "a END", text "END." gives 2; buffer "EN ", text "END." gives 3.
    """
    at = buffer.find(text[0], max(0, len(buffer) - len(text) + 1))
    while at >= 0 and not text.startswith(buffer[at:]):
        at = buffer.find(text[0], at + 1)
    return at if at >= 0 else len(buffer)
