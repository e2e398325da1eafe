"""The requests of OpenAI's completions and chat completions, with SGLang's additions.

Types are strict and unknown fields are refused; ranges are checked where the engine's own types are
built, so the bounds here only document. A null is the same as an absent field.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field
from pydantic.types import FailFast
from typing_extensions import TypeAliasType

from tenure.server.chat.ask import Effort
from tenure.server.chat.wire_types import Json, Labels
from tenure.server.sglang.schema import SessionBody
from tenure.server.wire import Bools, IdLists, Ids, Texts, Wire, about


class StreamOptions(Wire):
    """`stream_options`."""

    include_usage: bool = about(False, "Add an event with the usage at the end.")
    continuous_usage_stats: bool = about(False, "Add the usage so far to every event.")
    include_obfuscation: bool = about(False, "Accepted; nothing is padded.")


class JsonSchemaFormat(Wire):
    """`response_format.json_schema`."""

    name: str
    description: str | None = None
    schema_: Json | None = Field(None, alias="schema")
    strict: bool | None = None


class ResponseFormat(Wire):
    """`response_format`."""

    type: Literal["text", "json_object", "json_schema", "structural_tag"]
    json_schema: JsonSchemaFormat | None = None
    structures: list[Any] | None = about(None, "structural_tag: the constrained spans.")
    triggers: Texts | None = about(None, "structural_tag: what begins a span.")
    at_least_one: bool = about(False, "structural_tag: not supported.")
    format: Json | None = about(None, "structural_tag: its newer form.")


class DecodingBody(Wire):
    """What completions and chat completions have in common."""

    model: str | None = about(None, "The served model, an adapter, or model:adapter.")
    frequency_penalty: float = about(0.0, "Per earlier use.", minimum=-2, maximum=2)
    presence_penalty: float = about(0.0, "For any earlier use.", minimum=-2, maximum=2)
    logit_bias: dict[str, float] | None = about(None, "Token id to bias, -100..100.")
    n: int = about(1, "Answers for each prompt.", minimum=1)
    seed: int | None = about(None, "Same seed, same tokens.")
    stop: str | Texts | None = about(None, "Stop strings.")
    stream: bool = about(False, "Answer with server-sent events.")
    stream_options: StreamOptions | None = None
    temperature: float = about(1.0, "0 is greedy.", minimum=0)
    top_p: float = about(1.0, "Nucleus mass.", exclusiveMinimum=0, maximum=1)
    user: str | None = about(None, "Accepted; nothing is done with it.")
    response_format: ResponseFormat | None = None


class ExtendedBody(DecodingBody):
    """SGLang's additions to both."""

    top_k: int = about(-1, "-1 is off; else at least 1.", minimum=-1)
    min_p: float = about(0.0, "Least share of the most likely token.", minimum=0, maximum=1)
    min_tokens: int = about(0, "No stop before so many tokens.", minimum=0)
    repetition_penalty: float = about(1.0, "1 is neutral.", exclusiveMinimum=0, maximum=2)
    stop_token_ids: Ids | None = about(None, "Token ids that end the turn.")
    stop_regex: str | Texts | None = about(None, "Stop patterns.")
    no_stop_trim: bool = about(False, "Keep what stopped the turn in the text.")
    ignore_eos: bool = about(False, "Go on past the end-of-sequence token.")
    skip_special_tokens: bool = about(True, "Leave special tokens out of the text.")
    regex: str | None = about(None, "Pattern of the whole output.")
    ebnf: str | None = about(None, "Grammar of the whole output.")
    rid: str | None = about(None, "Turn id, and id of the answer; made by the server if absent.")
    session_params: SessionBody | None = about(None, "Run inside an open session.")
    session_id: str | None = about(None, "Tag the cached prompt with a session; adds no history.")
    priority: int | None = about(None, "Larger goes first under priority order.")
    extra_key: str | None = about(None, "Keeps cached prompts apart.")
    cache_salt: str | None = about(None, "Keeps cached prompts apart.")
    return_token_ids: bool = about(False, "Add `token_ids` to each choice.")
    lora_path: str | Texts | None = about(None, "A loaded adapter; model may name it as well.")
    custom_logit_processor: str | Texts | None = about(
        None, "An installed processor: its name, or JSON with name and params. Never code."
    )
    custom_params: Json | None = about(None, "What the logit processor is told.")
    return_hidden_states: bool | Bools | Literal["last"] = about(
        False, "Not supported; use /generate."
    )
    return_routed_experts: bool = about(False, "Not supported here; /generate reports them.")
    routed_experts_start_len: int = about(0, "Not supported here; /generate reports them.")
    return_cached_tokens_details: bool = about(False, "Not supported yet.")


