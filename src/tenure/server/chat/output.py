"""One answer as it grows: the engine's events in, pieces of a reply out."""

from __future__ import annotations

from dataclasses import dataclass

from tenure.core.events import Finish, TurnEvent, TurnFinished, TurnTokens, Usage
from tenure.core.plan import Choice
from tenure.core.turns import TurnRequest
from tenure.engine.detokenize import TurnText
from tenure.server.chat.reader import Reader, Reply
from tenure.server.errors import raise_failure
from tenure.server.tools.pieces import Piece


@dataclass(frozen=True, slots=True)
class Delta:
    """What one event added to an answer. `choices` are its tokens, with their log probabilities."""

    pieces: list[Piece]
    choices: tuple[Choice, ...] = ()


class Output:
    """Feed it every event of a turn; `reply`, `ids`, `usage` and `finish` are the answer so far.

    `choices` are kept where log probabilities are asked for. `n_reasoning` counts the tokens of the
    reasoning, as far as they can be told apart.
    """

    def __init__(self, turn: TurnRequest, text: TurnText, reader: Reader) -> None:
        self.turn = turn
        self.reply = Reply()
        self.finish: Finish | None = None
        self.ended: TurnFinished | None = None
        self.ids: list[int] = []
        self.choices: list[Choice] = []
        self.n_reasoning = 0
        self.usage = Usage(len(turn.tokens), 0, 0, len(turn.tokens), 0)
        self._text = text
        self._reader = reader

    @property
    def n_tokens(self) -> int:
        return len(self.ids)

    def feed(self, event: TurnEvent) -> Delta:
        """Take the turn's next event.

        Raises UserError, EngineStopped or TurnFailed, with its code, for a turn that failed.
        """
        match event:
            case TurnTokens():
                return self._take_tokens(event)
            case TurnFinished():
                return self._take_finish(event)

    def _take_tokens(self, event: TurnTokens) -> Delta:
        if event.usage is not None:
            self.usage = event.usage
        ids = [choice.token for choice in event.choices]
        self.ids += ids
        if self._reader.inside_thought:
            self.n_reasoning += len(ids)
        if self.turn.logprobs is not None:
            self.choices += event.choices
        pieces = self._reader.push(self._text.push(ids))
        return self._taken(Delta(pieces, event.choices))

    def _take_finish(self, event: TurnFinished) -> Delta:
        raise_failure(event.finish)
        self.finish = event.finish
        self.ended = event
        self.usage = event.usage
        rest = self._reader.push(self._text.finish(event.finish))
        return self._taken(Delta(rest + self._reader.finish()))

    def _taken(self, delta: Delta) -> Delta:
        for piece in delta.pieces:
            self.reply.take(piece)
        return delta
