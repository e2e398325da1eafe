"""Grammars of turns: compiled off the engine's thread, kept, and followed token by token."""

from __future__ import annotations

import re
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from queue import SimpleQueue
from typing import TypeAlias

from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper

from tenure.core.errors import GrammarFailed, InvalidField
from tenure.core.grammar import GrammarSpec
from tenure.core.tokens import Tokens, TokenSource
from tenure.engine.grammar_child import LIMITS
from tenure.engine.grammar_trial import GrammarTrial, Refused
from tenure.engine.text import Text
from tenure.model.tokenizer import Tokenizer
from tenure.sched.request import Matcher

N_COMPILERS = 2
MAX_KEPT = 128
MAX_REASON_CHARS = 300

Key: TypeAlias = tuple[str, str]


@dataclass(frozen=True, slots=True)
class _Wrong:
    """Why a grammar cannot be used; kept like one that can."""

    reason: str


class Grammars:
    """Compiled grammars by kind and source, those used last. Safe from any thread.

    A grammar is first compiled in a process of its own, which time and memory bound; only what
    passed there is compiled here.
    """

    def __init__(self, text: Text) -> None:
        self._tokenizer = text.tokenizer
        self._eos_ids = text.eos_ids or text.tokenizer.eos_ids
        self._lock = threading.Lock()
        self._vocabulary: LLTokenizer | None = None
        self._kept: OrderedDict[Key, LLMatcher | _Wrong] = OrderedDict()
        self._awaited: dict[Key, list[Callable[[], None]]] = {}
        self._threads = ThreadPoolExecutor(N_COMPILERS, "tenure-grammar")
        self._trials: SimpleQueue[GrammarTrial] = SimpleQueue()
        trials = [GrammarTrial() for _ in range(N_COMPILERS)]
        for trial in trials:
            self._trials.put(trial)
        self._end = weakref.finalize(self, _end, self._threads, trials)

    def knows(self, spec: GrammarSpec) -> bool:
        """Whether `matcher` has nothing to wait for."""
        with self._lock:
            return _key(spec) in self._kept

    def prepare(self, spec: GrammarSpec, done: Callable[[], None]) -> None:
        """Compile in a thread; `done` is called there when the outcome is kept."""
        key = _key(spec)
        with self._lock:
            first = key not in self._awaited
            self._awaited.setdefault(key, []).append(done)
        if first:
            self._threads.submit(self._prepare, key)

    def matcher(self, spec: GrammarSpec, prompt: TokenSource) -> Matcher:
        """A matcher where the output of a turn with this prompt begins.

        Compiles what is not kept. Raises InvalidField, naming the field that asked for it.
        """
        n_prompt = len(prompt)
        if spec.n_begun > n_prompt:
            allowed = f"at most the prompt's {n_prompt} tokens"
            raise InvalidField("grammar_begun", spec.n_begun, allowed)
        begun = prompt.read(n_prompt - spec.n_begun, n_prompt)
        found = self._find(_key(spec))
        match found:
            case _Wrong(reason):
                shown = spec.source if len(spec.source) < 60 else f"{spec.source[:57]}..."
                raise InvalidField(spec.field, shown, f"a grammar that can be used ({reason})")
            case _:
                # A copy is independent of the one kept, and costs less than a tenth of a step.
                followed = GrammarMatcher(found.deep_copy())
        _follow(followed, spec, begun)
        if spec.after is None:
            return followed
        return FreeUntil(spec.after, followed, self._free())

    def close(self) -> None:
        """End the threads and processes."""
        self._end()

    # -- inside

    def _prepare(self, key: Key) -> None:
        try:
            self._find(key)
        finally:
            with self._lock:
                waiting = self._awaited.pop(key)
            for done in waiting:
                done()

    def _find(self, key: Key) -> LLMatcher | _Wrong:
        with self._lock:
            found = self._kept.get(key)
            if found is not None:
                self._kept.move_to_end(key)
                return found
        made = self._make(key)
        with self._lock:
            self._kept[key] = made
            if len(self._kept) > MAX_KEPT:
                self._kept.popitem(last=False)
        return made

    def _make(self, key: Key) -> LLMatcher | _Wrong:
        trial = self._trials.get()
        try:
            grammar = trial.notation(*key)
        except Refused as refused:
            return _Wrong(_brief(refused.reason))
        finally:
            self._trials.put(trial)
        made = LLMatcher(self._words(), grammar, log_level=0, limits=LIMITS)
        made.compute_bitmask()
        return _Wrong(_brief(made.get_error())) if made.is_error() else made

    def _words(self) -> LLTokenizer:
        with self._lock:
            if self._vocabulary is None:
                words = _Words(self._tokenizer, self._eos_ids)
                eos = sorted(i for i in self._eos_ids if i < self._tokenizer.n_vocab)
                self._vocabulary = LLTokenizer(TokenizerWrapper(words), eos_token=eos)
            return self._vocabulary

    def _free(self) -> bytes:
        """A bit for each id that does not end a turn."""
        bits = (1 << self._tokenizer.n_vocab) - 1
        for token in self._eos_ids:
            bits &= ~(1 << token)
        return bits.to_bytes(-(-self._tokenizer.n_vocab // 8), "little")


class GrammarMatcher:
    """A matcher over llguidance's own."""

    def __init__(self, inner: LLMatcher) -> None:
        self._inner = inner

    def allowed(self) -> bytes:
        """Raises GrammarFailed where the grammar became too complex, or has no way to go on."""
        bits = self._inner.compute_bitmask()
        if self._inner.is_error():
            raise GrammarFailed(_brief(self._inner.get_error()))
        return bits

    def take(self, token: int) -> None:
        """Raises GrammarFailed."""
        if not self._inner.consume_token(token):
            raise GrammarFailed(_brief(self._inner.get_error()))


class FreeUntil:
    """Lets everything but the end pass until `mark` has come; what follows is `then`'s."""

    def __init__(self, mark: int, then: Matcher, free: bytes) -> None:
        self._mark = mark
        self._then = then
        self._free: bytes | None = free

    def allowed(self) -> bytes:
        return self._then.allowed() if self._free is None else self._free

    def take(self, token: int) -> None:
        if self._free is None:
            self._then.take(token)
        elif token == self._mark:
            self._free = None


class _Words:
    """The vocabulary as llguidance's TokenizerWrapper asks for it."""

    def __init__(self, tokenizer: Tokenizer, eos_ids: frozenset[int]) -> None:
        self.eos_token_id = min(eos_ids)
        self.bos_token_id = tokenizer.bos_id
        self.tokens = [tokenizer.token_bytes(i) for i in range(tokenizer.n_vocab)]
        self.special_token_ids = sorted(tokenizer.special_ids)
        self._encode = tokenizer.encode
        names = filter(None, map(tokenizer.token_text, self.special_token_ids))
        self._names = re.compile("|".join(map(re.escape, sorted(names, key=len, reverse=True))))

    def __call__(self, text: str) -> list[int]:
        """Ids of text in which the name of a special token is text like any other."""
        ids: list[int] = []
        start = 0
        for name in self._names.finditer(text) if self._names.pattern else ():
            # Cut inside the name, it is not seen.
            ids += self._encode(text[start : name.start() + 1], False)
            start = name.start() + 1
        return ids + self._encode(text[start:], False)


def _key(spec: GrammarSpec) -> Key:
    return spec.kind.value, spec.source


def _follow(matcher: Matcher, spec: GrammarSpec, begun: Tokens) -> None:
    try:
        for token in begun:
            matcher.take(token)
    except GrammarFailed as error:
        allowed = f"as many tokens as the grammar lets begin a text ({error.reason})"
        raise InvalidField("grammar_begun", spec.n_begun, allowed) from None


def _brief(reason: str) -> str:
    """The first lines of what llguidance says."""
    lines = " ".join(reason.replace("<non-verbose/>", "").split())
    return lines if len(lines) <= MAX_REASON_CHARS else lines[: MAX_REASON_CHARS - 3] + "..."


def _end(threads: ThreadPoolExecutor, trials: Iterable[GrammarTrial]) -> None:
    for trial in trials:
        trial.close()
    threads.shutdown(wait=False, cancel_futures=True)
