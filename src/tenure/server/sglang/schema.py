"""The requests of SGLang's native HTTP interface, as they stand on the wire.

Types are strict and unknown fields are refused; ranges are checked where the engine's own types are
built (`translate`), so the bounds here only document. A null is the same as an absent field.
"""

from __future__ import annotations

from typing import Any

from tenure.server.wire import Bools, IdLists, Ids, Texts, Wire, about


class SamplingBody(Wire):
    """`sampling_params` of `/generate`."""

    max_new_tokens: int = about(128, "Most tokens to produce; 0 only fills the cache.", minimum=0)
    min_new_tokens: int = about(0, "No stop before so many tokens.", minimum=0)
    stop: str | Texts | None = about(None, "Stop strings.")
    stop_token_ids: Ids | None = about(None, "Token ids that end the turn.")
    stop_regex: str | Texts | None = about(None, "Stop patterns.")
    temperature: float = about(1.0, "0 is greedy.", minimum=0)
    top_p: float = about(1.0, "Nucleus mass.", exclusiveMinimum=0, maximum=1)
    top_k: int = about(-1, "-1 is off; else at least 1.", minimum=-1)
    min_p: float = about(0.0, "Least share of the most likely token.", minimum=0, maximum=1)
    frequency_penalty: float = about(0.0, "Per earlier use.", minimum=-2, maximum=2)
    presence_penalty: float = about(0.0, "For any earlier use.", minimum=-2, maximum=2)
    repetition_penalty: float = about(1.0, "1 is neutral.", exclusiveMinimum=0, maximum=2)
    n: int = about(1, "Answers for each prompt.", minimum=1)
    ignore_eos: bool = about(False, "Go on past the end-of-sequence token.")
    skip_special_tokens: bool = about(True, "Leave special tokens out of the text.")
    spaces_between_special_tokens: bool = about(True, "Accepted; no tokenizer here adds any.")
    no_stop_trim: bool = about(False, "Keep what stopped the turn in the text.")
    logit_bias: dict[str, float] | None = about(None, "Token id to bias, -100..100.")
    custom_params: dict[str, Any] | None = about(None, "What the logit processor is told.")
    sampling_seed: int | None = about(None, "Same seed, same tokens.", minimum=0)
    json_schema: str | None = about(None, "Schema of the output, as JSON text.")
    regex: str | None = about(None, "Pattern of the whole output.")
    ebnf: str | None = about(None, "Grammar of the output: Lark's syntax, or GBNF.")
    structural_tag: str | None = about(None, "Free text with constrained spans, as JSON text.")
    grammar_begun: int = about(
        0, "So many tokens at the prompt's end are the beginning of the structure.", minimum=0
    )


class SessionBody(Wire):
    """`session_params` of `/generate`: which session, and where in it."""

    id: str | None = about(None, "An open session.")
    rid: str | None = about(
        None,
        "The turn to continue; absent starts a new root. "
        "A streaming session always continues its last turn and ignores this.",
    )
    offset: int | None = about(None, "Keep context[:offset]; 0 and absent keep all.")
    replace: bool = about(False, "Discard what follows `rid` and branch from it.")
    drop_previous_output: bool = about(False, "Inherit the prompt of `rid` only.")


class GenerateBody(Wire):
    """`/generate`: one prompt or a batch, as text or as token ids; fields as on the wire."""

    text: str | Texts | None = about(None, "Prompt, or a batch of prompts.")
    input_ids: Ids | IdLists | None = about(None, "Prompt ids, or a batch of them.")
    sampling_params: SamplingBody | list[SamplingBody] = about(
        SamplingBody(), "One for all prompts, or a list with one for each."
    )
    stream: bool = about(False, "Answer with server-sent events.")
    rid: str | Texts | None = about(None, "Turn id; made by the server if absent.")
    session_params: SessionBody | None = about(None, "Run inside an open session.")
    session_id: str | None = about(None, "Tag the cached prompt with a session; adds no history.")
    return_logprob: bool | Bools = about(False, "Report log probabilities.")
    logprob_start_len: int | Ids = about(-1, "First prompt position that is scored; -1: none.")
    top_logprobs_num: int | Ids = about(0, "Most likely tokens to report at each position.")
    token_ids_logprob: Ids | IdLists | None = about(None, "Ids to report everywhere.")
    return_text_in_logprobs: bool = about(False, "Fill the text of each triple.")
    return_prompt_token_ids: bool = about(False, "Add `prompt_token_ids`.")
    priority: int | None = about(None, "Larger goes first under priority order.")
    extra_key: str | None = about(None, "Keeps cached prompts apart.")
    cache_salt: str | None = about(None, "Keeps cached prompts apart.")
    routing_key: str | None = about(None, "Accepted; there is one replica.")
    lora_path: str | list[str | None] | None = about(
        None, "A loaded adapter by name, or a list with one (or null) for each prompt."
    )
    custom_logit_processor: str | list[str | None] | None = about(
        None, "An installed processor: its name, or JSON with name and params. Never code."
    )
    image_data: Any = about(None, "Not supported by this model.")
    return_hidden_states: bool | Bools = about(False, "Add `hidden_states` of the whole context.")
    return_routed_experts: bool = about(False, "Report each token's experts.")
    routed_experts_start_len: int = about(0, "First position that is reported.", minimum=0)
    require_reasoning: bool = about(False, "Not supported yet.")


class OpenSessionBody(Wire):
    """`/open_session`."""

    capacity_of_str_len: int | None = about(
        None, "Recorded and shown in the session's info; never a limit."
    )
    session_id: str | None = about(None, "Made by the server if absent.")
    streaming: bool = about(False, "One turn at a time, append only.")
    timeout: float | None = about(
        None, "Idle seconds after which the session expires; absent is never.", exclusiveMinimum=0
    )


class CloseSessionBody(Wire):
    """`/close_session`."""

    session_id: str


class AbortBody(Wire):
    """`/abort_request`: one turn by id, or all of them."""

    rid: str | None = None
    abort_all: bool = False
