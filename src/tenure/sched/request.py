"""A turn inside the scheduler."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from tenure.core.events import Finish, LengthReached, Stopped
from tenure.core.plan import Choice, ChoiceSpec, LogprobSpec
from tenure.core.tokens import TokenLog, Tokens, tokens
from tenure.core.turns import TurnRequest
from tenure.kv.lease import Lease

StopWatch = Callable[[int], Stopped | None]
"""Fed each output token in order; answers when a stop string or regex has matched."""


@dataclass(frozen=True, slots=True, eq=False)
class Waiting:
    """In the queue. A lease that came from a session is kept, but may be demoted at any time."""

    lease: Lease | None


@dataclass(frozen=True, slots=True, eq=False)
class Running:
    """Takes part in steps, and holds the lease."""

    lease: Lease


@dataclass(frozen=True, slots=True)
class Ended:
    """Out of the scheduler."""


State: TypeAlias = Waiting | Running | Ended

ENDED = Ended()


@dataclass(frozen=True, slots=True, eq=False)
class RequestSpec:
    """What does not change while a request lives.

    `max_len` bounds prompt + output, in tokens. `stop_ids` end the turn when chosen. `seed` keys
    every draw. `number` is the place in line among requests of the same priority.
    """

    number: int
    turn: TurnRequest
    prompt: TokenLog
    n_inherited: int
    max_len: int
    seed: int
    stop_ids: frozenset[int]
    watch: StopWatch | None
    arrival_s: float


class Request:
    """Mutable progress of one turn: the output so far, and where its KV is.

    There are no phases: KV for `[0, committed)` is written, tokens up to `len(self)` are known, and
    a step computes some of what lies between. When all is computed, the next token is chosen.
    """

    def __init__(self, spec: RequestSpec, lease: Lease | None) -> None:
        self.spec = spec
        self.output: Tokens = tokens()
        self.state: State = Waiting(lease)
        self.n_cached: int | None = None
        self.n_preempted = 0
        self.started_s: float | None = None
        self.first_token_s: float | None = None
        self.scores: list[Choice] = []
        self.published_prompt = False
        self._bias = tuple(sorted(spec.turn.params.logit_bias.items()))

    # -- the token sequence (a TokenSource)

    def __len__(self) -> int:
        return len(self.spec.prompt) + len(self.output)

    def read(self, start: int, end: int) -> Tokens:
        """The ids of positions `[start, end)`; O(end - start) near the end of the sequence."""
        n_prompt = len(self.spec.prompt)
        if start >= n_prompt:
            return self.output[start - n_prompt : end - n_prompt]
        head = self.spec.prompt.read(start, min(end, n_prompt))
        return head + self.output[: end - n_prompt] if end > n_prompt else head

    @property
    def lease(self) -> Lease | None:
        """The lease it holds, to look at or to fork; only the scheduler moves it."""
        match self.state:
            case Running(lease):
                return lease
            case Waiting(lease):
                return lease
            case Ended():
                return None

    @property
    def n_prompt(self) -> int:
        return len(self.spec.prompt)

    @property
    def max_new_tokens(self) -> int:
        """How many tokens may be produced; the end of the context counts."""
        return min(self.spec.turn.params.max_new_tokens, self.spec.max_len - self.n_prompt)

    # -- scores of the prompt

    @property
    def next_score(self) -> int | None:
        """The prompt position that is scored next; None when there is none (left)."""
        wanted = self.spec.turn.logprobs
        if wanted is None or wanted.input_start is None:
            return None
        at = max(wanted.input_start, 1) + len(self.scores)
        return at if at < self.n_prompt else None

    @property
    def reusable(self) -> int:
        """The longest prefix whose KV may be taken as it is.

        One token is left for its logits; scoring position p needs the logits of p - 1.
        """
        score = self.next_score
        return len(self) - 1 if score is None else min(len(self) - 1, score - 1)

    def score_specs(self, start: int, n: int) -> tuple[tuple[int, ChoiceSpec], ...]:
        """Scores that a row over `[start, start + n)` yields, as (offset, spec of what follows)."""
        first = self.next_score
        if first is None:
            return ()
        end = min(start + n + 1, self.n_prompt)
        if first >= end:
            return ()
        assert first > start, "a row begins at or before the position that yields its first score"
        wanted = self._logprob_spec()
        given = self.read(first, end)
        return tuple(
            (at - 1 - start, ChoiceSpec(seed=0, position=at, logprobs=wanted, given=token))
            for at, token in enumerate(given, first)
        )

    # -- choosing what comes next

    @property
    def wants_token(self) -> bool:
        return len(self.output) < self.max_new_tokens

    def choice_spec(self) -> ChoiceSpec:
        """How to choose the token at position `len(self)`."""
        params = self.spec.turn.params
        early = len(self.output) < params.min_new_tokens
        return ChoiceSpec(
            seed=self.spec.seed,
            position=len(self),
            temperature=params.temperature,
            top_p=params.top_p,
            top_k=params.top_k,
            min_p=params.min_p,
            frequency_penalty=params.frequency_penalty,
            presence_penalty=params.presence_penalty,
            repetition_penalty=params.repetition_penalty,
            output=tuple(self.output) if params.has_penalties else (),
            bias=self._bias,
            banned=tuple(sorted(self.spec.stop_ids)) if early else (),
            logprobs=self._logprob_spec(),
        )

    def _logprob_spec(self) -> LogprobSpec | None:
        wanted = self.spec.turn.logprobs
        return None if wanted is None else LogprobSpec(wanted.n_top, wanted.ids)

    def append(self, token: int) -> Finish | None:
        """Take a chosen token; answers how the turn ends, if it does."""
        self.output.append(token)
        matched = None if self.spec.watch is None else self.spec.watch(token)
        if len(self.output) >= self.spec.turn.params.min_new_tokens:
            if token in self.spec.stop_ids:
                return Stopped(token)
            if matched is not None:
                return matched
        if not self.wants_token:
            return LengthReached(len(self.output))
        return None
