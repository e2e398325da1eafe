"""The requests of OpenAI's responses and conversations."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias, cast

from pydantic import Discriminator, Field, Tag
from pydantic.types import FailFast
from typing_extensions import TypeAliasType

from tenure.server.chat.ask import Effort
from tenure.server.chat.wire_types import Json, Labels
from tenure.server.sglang.schema import SessionBody
from tenure.server.wire import Texts, Wire, about

Status = Literal["in_progress", "completed", "incomplete"]


class ContentBody(Wire):
    """A part of an item's content."""

    type: str
    text: str | None = None
    refusal: str | None = None
    prompt_cache_breakpoint: Any = about(None, "Accepted; equal prefixes are found anyway.")
    annotations: list[Any] | None = about(None, "Accepted from earlier answers.")
    logprobs: list[Any] | None = about(None, "Accepted from earlier answers.")
    image_url: Any = about(None, "Not supported by this model.")
    file_id: Any = about(None, "Not supported by this model.")
    file_data: Any = about(None, "Not supported by this model.")
    file_url: Any = about(None, "Not supported by this model.")
    filename: Any = about(None, "Not supported by this model.")
    detail: Any = about(None, "Not supported by this model.")


Contents = TypeAliasType("Contents", Annotated[list[ContentBody], FailFast()])


class MessageItem(Wire):
    """What somebody said."""

    type: Literal["message"] = "message"
    id: str | None = None
    role: Literal["user", "assistant", "system", "developer"]
    content: str | Contents
    status: Status | None = None
    phase: str | None = about(None, "Accepted; replies have no phases.")


class FunctionCallItem(Wire):
    """A call that the model made."""

    type: Literal["function_call"]
    id: str | None = None
    call_id: str
    name: str
    arguments: str
    status: Status | None = None
    caller: Any = about(None, "Accepted from earlier answers.")
    namespace: Any = about(None, "Not supported.")


class FunctionOutputItem(Wire):
    """What a call returned."""

    type: Literal["function_call_output"]
    id: str | None = None
    call_id: str
    output: str | Contents
    name: str | None = None
    status: Status | None = None
    caller: Any = about(None, "Accepted from earlier answers.")
    namespace: Any = about(None, "Not supported.")


class ReasoningItem(Wire):
    """Reasoning of an earlier answer."""

    type: Literal["reasoning"]
    id: str | None = None
    summary: list[Any] | None = about(None, "Accepted from earlier answers.")
    content: Contents | None = None
    encrypted_content: str | None = about(None, "Not supported.")
    status: Status | None = None


class ItemReference(Wire):
    """An item that the server has, by its id."""

    type: Literal["item_reference"] = "item_reference"
    id: str


def _kind(data: Any) -> str:
    """The type of an item that comes from the wire."""
    if not isinstance(data, dict):
        return "none"
    given = cast("dict[str, object]", data)
    default = "message" if "role" in given else "item_reference"
    return str(given.get("type") or default)


ItemBody: TypeAlias = Annotated[
    Annotated[MessageItem, Tag("message")]
    | Annotated[FunctionCallItem, Tag("function_call")]
    | Annotated[FunctionOutputItem, Tag("function_call_output")]
    | Annotated[ReasoningItem, Tag("reasoning")]
    | Annotated[ItemReference, Tag("item_reference")],
    Discriminator(
        _kind,
        custom_error_type="item_type",
        custom_error_message=(
            "an item of type message, function_call, function_call_output, reasoning or "
            "item_reference"
        ),
    ),
]


Items = TypeAliasType("Items", Annotated[list[ItemBody], FailFast()])


class ResponseTool(Wire):
    """A function that the model may call; other types are refused by name."""

    type: str
    name: str | None = None
    description: str | None = None
    parameters: Json | None = None
    strict: bool | None = None
    defer_loading: bool | None = about(None, "Accepted as false.")


ResponseTools = TypeAliasType("ResponseTools", Annotated[list[ResponseTool], FailFast()])


class NamedTool(Wire):
    """A `tool_choice` that names a function."""

    type: str
    name: str | None = None
    mode: str | None = None
    tools: list[Any] | None = None


class TextFormat(Wire):
    """`text.format`."""

    type: Literal["text", "json_object", "json_schema"]
    name: str | None = None
    description: str | None = None
    schema_: Json | None = Field(None, alias="schema")
    strict: bool | None = None