class CompletionBody(ExtendedBody):
    """`/v1/completions`: one prompt or a batch, as text or as token ids."""

    prompt: str | Texts | Ids | IdLists | None = about(None, "Prompt, or a batch of prompts.")
    max_tokens: int = about(16, "Most tokens to produce; 0 only reads the prompt.", minimum=0)
    echo: bool = about(False, "Put the prompt before the output.")
    logprobs: int | None = about(None, "Report log probabilities, with so many alternatives.")
    best_of: int | None = about(None, "Not supported; use n.")
    suffix: str | None = about(None, "Not supported.")
    json_schema: str | None = about(None, "Schema of the whole output, as JSON.")


class PartBody(Wire):
    """A part of a message's content."""

    type: str
    text: str | None = None
    refusal: str | None = None
    prompt_cache_breakpoint: Any = about(None, "Accepted; equal prefixes are found anyway.")
    image_url: Any = about(None, "Not supported by this model.")
    input_audio: Any = about(None, "Not supported by this model.")
    file: Any = about(None, "Not supported by this model.")


Parts = TypeAliasType("Parts", Annotated[list[PartBody], FailFast()])


class FunctionCallBody(Wire):
    """The function that a call names."""

    name: str
    arguments: str = "{}"


class ToolCallBody(Wire):
    """A call in an earlier reply."""

    id: str = ""
    type: Literal["function"] = "function"
    index: int | None = about(None, "Accepted; calls keep their order.")
    function: FunctionCallBody


ToolCallBodies = TypeAliasType("ToolCallBodies", Annotated[list[ToolCallBody], FailFast()])


class MessageBody(Wire):
    """One message of a conversation."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | Parts | None = None
    name: str | None = about(None, "For the chat template.")
    tool_calls: ToolCallBodies | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = about(None, "Reasoning of an earlier reply.")
    refusal: str | None = None
    annotations: list[Any] | None = about(None, "Not supported.")
    audio: Any = about(None, "Not supported by this model.")
    function_call: Any = about(None, "Not supported; use tool_calls.")


Messages = TypeAliasType("Messages", Annotated[list[MessageBody], FailFast()])


class FunctionBody(Wire):
    """A function that the model may call."""

    name: str
    description: str | None = None
    parameters: Json | None = None
    strict: bool | None = None


class ToolBody(Wire):
    """An entry of `tools`."""

    type: Literal["function"] = "function"
    function: FunctionBody


ToolBodies = TypeAliasType("ToolBodies", Annotated[list[ToolBody], FailFast()])


class NamedFunction(Wire):
    """The function of a named choice."""

    name: str


class NamedChoice(Wire):
    """A `tool_choice` that names a function."""

    type: Literal["function"] = "function"
    function: NamedFunction


class ChatBody(ExtendedBody):
    """`/v1/chat/completions`."""

    messages: Annotated[list[MessageBody], FailFast()] = about(
        ..., "The conversation; in a session, what is new of it."
    )
    max_tokens: int | None = about(None, "Most tokens to produce; the context's end if absent.")
    max_completion_tokens: int | None = about(None, "The newer name of max_tokens.")
    logprobs: bool = about(False, "Report log probabilities.")
    top_logprobs: int | None = about(None, "Alternatives to report at each position.")
    tools: ToolBodies | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedChoice | None = None
    parallel_tool_calls: bool = about(True, "False shows the first call only.")
    reasoning_effort: Effort | None = about(None, "For models with reasoning.")
    separate_reasoning: bool = about(True, "Put reasoning into `reasoning_content`.")
    stream_reasoning: bool = about(True, "Not supported: reasoning is streamed as it comes.")
    chat_template_kwargs: Json | None = about(None, "Further template variables.")
    continue_final_message: bool = about(False, "Go on with the last, the assistant's, message.")
    metadata: Labels | None = about(None, "Accepted; nothing is done with it.")
    prompt_cache_key: str | None = about(None, "Accepted; equal prefixes are found anyway.")
    safety_identifier: str | None = about(None, "Accepted; nothing is done with it.")
    store: bool = about(False, "Not supported; use /v1/responses.")
    service_tier: str | None = about(None, "Accepted as auto and default.")
    modalities: Texts | None = about(None, "Accepted as text.")
    verbosity: str | None = about(None, "Accepted as medium.")
    prompt_cache_retention: str | None = about(None, "Accepted as in_memory.")
    prompt_cache_options: Json | None = about(None, "Not supported.")
    moderation: Json | None = about(None, "Not supported.")
    prediction: Any = about(None, "Not supported.")
    audio: Any = about(None, "Not supported by this model.")
    web_search_options: Any = about(None, "Not supported.")
    functions: list[Any] | None = about(None, "Not supported; use tools.")
    function_call: Any = about(None, "Not supported; use tool_choice.")
