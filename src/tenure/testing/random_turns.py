"""Draws turns: where in a session, with which new tokens, decoded how."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random

from tenure.core.grammar import GrammarKind, GrammarSpec
from tenure.core.params import LogprobParams, SamplingParams
from tenure.core.turns import SessionRef
from tenure.testing.plain_sessions import PlainSession

KINDS = {"append": 40, "branch": 20, "rewind": 18, "drop": 6, "replace": 12, "root": 4}
"""How a turn stands to what its session holds, with weights."""

GRAMMARS = (
    "[a-z ]{2,40}",
    "(foo|bar|foobar){1,9}",
    "only this",
    "(yes|no), (I|we) (do|will) [a-f]+",
)


@dataclass(frozen=True, slots=True)
class Scale:
    """How large a programme gets. Lengths are in tokens; prompts draw ids from `alphabet`."""

    n_moves: int = 150
    n_sessions: int = 6
    max_prompt: int = 150
    max_new: int = 40
    max_output: int = 16
    alphabet: Sequence[int] = range(256)

    @property
    def longest(self) -> int:
        """The longest sequence that a turn reaches, and one more for the engine's limit."""
        return self.max_prompt + self.max_output + 1


class RandomTurns:
    """A stream of turns, a function of the random generator's state and of what is asked."""

    def __init__(self, rng: Random, scale: Scale) -> None:
        self._rng = rng
        self._scale = scale
        self._stems = [self._ids(scale.max_prompt // 3) for _ in range(3)]

    def place(self, session: PlainSession) -> tuple[str, SessionRef]:
        """A kind of KINDS that the session allows now, and the reference that makes it."""
        rng, root, done = self._rng, SessionRef(session.id), session.done()
        if session.streaming:
            return "append", root
        kind = rng.choices(list(KINDS), list(KINDS.values()))[0]
        match kind:
            case "replace" if session.turns:
                parent = rng.choice([None, *session.turns])
                drop = rng.random() < 0.3
                return kind, SessionRef(session.id, parent, None, True, drop)
            case "append" if done:
                return kind, replace(root, parent=done[-1])
            case "branch" if done:
                return kind, replace(root, parent=rng.choice(done))
            case "rewind" if done:
                offset = rng.choice([-1, 1]) * rng.randrange(1, self._scale.max_prompt)
                return kind, replace(root, parent=rng.choice(done), offset=offset)
            case "drop" if done:
                return kind, replace(root, parent=rng.choice(done), drop_previous_output=True)
            case _:
                return "root", root

    def shorter(self, ref: SessionRef) -> SessionRef:
        """The same place, rewound to where there is room for more."""
        return replace(ref, offset=self._rng.randrange(1, self._scale.max_prompt // 2))

    def new_ids(self, n_before: int) -> list[int]:
        """Tokens to come after `n_before` others; at the start, one of a few known openings."""
        if not n_before:
            stem = self._rng.choice(self._stems)
            return stem[: self._rng.randrange(len(stem))] + self._ids(2)
        most = min(self._scale.max_new, self._scale.max_prompt - n_before)
        return self._ids(self._rng.randrange(1, most + 1))

    def resent(self, contexts: Sequence[Sequence[int]]) -> list[int]:
        """A whole prompt that begins like one of `contexts`."""
        known = self._rng.choice([*self._stems, *contexts])
        head = list(known[: self._rng.randrange(self._scale.max_prompt)])
        return head + self.new_ids(len(head))

    def params(self) -> SamplingParams:
        rng, alphabet = self._rng, self._scale.alphabet
        n_tokens = rng.randrange(self._scale.max_output + 1)
        greedy = SamplingParams(
            max_new_tokens=n_tokens,
            temperature=0.0,
            min_new_tokens=rng.randrange(n_tokens + 1),
            stop_token_ids=tuple(rng.choices(alphabet, k=rng.choice([0, 0, 20]))),
            ignore_eos=rng.random() < 0.5,
        )
        if rng.random() < 0.4:
            return greedy
        return replace(
            greedy,
            temperature=rng.choice([0.4, 0.8, 1.3]),
            top_p=rng.choice([1.0, 0.9]),
            top_k=rng.choice([-1, 40]),
            min_p=rng.choice([0.0, 0.02]),
            frequency_penalty=rng.choice([0.0, 0.5]),
            repetition_penalty=rng.choice([1.0, 1.2]),
            logit_bias=rng.choice([{}, {rng.choice(alphabet): 1.5}]),
            seed=rng.getrandbits(64),
        )

    def logprobs(self, n_prompt: int) -> LogprobParams | None:
        rng = self._rng
        start = rng.choice([None, rng.randrange(n_prompt)])
        ids = tuple(rng.choices(self._scale.alphabet, k=rng.choice([0, 2])))
        return rng.choice([None, LogprobParams(start, rng.choice([0, 3]), ids)])

    def grammar(self) -> GrammarSpec | None:
        """For one turn in four, a grammar that leaves much, little or nothing to choose."""
        if self._rng.random() < 0.75:
            return None
        return GrammarSpec(GrammarKind.REGEX, self._rng.choice(GRAMMARS))

    def _ids(self, n: int) -> list[int]:
        return self._rng.choices(self._scale.alphabet, k=n)
