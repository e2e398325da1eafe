"""The requests of the sessions interface, as they stand on the wire."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from tenure.server.openai.schema import MessageBody
from tenure.server.sglang.schema import SamplingBody
from tenure.server.wire import Ids, Wire, about

Messages = Annotated[list[MessageBody], Field(min_length=1)]


class OpenBody(Wire):
    """`POST /v1/sessions`."""

    id: str | None = about(None, "Made by the server if absent.")
    ttl_s: float | None = about(None, "Idle seconds until it expires; absent: never.", minimum=0)
    max_tokens: int | None = about(None, "Most tokens of a context, output included.", minimum=2)
    priority: int = about(0, "Of turns that name none; larger goes first.")
    streaming: bool = about(False, "One turn at a time, append only.")
    namespace: str | None = about(None, "KV is shared inside a namespace only.")
    metadata: dict[str, object] | None = about(None, "An object of your own; at most 16 KiB.")


class ChangeBody(Wire):
    """`PATCH /v1/sessions/{session_id}`; what is absent stays as it is."""

    ttl_s: float | None = about(None, "Idle seconds until it expires; 0: never.", minimum=0)
    max_tokens: int | None = about(None, "Most tokens of a context; 0: no limit.", minimum=0)
    priority: int | None = about(None, "Of turns that name none.")
    metadata: dict[str, object] | None = about(None, "Takes the place of the object.")


class TurnBody(SamplingBody):
    """`POST /v1/sessions/{session_id}/turns`: one of `text`, `input_ids` and `messages`."""

    text: str | None = about(None, "Text to append as it is.")
    input_ids: Ids | None = about(None, "Token ids to append.")
    messages: Messages | None = about(None, "New messages only, through the model's chat template.")
    turn_id: str | None = about(None, "Its id; a repeat answers with the stored result.")
    parent: str | None = about(None, "The turn to continue; absent: the tip.")
    expected_tip: str | None = about(None, "Refuse unless this is the tip; empty: no turn yet.")
    on_abort: Literal["rollback", "commit"] = about(
        "rollback", "What an abort leaves: nothing, or the output so far."
    )
    hold_s: float | None = about(
        None, "Seconds after the turn in which other idle sessions' KV goes first; at most 3,600."
    )
    stream: bool = about(False, "Answer with server-sent events.")
    lora_path: str | None = about(None, "A loaded adapter, by its name.")
    custom_logit_processor: str | None = about(None, "An installed processor, by its name.")


class SpotBody(Wire):
    """A place in a session's history: the end of a turn, or after so many of its tokens."""

    turn: str | None = about(None, "A turn; absent: the tip.")
    n_tokens: int | None = about(None, "The first tokens of its history only.", minimum=1)
    expected_tip: str | None = about(None, "Refuse unless this is the tip.")


class ForkBody(SpotBody):
    """`POST .../fork`; options that are absent are those of the source."""

    id: str | None = about(None, "Of the new session; made by the server if absent.")
    ttl_s: float | None = about(None, "Idle seconds until it expires; 0: never.", minimum=0)
    max_tokens: int | None = about(None, "Most tokens of a context; 0: no limit.", minimum=0)
    priority: int | None = about(None, "Of turns that name none.")
    streaming: bool | None = about(None, "One turn at a time, append only.")
    metadata: dict[str, object] | None = about(None, "An object of your own.")


class SpanBody(Wire):
    """`replace` of a compaction: tokens `[start, end)` make way for `text` or `input_ids`."""

    start: int = about(0, "Where the span begins, in tokens.", minimum=0)
    end: int | None = about(None, "Where it ends; absent: the end of the history.", minimum=0)
    text: str | None = about(None, "What stands there from now on.")
    input_ids: Ids | None = about(None, "The same, as token ids.")


class CompactBody(Wire):
    """`POST .../compact`: `keep_prefix` and `keep_turns`, or `replace`."""

    keep_prefix: int | None = about(None, "Tokens to keep at the start.", minimum=0)
    keep_turns: int | None = about(None, "Turns to keep at the end.", minimum=0)
    replace: SpanBody | None = about(None, "A span and what takes its place.")
    expected_tip: str | None = about(None, "Refuse unless this is the tip.")
