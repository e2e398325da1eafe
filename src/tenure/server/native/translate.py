"""From this interface's words to the engine's."""

from __future__ import annotations

import hashlib
import json
from uuid import uuid4

from tenure.core.errors import InvalidField, UserError
from tenure.core.tokens import Tokens, tokens
from tenure.core.turns import (
    ForkSession,
    OnAbort,
    OpenSession,
    SessionChange,
    SessionRef,
    Spot,
    check_id,
)
from tenure.server.chat.ask import AdapterName, ChatAsk, InSession, Run, Talk, TextAsk, View
from tenure.server.native.schema import (
    ChangeBody,
    ForkBody,
    OpenBody,
    SpanBody,
    SpotBody,
    TurnBody,
)
from tenure.server.openai.chat_translate import template_message
from tenure.server.processors import processor_of
from tenure.server.sglang.sampling import Bounds, sampling_params, shape_of
from tenure.server.sglang.translate import namespace
from tenure.server.wire import check_ids

TAKEN_IDS = frozenset({"events", "import"})
"""Ids that would stand where another endpoint stands."""

NOT_INPUT = frozenset({"stream", "turn_id", "expected_tip"})
"""Fields that do not change what a turn does."""


def open_session(body: OpenBody) -> OpenSession:
    """Raises InvalidField."""
    return OpenSession(
        id=uuid4().hex if body.id is None else url_id("id", body.id),
        streaming=body.streaming,
        timeout_s=_ttl(body.ttl_s) or None,
        max_tokens=body.max_tokens,
        priority=body.priority,
        namespace=namespace(body.namespace, None),
        metadata=_metadata(body.metadata) or "{}",
    )


def change_of(body: ChangeBody | ForkBody) -> SessionChange:
    """Raises InvalidField."""
    return SessionChange(_ttl(body.ttl_s), body.max_tokens, body.priority, _metadata(body.metadata))


def spot_of(session: str, body: SpotBody) -> Spot:
    return Spot(session, body.turn, body.n_tokens, body.expected_tip)


def fork_of(session: str, body: ForkBody) -> ForkSession:
    """Raises InvalidField."""
    new = uuid4().hex if body.id is None else url_id("id", body.id)
    return ForkSession(spot_of(session, body), new, change_of(body), body.streaming)


def url_id(field: str, value: str) -> str:
    """An id that can stand in a path. Raises InvalidField."""
    check_id(field, value)
    if "/" in value or value in TAKEN_IDS or value.strip(".") == "":
        raise InvalidField(field, value, "an id without '/' that no path of the interface has")
    return value


def digest_of(body: TurnBody) -> str:
    """The same for two requests that ask for the same turn, and for no others."""
    asked = body.model_dump(mode="json", exclude=set(NOT_INPUT), exclude_defaults=True)
    text = json.dumps(asked, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


class TurnWords:
    """What one turn asks for, in the engine's words. Raises UserError, naming the field."""

    def __init__(self, session: str, body: TurnBody, bounds: Bounds) -> None:
        given = (body.text, body.input_ids, body.messages)
        if sum(value is not None for value in given) != 1:
            raise UserError("Give exactly one of text, input_ids and messages.")
        if body.n != 1:
            raise InvalidField("n", body.n, "1; fork the session for more answers")
        if body.grammar_begun:
            raise InvalidField("grammar_begun", body.grammar_begun, "0 in a session")
        self.name = uuid4().hex if body.turn_id is None else url_id("turn_id", body.turn_id)
        self.digest = digest_of(body)
        self.session = session
        self._body = body
        self._bounds = bounds
        self.run = Run(
            params=sampling_params(body, bounds),
            grammar=shape_of(body),
            adapter=AdapterName(body.lora_path, "lora_path") if body.lora_path else None,
            processor=processor_of(body.custom_logit_processor, body.custom_params),
            on_abort=OnAbort(body.on_abort),
            hold_s=body.hold_s,
        )
        self._view = View(body.skip_special_tokens, body.no_stop_trim, calls=False, reasoning=False)

    @property
    def is_talk(self) -> bool:
        """Whether messages are to be rendered, which depends on what the session holds."""
        return self._body.messages is not None

    @property
    def n_chars(self) -> int:
        return len(self._body.text or "")

    def chat_ask(self) -> ChatAsk:
        messages = tuple(
            template_message(message, f"messages[{i}]")
            for i, message in enumerate(self._body.messages or ())
        )
        return ChatAsk(Talk(messages), self._place(), self.run, self._view, (uuid4().hex,))

    def text_ask(self) -> TextAsk:
        return self._plain(self._tokens())

    def recall(self) -> TextAsk:
        """The same turn, known to have run: nothing of its input is looked at."""
        return self._plain(tokens())

    def _plain(self, prompt: Tokens) -> TextAsk:
        return TextAsk((prompt,), self._place(), self.run, self._view, ((uuid4().hex,),))

    def _place(self) -> InSession:
        body = self._body
        return InSession(
            SessionRef(
                self.session,
                parent=body.parent,
                at_tip=body.parent is None,
                expected_tip=body.expected_tip,
                name=self.name,
                request_digest=self.digest,
            )
        )

    def _tokens(self) -> Tokens:
        body, bounds = self._body, self._bounds
        return given_tokens(body.text, body.input_ids, bounds, special=True)


def span_tokens(body: SpanBody, bounds: Bounds) -> Tokens:
    """What takes a span's place; nothing where neither is given. Raises UserError."""
    if body.text is not None and body.input_ids is not None:
        raise UserError("Give at most one of replace.text and replace.input_ids.")
    return given_tokens(body.text, body.input_ids, bounds, special=False)


def given_tokens(
    text: str | None, ids: list[int] | None, bounds: Bounds, *, special: bool
) -> Tokens:
    """Token ids of a text, or those given. Raises InvalidField, ContextTooLong."""
    if text is not None:
        bounds.text.check_length(text, bounds.max_tokens)
        return tokens(bounds.text.tokenizer.encode(text, add_special=special))
    check_ids("input_ids", ids or (), bounds.n_vocab)
    return tokens(ids or ())


def _ttl(ttl_s: float | None) -> float | None:
    """Raises InvalidField, in this interface's words."""
    if ttl_s is not None and not 0 <= ttl_s < float("inf"):
        raise InvalidField("ttl_s", ttl_s, "a number of seconds, at least 0")
    return ttl_s


def _metadata(given: dict[str, object] | None) -> str | None:
    """Raises InvalidField for what JSON cannot hold, and for what nests too deep."""
    if given is None:
        return None
    try:
        return json.dumps(given, separators=(",", ":"), allow_nan=False)
    except (ValueError, RecursionError):
        raise InvalidField("metadata", "these values", "plain JSON") from None
