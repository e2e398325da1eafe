"""A turn inside the scheduler."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from tenure.core.errors import GrammarFailed
from tenure.core.events import Aborted, Finish, LengthReached, Stopped
from tenure.core.plan import Choice, ChoiceSpec, LogprobSpec, Process, Row, RowResult
from tenure.core.tenant import EVERYBODY, Tenant, owned
from tenure.core.tokens import TokenLog, Tokens, tokens
from tenure.core.turns import TurnRequest
from tenure.kv.lease import Lease

MakeProcess = Callable[[tuple[int, ...]], Process]
"""Gives what changes the logits after an output so far."""

StopWatch = Callable[[int], Stopped | None]
"""Fed each output token in order; answers when a stop string or regex has matched."""


class Matcher(Protocol):
    """Follows the output of one turn, and says what its grammar lets come next."""

    def allowed(self) -> bytes:
        """A bit for each id, as in ChoiceSpec.allowed. Raises GrammarFailed."""
        ...

    def take(self, token: int) -> None:
        """Go on with an allowed token. Raises GrammarFailed."""
        ...


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

    `max_len` bounds prompt + output, in tokens. `stop_ids` end the turn when chosen; with
    `ends_late`, they are chosen only where the grammar leaves nothing else. `seed` keys every draw.
    `number` is the place in line among requests of the same priority. `adapter` is the slot of its
    adapter; the turn's namespace is that adapter's own. `process` is its logit processor.
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
    adapter: int | None = None
    process: MakeProcess | None = None
    matcher: Matcher | None = None
    ends_late: bool = False
    tenant: Tenant = EVERYBODY

    @property
    def key(self) -> str:
        """The turn's id, which is its tenant's own."""
        return owned(self.tenant.name, self.turn.id)

    @property
    def namespace(self) -> str:
        """Where its KV is looked up."""
        return self.tenant.namespace(self.turn.namespace)


class Request:
    """Mutable progress of one turn: the output so far, and where its KV is.

    There are no phases: KV for `[0, committed)` is written, tokens up to `len(self)` are known, and
    a step computes some of what lies between. When all is computed, the next token is chosen.

    Where the grammar leaves one choice, the token is known at once: `output` has it, and its KV is
    computed with what follows. The first `n_told` output tokens have been told; the others wait for
    the step that scores them. `ending` is how the turn ends, once all has been told.
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
        self.hidden: list[bytes] = []
        self.n_hidden = 0
        self.routed: Tokens = tokens()
        self._n_routed = 0
        self.published_prompt = False
        self._restored: tuple[int, int] | None = None
        self.n_told = 0
        self.ending: Finish | None = None if self.max_new_tokens > 0 else LengthReached(0)
        self._bias = tuple(sorted(spec.turn.params.logit_bias.items()))
        self._allowed: bytes | None = None
        self._take_forced()

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

    def restored(self, start: int, end: int) -> None:
        """KV of `[start, end)` came back from a slower tier; later spans follow earlier ones."""
        if self.n_cached is None:
            first = start if self._restored is None else self._restored[0]
            self._restored = first, end

    @property
    def n_restored(self) -> int:
        """How many of the cached tokens a slower tier gave back before the turn first ran."""
        if self._restored is None or not self.n_cached:
            return 0
        start, end = self._restored
        return max(0, min(end, self.n_cached) - start)

    @property
    def n_to_compute(self) -> int:
        """How many tokens need KV: all, to choose the next, and all but the last at the end."""
        return len(self) if self.ending is None else max(self.n_prompt, len(self) - 1)

    # -- scores of known tokens

    @property
    def next_score(self) -> int | None:
        """The position that is scored next: of the prompt, then of forced output; None for none."""
        wanted = self.spec.turn.logprobs
        if wanted is None:
            return None
        if self._n_unscored_prompt:
            return self.n_prompt - self._n_unscored_prompt
        at = self.n_prompt + self.n_told
        return at if at < len(self) else None

    @property
    def _n_unscored_prompt(self) -> int:
        wanted = self.spec.turn.logprobs
        if wanted is None or wanted.input_start is None:
            return 0
        return max(0, self.n_prompt - max(wanted.input_start, 1)) - len(self.scores)

    @property
    def reusable(self) -> int:
        """The longest prefix whose KV may be taken as it is.

        One token is left for its logits; scoring position p needs the logits of p - 1; a hidden
        state, and the experts of a token, are there only where its position is computed.
        """
        most = self.n_to_compute - 1
        if self.next_score is not None:
            most = min(most, self.next_score - 1)
        if self._next_routed is not None:
            most = min(most, self._next_routed)
        return min(most, self.n_hidden) if self.spec.turn.hidden else most

    def hidden_from(self, start: int, n: int) -> int | None:
        """The offset from which a row over `[start, start + n)` yields hidden states."""
        if not self.spec.turn.hidden or self.n_hidden >= start + n:
            return None
        assert self.n_hidden >= start, "a row begins at or before the first state it yields"
        return self.n_hidden - start

    def take_hidden(self, rows: bytes, n: int) -> None:
        """Keep the states of the next `n` positions."""
        self.hidden.append(rows)
        self.n_hidden += n

    def score_specs(self, start: int, n: int) -> tuple[tuple[int, ChoiceSpec], ...]:
        """Scores that a row over `[start, start + n)` yields, as (offset, spec of what follows)."""
        first = self.next_score
        if first is None:
            return ()
        end = min(start + n + 1, len(self))
        if first >= end:
            return ()
        assert first > start, "a row begins at or before the position that yields its first score"
        wanted = self._logprob_spec()
        given = self.read(first, end)
        return tuple(
            (at - 1 - start, ChoiceSpec(seed=0, position=at, logprobs=wanted, given=token))
            for at, token in enumerate(given, first)
        )

    # -- experts

    @property
    def _next_routed(self) -> int | None:
        """The position whose experts are told next."""
        start = self.spec.turn.routed_start
        return None if start is None else start + self._n_routed

    def routed_from(self, start: int, n: int) -> int | None:
        """From which offset of a row over `[start, start + n)` experts are wanted."""
        at = self._next_routed
        if at is None or at >= start + n:
            return None
        assert at >= start, "a row begins at or before the position whose experts it tells"
        return at - start

    def take_routed(self, row: Row, routed: Tokens) -> None:
        """What a row that asked for experts was told."""
        assert row.routed_from is not None
        self.routed.extend(routed)
        self._n_routed += len(row.tokens) - row.routed_from

    # -- choosing what comes next

    @property
    def wants_token(self) -> bool:
        return self.ending is None

    def choice_spec(self) -> ChoiceSpec:
        """How to choose the token at position `len(self)`."""
        params = self.spec.turn.params
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
            banned=self._banned(),
            allowed=self._allowed,
            logprobs=self._logprob_spec(),
        )

    def process(self) -> Process | None:
        """What changes the logits that the next token is chosen from."""
        make = self.spec.process
        return None if make is None else make(tuple(self.output))

    def _logprob_spec(self) -> LogprobSpec | None:
        wanted = self.spec.turn.logprobs
        return None if wanted is None else LogprobSpec(wanted.n_top, wanted.ids)

    def _banned(self) -> tuple[int, ...]:
        """Stop ids before their time; where the grammar leaves nothing else, it is their time."""
        early = len(self.output) < self.spec.turn.params.min_new_tokens or self.spec.ends_late
        if not early or (self._allowed is not None and not self._goes_on(self._allowed)):
            return ()
        return tuple(sorted(self.spec.stop_ids))

    def _goes_on(self, allowed: bytes) -> bool:
        """Whether anything but the end is allowed."""
        ends = sum(1 << token for token in self.spec.stop_ids)
        return bool(int.from_bytes(allowed, "little") & ~ends)

    # -- taking in

    def take(self, done: RowResult) -> tuple[Choice, ...]:
        """Take in what a row found; the output that may be told by now."""
        n_prompt_scores = min(self._n_unscored_prompt, len(done.scores))
        self.scores.extend(done.scores[:n_prompt_scores])
        told = list(done.scores[n_prompt_scores:])
        if done.choice is not None:
            self._append(done.choice.token)
            told.append(done.choice)
            self._take_forced()
        if self.spec.turn.logprobs is None:
            told = [Choice(token) for token in self.output[self.n_told :]]
        self.n_told += len(told)
        return tuple(told)

    def finish(self, committed: int) -> Finish | None:
        """How the turn ends, when it does: the prompt is computed, and all output told.

        Where hidden states are asked for, the output is computed too, up to its last token.
        """
        computed = self.n_to_compute if self.spec.turn.hidden else self.n_prompt
        told = self.n_told == len(self.output) and committed >= computed
        return self.ending if told else None

    def forget_untold(self) -> None:
        """Give up what was forced and not told: the turn was aborted."""
        del self.output[self.n_told :]

    def _append(self, token: int) -> None:
        """A token of the output, which may be the last."""
        self.output.append(token)
        self.ending = self._ended_by(token)
        if self.ending is None and self.spec.matcher is not None:
            try:
                self.spec.matcher.take(token)
            except GrammarFailed as error:
                self.ending = _failed(error)

    def _ended_by(self, token: int) -> Finish | None:
        matched = None if self.spec.watch is None else self.spec.watch(token)
        n_output = len(self.output)
        late = n_output >= self.spec.turn.params.min_new_tokens or self.spec.matcher is not None
        if late and token in self.spec.stop_ids:
            return Stopped(token)
        if matched is not None and n_output >= self.spec.turn.params.min_new_tokens:
            return matched
        return LengthReached(n_output) if n_output >= self.max_new_tokens else None

    def _take_forced(self) -> None:
        """Ask the grammar what may come next, and go on while it leaves one choice."""
        matcher = self.spec.matcher
        while matcher is not None and self.ending is None:
            try:
                self._allowed = matcher.allowed()
            except GrammarFailed as error:
                self.ending = _failed(error)
                return
            forced = _only(self._allowed)
            if forced is None:
                return
            self._append(forced)


def _only(allowed: bytes) -> int | None:
    """The id whose bit alone is set, else None."""
    bits = int.from_bytes(allowed, "little")
    return bits.bit_length() - 1 if bits.bit_count() == 1 else None


def _failed(error: GrammarFailed) -> Aborted:
    return Aborted(error.message, 400, error.code)
