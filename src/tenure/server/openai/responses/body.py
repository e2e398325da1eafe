"""A response as clients see it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tenure.core.events import Aborted, Finish, LengthReached, Stopped
from tenure.server.chat.failures import Failure
from tenure.server.chat.output import Output
from tenure.server.openai.responses.items import Item
from tenure.server.openai.responses.past import Past
from tenure.server.openai.responses.schema import ReasoningConfig, ResponseBody, TextConfig

Body = Mapping[str, object]


def begun(body: ResponseBody, response_id: str, created_at: int, model: str, past: Past) -> Body:
    """A response that has just begun, with what was asked repeated."""
    conversation = None if past.conversation is None else {"id": past.conversation.id}
    text = (body.text or TextConfig()).model_dump(exclude_none=True, by_alias=True)
    reasoning = body.reasoning or ReasoningConfig()
    return {
        "id": response_id,
        "object": "response",
        "created_at": created_at,
        "completed_at": None,
        "status": "in_progress",
        "background": body.background,
        "error": None,
        "incomplete_details": None,
        "instructions": body.instructions,
        "max_output_tokens": body.max_output_tokens,
        "max_tool_calls": body.max_tool_calls,
        "model": model,
        "output": [],
        "parallel_tool_calls": body.parallel_tool_calls,
        "previous_response_id": body.previous_response_id,
        "conversation": conversation,
        "reasoning": {"effort": reasoning.effort, "summary": None},
        "service_tier": "default",
        "store": body.store,
        "temperature": body.temperature,
        "text": {"format": {"type": "text"}, **text},
        "tool_choice": _tool_choice(body),
        "tools": [_tool(t.model_dump()) for t in body.tools or ()],
        "top_logprobs": body.top_logprobs or 0,
        "top_p": body.top_p,
        "truncation": "disabled",
        "usage": None,
        "user": body.user,
        "metadata": body.metadata or {},
        "prompt_cache_key": body.prompt_cache_key,
        "safety_identifier": body.safety_identifier,
    }


def ended(begun: Body, output: Output, items: tuple[Item, ...], completed_at: int) -> Body:
    """The response once its turn has ended."""
    assert output.finish is not None
    status, details = _status(output.finish)
    return {
        **begun,
        "status": status,
        "incomplete_details": details,
        "completed_at": completed_at if status == "completed" else None,
        "output": list(items),
        "usage": _usage(output),
    }


def failed(begun: Body, failure: Failure) -> Body:
    """The response whose turn failed."""
    error: dict[str, object] = {"code": "server_error", "message": failure.message}
    if failure.retryable:
        error |= {"code": failure.code, "retryable": True}
    return {**begun, "status": "failed", "error": error}


def _status(finish: Finish) -> tuple[str, dict[str, str] | None]:
    match finish:
        case Stopped():
            return "completed", None
        case LengthReached():
            return "incomplete", {"reason": "max_output_tokens"}
        case Aborted():
            return "cancelled", None


def _usage(output: Output) -> dict[str, object]:
    usage = output.usage
    return {
        "input_tokens": usage.n_prompt,
        "input_tokens_details": {
            "cached_tokens": usage.n_cached,
            "cache_write_tokens": usage.n_prompt - usage.n_cached,
        },
        "output_tokens": output.n_tokens,
        "output_tokens_details": {"reasoning_tokens": output.n_reasoning},
        "total_tokens": usage.n_prompt + output.n_tokens,
    }


def _tool_choice(body: ResponseBody) -> object:
    match body.tool_choice:
        case None:
            return "auto"
        case str(choice):
            return choice
        case named:
            return named.model_dump(exclude_none=True)


def _tool(given: dict[str, Any]) -> dict[str, object]:
    kept = ("type", "name", "description", "parameters", "strict")
    return {key: given[key] for key in kept}
