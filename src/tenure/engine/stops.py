"""Where a turn's text must stop: stop tokens, stop strings and stop regexes.

The engine decides with a StopWatcher, and with `stop_ids`. The client side runs the same
StopScanner over the same tokens, so that it knows which text may be shown and where to cut.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol, cast

import regex

from tenure.core.errors import InvalidField
from tenure.core.events import Stopped
from tenure.core.params import SamplingParams
from tenure.model.tokenizer import TextStream, Tokenizer

MAX_PATTERN_CHARS = 4096
SCAN_CHARS = 16_384
"""A regex sees this much of the text's end; it bounds the work of one token."""
SCAN_S = 0.1
"""Seconds that one search may take before the pattern is blamed."""
LOOKBEHIND_CHARS = 256
FORGET_CHARS = 4096
"""Text that is no longer needed is dropped in pieces of this size."""


class _Match(Protocol):
    def start(self) -> int: ...
    def end(self) -> int: ...
    def group(self) -> str: ...


class _Pattern(Protocol):
    """The part of `regex.Pattern` that is used here."""

    @property
    def pattern(self) -> str: ...

    def search(
        self, string: str, pos: int, *, partial: bool = False, timeout: float
    ) -> _Match | None: ...


@dataclass(frozen=True, slots=True)
class StopRules:
    """Stop strings and compiled stop regexes of one turn."""

    strings: tuple[str, ...]
    patterns: tuple[_Pattern, ...]

    @classmethod
    def of(cls, params: SamplingParams) -> StopRules:
        """Raises InvalidField, naming stop_regex, for a pattern that cannot be used."""
        return cls(params.stop, tuple(map(_compile, params.stop_regex)))

    def __bool__(self) -> bool:
        return bool(self.strings or self.patterns)


@dataclass(frozen=True, slots=True)
class StopMatch:
    """`text` was matched; `start` counts characters from the turn's beginning."""

    start: int
    text: str


class StopScanner:
    """Finds stop strings and regexes in text that grows.

    Keeps only the end of the text that can still matter. Positions of a regex before `_starts[i]`
    can no longer begin a match of it, whatever follows; so a search does not repeat the last one.
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

        A match that ends while `counts` is false is passed over. Raises InvalidField when a regex
        takes too long.
        """
        old = len(self._buffer)
        self._buffer += fresh
        found = [*self._strings(old), *self._patterns(counts)] if fresh else []
        first = min(found, key=lambda match: match.start, default=None)
        self._forget()
        return first if counts else None

    def open_from(self) -> int:
        """The position from which text may still turn out to belong to a match."""
        starts = [_open_from(self._buffer, text) for text in self._rules.strings]
        return self._base + min([*starts, *self._starts, len(self._buffer)])

    def _strings(self, old: int) -> Iterable[StopMatch]:
        for text in self._rules.strings:
            at = self._buffer.find(text, max(0, old - len(text) + 1))
            if at >= 0:
                yield StopMatch(self._base + at, text)

    def _patterns(self, counts: bool) -> Iterable[StopMatch]:
        for i, pattern in enumerate(self._rules.patterns):
            match = self._search(i, pattern)
            if match is not None:
                yield match
            while match is not None and not counts:
                past = match.start - self._base + max(1, len(match.text))
                self._starts[i] = min(past, len(self._buffer))
                match = self._search(i, pattern)

    def _search(self, i: int, pattern: _Pattern) -> StopMatch | None:
        start = max(self._starts[i], len(self._buffer) - SCAN_CHARS)
        try:
            match = pattern.search(self._buffer, start, timeout=SCAN_S)
            if match is not None:
                return StopMatch(self._base + match.start(), match.group())
            begun = pattern.search(self._buffer, start, partial=True, timeout=SCAN_S)
        except TimeoutError:
            raise _too_slow(pattern.pattern) from None
        self._starts[i] = len(self._buffer) if begun is None else begun.start()
        return None

    def _forget(self) -> None:
        """Drop text that no rule will read again, once there is enough of it."""
        keep = len(self._buffer) - self._reach
        if self._starts:
            keep = min(keep, *self._starts) - LOOKBEHIND_CHARS
        if keep > FORGET_CHARS:
            self._buffer = self._buffer[keep:]
            self._base += keep
            self._starts = [start - keep for start in self._starts]


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
        """Why the turn ends with `token`, None when it goes on.

        Raises InvalidField when a stop regex takes too long; end the turn then.
        """
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


def stop_ids(params: SamplingParams, tokenizer: Tokenizer) -> frozenset[int]:
    """The ids that end a turn with these parameters.

    `ignore_eos` lets the model's own EOS pass; `stop_token_ids` still count.
    """
    eos = frozenset[int]() if params.ignore_eos else tokenizer.eos_ids
    return eos.union(params.stop_token_ids) if params.stop_token_ids else eos


def _compile(text: str) -> _Pattern:
    if len(text) > MAX_PATTERN_CHARS:
        raise InvalidField("stop_regex", text, f"at most {MAX_PATTERN_CHARS} characters long")
    try:
        pattern = cast("_Pattern", regex.compile(text))
        matches_nothing = pattern.search("", 0, timeout=SCAN_S) is not None
    except (regex.error, RecursionError, OverflowError) as error:
        raise InvalidField("stop_regex", text, f"a valid regular expression ({error})") from None
    except TimeoutError:
        raise _too_slow(text) from None
    if matches_nothing:
        raise InvalidField("stop_regex", text, "a pattern that does not match the empty string")
    return pattern


def _too_slow(text: str) -> InvalidField:
    return InvalidField("stop_regex", text, f"a pattern that can be searched for in {SCAN_S:g} s")


def _open_from(buffer: str, text: str) -> int:
    """Start of the longest end of `buffer` that begins `text`, short of all of it.

    Example: buffer "a END", text "END." gives 2; buffer "EN ", text "END." gives 3.
    """
    at = buffer.find(text[0], max(0, len(buffer) - len(text) + 1))
    while at >= 0 and not text.startswith(buffer[at:]):
        at = buffer.find(text[0], at + 1)
    return at if at >= 0 else len(buffer)
