"""The requests of Anthropic's messages, with the additions that name sessions and namespaces."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias, cast

from pydantic import ConfigDict, Discriminator, Field, Tag
from pydantic.types import FailFast
from typing_extensions import TypeAliasType

from tenure.server.chat.ask import Effort
from tenure.server.chat.wire_types import Json
from tenure.server.sglang.schema import SessionBody
from tenure.server.wire import Texts, Wire, about

KINDS = ("text", "tool_use", "tool_result", "thinking")


class CacheControl(Wire):
    """A mark; equal prefixes are cached with or without it."""

    type: Literal["ephemeral"]
    ttl: str | None = about(None, "Accepted; KV is kept while there is room.")


class TextBlock(Wire):
    """Text."""

    type: Literal["text"] = "text"
    text: str
    cache_control: CacheControl | None = None
    citations: list[Any] | None = about(None, "Not supported.")


TextBlocks = TypeAliasType("TextBlocks", Annotated[list[TextBlock], FailFast()])


class ToolUseBlock(Wire):
    """A call that the model made."""

    type: Literal["tool_use"]
    id: str
    name: str
    input: Json
    cache_control: CacheControl | None = None
    caller: Any = about(None, "Accepted from earlier answers.")
    toolset_name: str | None = about(None, "Not supported.")


class ThinkingBlock(Wire):
    """Reasoning of an earlier answer."""

    type: Literal["thinking"]
    thinking: str
    signature: str = about("", "Accepted from earlier answers.")


def _kind(data: Any) -> str:
    """The type of a block that comes from the wire."""
    if not isinstance(data, dict):
        return "other"
    return str(cast("dict[str, object]", data).get("type"))


class OtherBlock(Wire):
    """A block that the model cannot take; it is refused by its type."""

    model_config = ConfigDict(extra="allow", strict=True, frozen=True)

    type: str


def _result_kind(data: Any) -> str:
    return "text" if _kind(data) == "text" else "other"


ResultPart: TypeAlias = Annotated[
    Annotated[TextBlock, Tag("text")] | Annotated[OtherBlock, Tag("other")],
    Discriminator(_result_kind),
]


ResultParts = TypeAliasType("ResultParts", Annotated[list[ResultPart], FailFast()])


class ToolResultBlock(Wire):
    """What a call returned."""

    type: Literal["tool_result"]
    tool_use_id: str
    content: str | ResultParts | None = None
    is_error: bool = about(False, "The result is told to the model as an error.")
    cache_control: CacheControl | None = None
    toolset_name: str | None = about(None, "Not supported.")


def _block_kind(data: Any) -> str:
    kind = _kind(data)
    return kind if kind in KINDS else "other"


Block: TypeAlias = Annotated[
    Annotated[TextBlock, Tag("text")]
    | Annotated[ToolUseBlock, Tag("tool_use")]
    | Annotated[ToolResultBlock, Tag("tool_result")]
    | Annotated[ThinkingBlock, Tag("thinking")]
    | Annotated[OtherBlock, Tag("other")],
    Discriminator(_block_kind),
]


Blocks = TypeAliasType("Blocks", Annotated[list[Block], FailFast()])


class MessageBody(Wire):
    """One message."""

    role: Literal["user", "assistant", "system"]
    content: str | Blocks


class ToolBody(Wire):
    """A function that the model may call; other types are refused by name."""

    type: str | None = about(None, "custom, or absent.")
    name: str
    description: str | None = None
    input_schema: Json | None = None
    cache_control: CacheControl | None = None
    strict: bool | None = None
    eager_input_streaming: bool | None = about(None, "Accepted; arguments are streamed anyway.")
    input_examples: list[Any] | None = about(None, "Not supported.")
    defer_loading: bool | None = about(None, "Not supported.")
    allowed_callers: Texts | None = about(None, "Accepted as direct.")


ToolBodies = TypeAliasType("ToolBodies", Annotated[list[ToolBody], FailFast()])


class ToolChoice(Wire):
    """`tool_choice`."""

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool = about(False, "True shows the first call only.")


class ThinkingConfig(Wire):
    """`thinking`."""

    type: Literal["enabled", "disabled", "adaptive"]
    budget_tokens: int | None = about(None, "Not supported; max_tokens bounds all output.")
    display: str | None = about(None, "Accepted as summarized: reasoning is shown.")


class OutputFormat(Wire):
    """`output_config.format`."""

    type: Literal["json_schema"]
    schema_: Json = Field(alias="schema")


class OutputConfig(Wire):
    """`output_config`."""

    effort: Effort | None = None
    format: OutputFormat | None = about(None, "A JSON schema for the whole output.")


class Metadata(Wire):
    """`metadata`."""

    user_id: str | None = about(None, "Accepted; the server keeps no account of users.")


class CountBody(Wire):
    """`/v1/messages/count_tokens`."""

    model: str | None = about(None, "The served model, or absent.")
    messages: Annotated[list[MessageBody], FailFast()]
    system: str | TextBlocks | None = None
    tools: ToolBodies | None = None
    tool_choice: ToolChoice | None = None
    thinking: ThinkingConfig | None = None
    output_config: OutputConfig | None = None
    cache_control: CacheControl | None = about(None, "Accepted; all of a prompt is cached.")
    chat_template_kwargs: Json | None = about(None, "Further template variables.")
    speed: str | None = about(None, "Accepted as standard.")
    user_profile_id: str | None = about(None, "Not supported.")
    workspace_id: str | None = about(None, "Not supported.")


class MessagesBody(CountBody):
    """`/v1/messages`."""

    max_tokens: int = about(..., "Most tokens to produce.", minimum=0)
    stream: bool = about(False, "Answer with server-sent events.")
    stop_sequences: Texts | None = about(None, "Stop strings.")
    temperature: float = about(1.0, "0 is greedy.", minimum=0)
    top_p: float = about(1.0, "Nucleus mass.", exclusiveMinimum=0, maximum=1)
    top_k: int = about(-1, "-1 is off; else at least 1.", minimum=-1)
    metadata: Metadata | None = None
    service_tier: str | None = about(None, "Accepted as auto and standard_only.")
    container: Any = about(None, "Not supported.")
    context_management: Any = about(None, "Not supported.")
    mcp_servers: list[Any] | None = about(None, "Not supported.")
    diagnostics: Any = about(None, "Not supported.")
    inference_geo: str | None = about(None, "Not supported.")
    seed: int | None = about(None, "Same seed, same tokens.")
    rid: str | None = about(None, "Turn id, and id of the answer; made by the server if absent.")
    session_params: SessionBody | None = about(None, "Run inside an open session.")
    session_id: str | None = about(None, "Tag the cached prompt with a session; adds no history.")
    priority: int | None = about(None, "Larger goes first under priority order.")
    extra_key: str | None = about(None, "Keeps cached prompts apart.")
    cache_salt: str | None = about(None, "Keeps cached prompts apart.")
