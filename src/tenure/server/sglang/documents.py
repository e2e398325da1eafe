"""The answers of the native interface, as the OpenAPI document describes them."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, Field

Triple = tuple[float | None, int, str | None]


class FinishReason(BaseModel):
    """`type` is stop, length or abort; the other fields belong to one type each."""

    type: str
    matched: int | str | None = Field(None, description="stop: the token id or text.")
    length: int | None = Field(None, description="length: tokens produced.")
    message: str | None = Field(None, description="abort: why.")
    status_code: int | None = Field(None, description="abort: absent if a caller asked for it.")
    err_type: str | None = None
    code: str | None = None


class TurnMeta(BaseModel):
    """`meta_info`; `prompt_tokens` includes the history that a session adds."""

    id: str
    finish_reason: FinishReason | None
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    cached_tokens_details: dict[str, int] | None = Field(
        None, description="Cached tokens by tier, where some of their KV was read back from disk."
    )
    reasoning_tokens: int
    weight_version: str
    num_retractions: int
    e2e_latency: float | None = Field(None, description="Seconds; in the last answer only.")
    queue_time: float | None = Field(None, description="Seconds; in the last answer only.")
    first_token_latency: float | None = None
    input_token_logprobs: list[Triple] | None = None
    output_token_logprobs: list[Triple] | None = None
    input_top_logprobs: list[list[Triple] | None] | None = None
    output_top_logprobs: list[list[Triple] | None] | None = None
    input_token_ids_logprobs: list[list[Triple] | None] | None = None
    output_token_ids_logprobs: list[list[Triple] | None] | None = None
    hidden_states: list[list[list[float]] | list[float]] | None = Field(
        None, description="In the last answer only: the prompt's states, then each output token's."
    )


class TurnBody(BaseModel):
    """One turn's answer; in a stream, so far."""

    text: str
    output_ids: list[int]
    meta_info: TurnMeta
    prompt_token_ids: list[int] | None = None
    index: int | None = Field(None, description="Which turn of a streamed list.")


Responses = dict[int | str, dict[str, Any]]

GENERATE: Responses = {
    200: {
        "model": TurnBody | list[TurnBody],
        "description": "The answer; a list for a batch or n > 1; events for a stream.",
        "content": {"text/event-stream": {}},
    },
}
OPEN_SESSION: Responses = {200: {"model": str, "description": "The session's id."}}
EMPTY: Responses = {200: {"description": "An empty body."}}
