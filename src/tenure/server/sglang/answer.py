"""From the engine's events to an answer of `/generate`: text, ids and `meta_info`."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Sequence
from typing import Protocol, TypeAlias

import msgspec
import numpy as np

from tenure.core.events import (
    Aborted,
    Finish,
    HiddenStates,
    LengthReached,
    RoutedExperts,
    Stopped,
    TurnEvent,
    TurnFinished,
    TurnTokens,
    Usage,
)
from tenure.core.params import LogprobParams
from tenure.core.plan import Choice
from tenure.engine.detokenize import TextOptions, TurnText
from tenure.engine.stops import ends_of
from tenure.engine.text import Text
from tenure.server.sglang.translate import Ask

Triple: TypeAlias = "tuple[float | None, int, str | None]"
Body: TypeAlias = dict[str, object]

ERR_TYPES = {400: "BadRequestError", 500: "InternalServerError", 503: "ServiceUnavailableError"}
WEIGHT_VERSION = "default"


class Parts(Protocol):
    """The growing parts of an answer: its text, and lists by name."""

    def add_text(self, text: str) -> None: ...

    def add(self, name: str, items: Iterable[object]) -> None: ...

    def text(self) -> object: ...

    def items(self, name: str) -> object: ...


class PlainParts:
    """Parts as Python values, for an answer that is taken whole."""

    def __init__(self) -> None:
        self._text: list[str] = []
        self._items: dict[str, list[object]] = {}

    def add_text(self, text: str) -> None:
        self._text.append(text)

    def add(self, name: str, items: Iterable[object]) -> None:
        self._items.setdefault(name, []).extend(items)

    def text(self) -> str:
        return "".join(self._text)

    def items(self, name: str) -> list[object]:
        return list(self._items.get(name, ()))


class JsonParts:
    """Parts as JSON that grows: every event of a stream repeats them, and none encodes them again.

    JSON escapes a string character by character, so the JSON of a text is that of its pieces.
    """

    def __init__(self) -> None:
        self._text = bytearray()
        self._items: dict[str, bytearray] = {}

    def add_text(self, text: str) -> None:
        self._text += msgspec.json.encode(text)[1:-1]

    def add(self, name: str, items: Iterable[object]) -> None:
        grown = self._items.setdefault(name, bytearray())
        more = msgspec.json.encode(list(items))[1:-1]
        if grown and more:
            grown += b","
        grown += more

    def text(self) -> msgspec.Raw:
        return msgspec.Raw(b'"%b"' % self._text)

    def items(self, name: str) -> msgspec.Raw:
        return msgspec.Raw(b"[%b]" % self._items.get(name, b""))


class TurnAnswer:
    """One turn's answer so far. Feed it every event; `body` is the answer's shape at any time.

    Raises InvalidField for a stop pattern that cannot be used.
    """

    def __init__(self, ask: Ask, text: Text, parts: Parts) -> None:
        self.turn = ask.turn
        self.finish: Finish | None = None
        self._ask = ask
        self._tokenizer = text.tokenizer
        options = TextOptions(ask.show.skip_special, ask.show.keep_stop)
        self._text = TurnText(
            text.tokenizer, ends_of(ask.turn, text.eos_ids), ask.turn.params, options
        )
        self._parts = parts
        n_prompt = len(ask.turn.tokens)
        self._usage = Usage(n_prompt, 0, 0, n_prompt, 0)
        self._ended: TurnFinished | None = None
        self._n_output = 0

    def feed(self, event: TurnEvent) -> None:
        """Take the turn's next event."""
        match event:
            case TurnTokens():
                self._take_tokens(event)
            case TurnFinished():
                self._take_finish(event)

    def refuse(self, abort: Aborted) -> None:
        """End the answer of a turn that never ran, or whose events broke off."""
        self.finish = abort

    def body(self) -> Body:
        """`text` and the lists are cumulative; `finish_reason` is null while the turn runs."""
        body: Body = {
            "text": self._parts.text(),
            "output_ids": self._parts.items("output_ids"),
            "meta_info": self._meta_info(),
        }
        if self._ended is not None and self._ended.prompt is not None and self._ask.show.prompt_ids:
            body["prompt_token_ids"] = self._ended.prompt.tolist()
        return body

    def _take_tokens(self, event: TurnTokens) -> None:
        if event.usage is not None:
            self._usage = event.usage
        self._n_output += len(event.choices)
        ids = [choice.token for choice in event.choices]
        self._parts.add("output_ids", ids)
        self._parts.add_text(self._text.push(ids))
        if self._ask.turn.logprobs is not None:
            self._add_scores("output", event.choices, self._ask.turn.logprobs)

    def _take_finish(self, event: TurnFinished) -> None:
        self.finish = event.finish
        self._ended = event
        self._usage = event.usage
        self._parts.add_text(self._text.finish(event.finish))
        logprobs = self._ask.turn.logprobs
        if logprobs is None:
            return
        if logprobs.input_start == 0 and event.prompt:
            self._add_unscored(event.prompt[0])
        self._add_scores("input", event.input_scores, logprobs)

    def _add_unscored(self, token: int) -> None:
        """The first prompt token has nothing before it that could score it."""
        self._parts.add("input_token_logprobs", [self._triple(None, token)])
        self._parts.add("input_top_logprobs", [None])
        self._parts.add("input_token_ids_logprobs", [None])

    def _add_scores(self, side: str, choices: Sequence[Choice], logprobs: LogprobParams) -> None:
        scored = [self._triple(choice.logprob, choice.token) for choice in choices]
        self._parts.add(f"{side}_token_logprobs", scored)
        if logprobs.n_top:
            tops = [self._triples(choice.top) for choice in choices]
            self._parts.add(f"{side}_top_logprobs", tops)
        if logprobs.ids:
            chosen = [self._triples(choice.ids) for choice in choices]
            self._parts.add(f"{side}_token_ids_logprobs", chosen)

    def _triples(self, scores: Iterable[tuple[float, int]]) -> list[Triple]:
        return [self._triple(logprob, token) for logprob, token in scores]

    def _triple(self, logprob: float | None, token: int) -> Triple:
        shown = self._tokenizer.token_text(token) if self._ask.show.logprob_text else None
        return (logprob, token, shown)

    def _meta_info(self) -> Body:
        usage = self._usage
        meta: Body = {
            "id": self._ask.turn.id,
            "finish_reason": None if self.finish is None else finish_reason(self.finish),
            "prompt_tokens": usage.n_prompt,
            "completion_tokens": self._n_output,
            "cached_tokens": usage.n_cached,
            "reasoning_tokens": 0,
            "weight_version": WEIGHT_VERSION,
            "num_retractions": usage.n_preempted,
        }
        if usage.n_restored:
            device = usage.n_cached - usage.n_restored
            meta["cached_tokens_details"] = {"device": device, "storage": usage.n_restored}
        if self._ended is not None:
            timings = self._ended.timings
            meta["e2e_latency"] = timings.total_s
            meta["queue_time"] = timings.queued_s
            meta["first_token_latency"] = timings.first_token_s
            if self._ended.hidden is not None:
                meta["hidden_states"] = hidden_rows(self._ended.hidden)
            if self._ended.routed is not None:
                meta.update(routed_experts(self._ended.routed))
        if self._ask.turn.logprobs is not None:
            meta.update((name, self._parts.items(name)) for name in self._lists())
        return meta

    def _lists(self) -> list[str]:
        kinds = ["token_logprobs"]
        if self._ask.turn.logprobs is not None and self._ask.turn.logprobs.n_top:
            kinds.append("top_logprobs")
        if self._ask.turn.logprobs is not None and self._ask.turn.logprobs.ids:
            kinds.append("token_ids_logprobs")
        return [f"{side}_{kind}" for kind in kinds for side in ("input", "output")]


