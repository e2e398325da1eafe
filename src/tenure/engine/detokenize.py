"""From the tokens of a running turn to the text that a client may see."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from tenure.core.events import Aborted, Finish, LengthReached, Stopped
from tenure.core.params import SamplingParams
from tenure.engine.stops import StopMatch, StopRules, StopScanner
from tenure.model.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class TextOptions:
    """How output is shown.

    `skip_special` leaves control tokens out, apart from those in `show`. `keep_stop` keeps what
    ended the turn: a stop token's text, or a stop string and what came with its last token.
    """

    skip_special: bool = True
    keep_stop: bool = False
    show: frozenset[int] = frozenset()


DEFAULT_OPTIONS = TextOptions()


class TurnText:
    """The text of one turn, which the ids in `ends` end.

    Text that was once given out never changes: an unfinished character, a token that may have
    ended the turn, and text that may be part of a stop string or regex are held back until it is
    known what they are.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        ends: frozenset[int],
        params: SamplingParams,
        options: TextOptions = DEFAULT_OPTIONS,
    ) -> None:
        rules = StopRules.of(params)
        self._tokenizer = tokenizer
        self._options = options
        self._stop_ids = ends
        self._min_new = params.min_new_tokens
        self._stream = tokenizer.stream(skip_special=False)
        self._scanner = StopScanner(rules) if rules else None
        self._n_tokens = 0
        self._held_token: int | None = None
        self._match: StopMatch | None = None
        self._raw = _RawText()
        self._text = ""

    @property
    def text(self) -> str:
        """All that was given out so far."""
        return self._text

    def push(self, ids: Iterable[int]) -> str:
        """Add output tokens; the text that became certain."""
        for token in ids:
            self._take_held()
            self._n_tokens += 1
            if token in self._stop_ids and self._counts:
                self._held_token = token
            else:
                self._take(token)
        return self._give(self._certain())

    def finish(self, finish: Finish) -> str:
        """The turn has ended: the rest of its text. Nothing may be pushed after that."""
        end = None
        match finish:
            case Stopped(matched=str()):
                self._take_held()
                if self._match is not None and not self._options.keep_stop:
                    end = self._match.start
            case Stopped():
                if self._options.keep_stop:
                    self._take_held()
            case LengthReached() | Aborted():
                self._take_held()
        self._raw.add(self._stream.flush(), visible=True)
        return self._give(self._raw.end if end is None else end)

    @property
    def _counts(self) -> bool:
        return self._n_tokens >= self._min_new

    def _take_held(self) -> None:
        """What looked like the end was not, or is to be shown."""
        if self._held_token is not None:
            token, self._held_token = self._held_token, None
            self._take(token)

    def _take(self, token: int) -> None:
        """Add a token's text: that of a special token after what it cuts short."""
        if token in self._tokenizer.special_ids:
            cut_short, special = self._stream.flush(), self._tokenizer.token_text(token)
            self._raw.add(cut_short, visible=True)
            shown = not self._options.skip_special or token in self._options.show
            self._raw.add(special, visible=shown)
            self._scan(cut_short + special)
        else:
            text = self._stream.push(token)
            self._raw.add(text, visible=True)
            self._scan(text)

    def _scan(self, text: str) -> None:
        if self._scanner is not None and self._match is None:
            self._match = self._scanner.push(text, self._counts)

    def _certain(self) -> int:
        """The raw position up to which nothing can change any more."""
        if self._match is not None:
            return self._match.start
        return self._raw.end if self._scanner is None else self._scanner.open_from()

    def _give(self, end: int) -> str:
        text = self._raw.take(end)
        self._text += text
        return text


class _RawText:
    """Output text with its special tokens, of which the visible part is handed out in order.

    Positions count characters from the turn's beginning; `[0, _start)` was handed out.
    """

    def __init__(self) -> None:
        self._pieces: deque[tuple[str, bool]] = deque()
        self._start = 0
        self.end = 0

    def add(self, text: str, visible: bool) -> None:
        if text:
            self._pieces.append((text, visible))
            self.end += len(text)

    def take(self, end: int) -> str:
        """Visible text of `[_start, end)`; nothing where `end` lies before `_start`."""
        taken: list[str] = []
        while self._pieces and self._start < end:
            text, visible = self._pieces.popleft()
            n = end - self._start
            if len(text) > n:
                self._pieces.appendleft((text[n:], visible))
            taken.append(text[:n] if visible else "")
            self._start += min(n, len(text))
        return "".join(taken)