class TextConfig(Wire):
    """`text`."""

    format: TextFormat | None = None
    verbosity: str | None = about(None, "Accepted as medium.")


class ReasoningConfig(Wire):
    """`reasoning`."""

    effort: Effort | None = None
    summary: str | None = about(None, "Not supported; the reasoning itself is given.")
    generate_summary: str | None = about(None, "Not supported.")
    context: str | None = about(None, "Accepted as auto.")
    mode: str | None = about(None, "Accepted as standard.")


class StreamConfig(Wire):
    """`stream_options`."""

    include_obfuscation: bool = about(False, "Accepted; nothing is padded.")


class ConversationRef(Wire):
    """`conversation` as an object."""

    id: str


class ResponseBody(Wire):
    """`/v1/responses`."""

    model: str | None = about(None, "The served model, an adapter, or model:adapter.")
    input: str | Items | None = None
    instructions: str | None = about(None, "A system message; not inherited.")
    previous_response_id: str | None = about(None, "Go on from any earlier response.")
    conversation: str | ConversationRef | None = about(None, "Go on with a conversation.")
    store: bool = about(True, "Keep the response, and its KV in a session.")
    background: bool = about(False, "Answer at once; the response is produced meanwhile.")
    stream: bool = about(False, "Answer with server-sent events.")
    stream_options: StreamConfig | None = None
    max_output_tokens: int | None = about(None, "The context's end if absent.")
    temperature: float = about(1.0, "0 is greedy.", minimum=0)
    top_p: float = about(1.0, "Nucleus mass.", exclusiveMinimum=0, maximum=1)
    top_logprobs: int | None = about(None, "Alternatives to report at each position.")
    include: Texts | None = about(None, "message.output_text.logprobs, or absent.")
    tools: ResponseTools | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedTool | None = None
    parallel_tool_calls: bool = about(True, "False shows the first call only.")
    text: TextConfig | None = None
    reasoning: ReasoningConfig | None = None
    metadata: Labels | None = about(None, "Kept with the response.")
    user: str | None = about(None, "Kept with the response.")
    safety_identifier: str | None = about(None, "Kept with the response.")
    prompt_cache_key: str | None = about(None, "Kept; equal prefixes are found anyway.")
    max_tool_calls: int | None = about(None, "Accepted; the server calls no tools itself.")
    service_tier: str | None = about(None, "Accepted as auto and default.")
    truncation: str | None = about(None, "Accepted as disabled.")
    prompt_cache_retention: str | None = about(None, "Accepted as in_memory.")
    prompt_cache_options: Json | None = about(None, "Not supported.")
    prompt: Any = about(None, "Not supported.")
    context_management: list[Any] | None = about(None, "Not supported.")
    background_options: Any = about(None, "Not supported.")
    access_programs: Any = about(None, "Not supported.")
    image: Any = about(None, "Not supported by this model.")
    moderation: Any = about(None, "Not supported.")
    top_k: int = about(-1, "-1 is off; else at least 1.", minimum=-1)
    min_p: float = about(0.0, "Least share of the most likely token.", minimum=0, maximum=1)
    frequency_penalty: float = about(0.0, "Per earlier use.", minimum=-2, maximum=2)
    presence_penalty: float = about(0.0, "For any earlier use.", minimum=-2, maximum=2)
    repetition_penalty: float = about(1.0, "1 is neutral.", exclusiveMinimum=0, maximum=2)
    stop: str | Texts | None = about(None, "Stop strings.")
    seed: int | None = about(None, "Same seed, same tokens.")
    priority: int | None = about(None, "Larger goes first under priority order.")
    extra_key: str | None = about(None, "Keeps cached prompts apart.")
    cache_salt: str | None = about(None, "Keeps cached prompts apart.")
    session_params: SessionBody | None = about(None, "Run inside an open session.")
    session_id: str | None = about(None, "Tag the cached prompt; needs store false.")
    chat_template_kwargs: Json | None = about(None, "Further template variables.")

    @property
    def conversation_id(self) -> str | None:
        match self.conversation:
            case ConversationRef(id=found):
                return found
            case found:
                return found


class ConversationBody(Wire):
    """`/v1/conversations`."""

    items: Items | None = None
    metadata: Labels | None = None


class MetadataBody(Wire):
    """An update of a conversation."""

    metadata: Labels


class ItemsBody(Wire):
    """`/v1/conversations/{id}/items`."""

    items: Items