def hidden_rows(hidden: HiddenStates) -> list[object]:
    """The rows of the prompt as one entry, then those of the output one by one."""
    if not hidden.rows:
        return []
    rows = np.frombuffer(hidden.rows, np.float32).reshape(-1, hidden.width).tolist()
    return [rows[: hidden.n_prompt], *rows[hidden.n_prompt :]]


def routed_experts(routed: RoutedExperts) -> Body:
    """Base64 of little-endian int32, and the shape [tokens, layers, experts a token]."""
    width = routed.n_layers * routed.n_used
    return {
        "routed_experts": base64.b64encode(routed.ids.tobytes()).decode(),
        "routed_experts_dtype": "int32",
        "routed_experts_shape": [len(routed.ids) // width, routed.n_layers, routed.n_used],
    }


def finish_reason(finish: Finish) -> Body:
    """How a turn ended, in the interface's words."""
    match finish:
        case Stopped(matched):
            return {"type": "stop", "matched": matched}
        case LengthReached(n_tokens):
            return {"type": "length", "length": n_tokens}
        case Aborted():
            return _abort_reason(finish)


def _abort_reason(abort: Aborted) -> Body:
    """Status and type stand only where the turn failed, not where a caller asked for its end."""
    reason: Body = {"type": "abort", "message": abort.message}
    if abort.status is not None:
        reason["status_code"] = abort.status
        reason["err_type"] = ERR_TYPES.get(abort.status, "Error")
    if abort.code is not None:
        reason["code"] = abort.code
    return reason
