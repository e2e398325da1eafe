"""What a turn is asked and what it answers, as values that can be compared.

The specs of its choices are worked out here, apart from the scheduler's, so that the two are held
against each other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from tenure.core.params import LogprobParams, SamplingParams
from tenure.core.plan import Choice, ChoiceSpec, LogprobSpec

Allowed = Callable[[Sequence[int]], bytes]


@dataclass(frozen=True, slots=True)
class Question:
    """A whole context and how to go on from it; a `seed` must be set for a turn that draws.

    `eos_ids` are the model's; they end the turn unless it ignores them. `adapter` is the slot of
    the adapter that it is answered with. `allowed` tells what a grammar lets come after an output;
    None for a turn without one.
    """

    context: tuple[int, ...]
    params: SamplingParams
    logprobs: LogprobParams | None = None
    eos_ids: frozenset[int] = frozenset()
    adapter: int | None = None
    allowed: Allowed | None = None

    @property
    def scored(self) -> range:
        """The prompt positions whose log probabilities are asked for."""
        if self.logprobs is None or self.logprobs.input_start is None:
            return range(0)
        return range(max(1, self.logprobs.input_start), len(self.context))

    def score_spec(self, position: int) -> ChoiceSpec:
        """How the prompt token at `position` is scored."""
        given = self.context[position]
        return ChoiceSpec(seed=0, position=position, logprobs=self._logprob_spec(), given=given)

    def choice_spec(self, output: Sequence[int]) -> ChoiceSpec:
        """How the token after `output` is chosen."""
        params = self.params
        allowed = None if self.allowed is None else self.allowed(output)
        return ChoiceSpec(
            seed=params.seed or 0,
            position=len(self.context) + len(output),
            temperature=params.temperature,
            top_p=params.top_p,
            top_k=params.top_k,
            min_p=params.min_p,
            frequency_penalty=params.frequency_penalty,
            presence_penalty=params.presence_penalty,
            repetition_penalty=params.repetition_penalty,
            output=tuple(output) if params.has_penalties else (),
            bias=tuple(sorted(params.logit_bias.items())),
            banned=tuple(sorted(self._stop_ids())) if self._early(output, allowed) else (),
            allowed=allowed,
            logprobs=self._logprob_spec(),
        )

    def ends_with(self, output: Sequence[int]) -> bool:
        """Whether `output` is the whole answer."""
        n = len(output)
        late = n >= self.params.min_new_tokens or self.allowed is not None
        stopped = n > 0 and late and output[-1] in self._stop_ids()
        return stopped or n >= self.params.max_new_tokens

    def _stop_ids(self) -> frozenset[int]:
        own = frozenset(self.params.stop_token_ids)
        return own if self.params.ignore_eos and self.allowed is None else own | self.eos_ids

    def _early(self, output: Sequence[int], allowed: bytes | None) -> bool:
        """Whether what ends a turn may not be chosen yet; a grammar may leave nothing else."""
        early = len(output) < self.params.min_new_tokens
        if allowed is None:
            return early
        ids = {i for i in range(8 * len(allowed)) if allowed[i // 8] >> i % 8 & 1}
        return (early or self.params.ignore_eos) and bool(ids - self._stop_ids())

    def _logprob_spec(self) -> LogprobSpec | None:
        wanted = self.logprobs
        return None if wanted is None else LogprobSpec(wanted.n_top, wanted.ids)


@dataclass(frozen=True, slots=True)
class Answer:
    """What a turn gave: output tokens, and scores of prompt tokens."""

    choices: tuple[Choice, ...]
    scores: tuple[Choice, ...]

    def cut(self, n_choices: int, n_scores: int) -> Answer:
        return Answer(self.choices[:n_choices], self.scores[:n_scores])


class Oracle(Protocol):
    """Whatever can answer a question without an engine."""

    def answer(self, question: Question, most: int) -> Answer:
        """The first `most` tokens of the answer, or all of it where that is less."""
        ...


def differences(got: Answer, want: Answer, tolerance: float = 0.0) -> Iterator[str]:
    """What differs, in words: tokens, and log probabilities by more than `tolerance`.

    A tolerance of 0 demands the same floats.
    """
    yield from _of_choices("output", got.choices, want.choices, tolerance)
    yield from _of_choices("input score", got.scores, want.scores, tolerance)


def _of_choices(
    what: str, got: Sequence[Choice], want: Sequence[Choice], tolerance: float
) -> Iterator[str]:
    tokens = [choice.token for choice in got], [choice.token for choice in want]
    if tokens[0] != tokens[1]:
        yield f"{what} tokens are {tokens[0]}, a fresh run gives {tokens[1]}"
        return
    for at, (a, b) in enumerate(zip(got, want, strict=True)):
        if not _same(a, b, tolerance):
            yield f"{what} {at} is {a}, a fresh run gives {b}"


def _same(a: Choice, b: Choice, tolerance: float) -> bool:
    if tolerance == 0.0:
        return a == b
    left, right = list(_logprobs(a)), list(_logprobs(b))
    return [i for _, i in left] == [i for _, i in right] and all(
        abs(x - y) <= tolerance for (x, _), (y, _) in zip(left, right, strict=True)
    )


def _logprobs(choice: Choice) -> Iterator[tuple[float, int]]:
    if choice.logprob is not None:
        yield choice.logprob, choice.token
    yield from choice.top
    yield from choice.ids
