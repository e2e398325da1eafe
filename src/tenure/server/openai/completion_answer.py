"""From output to completions, whole and streamed."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable
from contextlib import aclosing

from msgspec import UNSET, UnsetType

from tenure.core.plan import Choice
from tenure.model.tokenizer.base import Tokenizer
from tenure.server.chat.output import Delta, Output
from tenure.server.chat.reader import said
from tenure.server.chat.service import ChatService, Job
from tenure.server.openai.chat_answer import Header
from tenure.server.openai.schema import StreamOptions
from tenure.server.openai.shapes import (
    Answer,
    TextChoice,
    TextLogprobs,
    Usage,
    encode,
    finish_reason,
    finite,
    matched_stop,
    usage_of,
)

KIND = "text_completion"


class CompletionWriter:
    """Writes one request's answer; `n` outputs belong to each prompt.

    With `echo`, the prompt's text stands before the output.
    """

    def __init__(self, header: Header, tokenizer: Tokenizer, n: int, echo: bool) -> None:
        self._header = header
        self._tokenizer = tokenizer
        self._n = n
        self._echo = echo

    def whole(self, outputs: tuple[Output, ...]) -> bytes:
        """The finished answer as JSON."""
        choices = [self._choice(i, output) for i, output in enumerate(outputs)]
        return encode(self._answer(choices, usage_of(outputs, self._n)))

    async def events(
        self, service: ChatService, job: Job, options: StreamOptions
    ) -> AsyncGenerator[bytes]:
        """The answer as JSON events. Raises as `ChatService.deltas` does."""
        offsets: dict[int, int] = {}
        usage: Usage | UnsetType | None = None if options.include_usage else UNSET
        async with aclosing(service.deltas(job)) as deltas:
            async for index, delta in deltas:
                output = job.outputs[index]
                if options.continuous_usage_stats:
                    usage = usage_of(job.outputs, self._n)
                before = "" if index in offsets else self._prompt_text(output)
                choice = self._event(index, output, delta, before, offsets.get(index, 0))
                offsets[index] = offsets.get(index, 0) + len(before) + self._width(delta)
                if choice is not None:
                    yield encode(self._answer([choice], usage))
        if options.include_usage:
            yield encode(self._answer([], usage_of(job.outputs, self._n)))

    def _event(
        self, index: int, output: Output, delta: Delta, before: str, offset: int
    ) -> TextChoice | None:
        """What one event of the engine adds; None where that is nothing."""
        text = before + said(delta.pieces)
        scored = output.turn.logprobs is not None and delta.choices
        if not text and not scored and output.finish is None and not self._header.token_ids:
            return None
        choice = TextChoice(index, text)
        if scored:
            choice.logprobs = self._logprobs(delta.choices, offset + len(before))
        if self._header.token_ids:
            choice.token_ids = [choice.token for choice in delta.choices]
        if output.finish is not None:
            choice.finish_reason = finish_reason(output.finish, has_calls=False)
            choice.matched_stop = matched_stop(output.finish)
        return choice

    def _choice(self, index: int, output: Output) -> TextChoice:
        assert output.finish is not None
        before = self._prompt_text(output)
        return TextChoice(
            index,
            before + output.reply.content,
            logprobs=self._all_logprobs(output),
            finish_reason=finish_reason(output.finish, has_calls=False),
            matched_stop=matched_stop(output.finish),
            token_ids=output.ids if self._header.token_ids else UNSET,
        )

    def _all_logprobs(self, output: Output) -> TextLogprobs | None:
        if output.turn.logprobs is None:
            return None
        prompt: list[Choice] = []
        if self._echo and output.ended is not None and output.ended.prompt:
            # Nothing stands before the first prompt token that could score it.
            prompt = [Choice(output.ended.prompt[0]), *output.ended.input_scores]
        return self._logprobs([*prompt, *output.choices], 0)

    def _logprobs(self, choices: Iterable[Choice], offset: int) -> TextLogprobs:
        found = TextLogprobs([], [], [], [])
        for choice in choices:
            found.tokens.append(self._spelt(choice.token))
            found.text_offset.append(offset)
            offset += len(self._tokenizer.token_text(choice.token))
            unscored = choice.logprob is None
            found.token_logprobs.append(None if unscored else finite(choice.logprob))
            found.top_logprobs.append(None if unscored else self._tops(choice))
        return found

    def _tops(self, choice: Choice) -> dict[str, float]:
        """Alternatives by their text; of two with the same text, the likelier."""
        tops: dict[str, float] = {}
        for logprob, token in choice.top:
            tops.setdefault(self._spelt(token), finite(logprob))
        return tops

    def _spelt(self, token: int) -> str:
        """A token's text; the bytes of one that is part of a character, as `bytes:\\xe2\\x82`."""
        raw = self._tokenizer.token_bytes(token)
        try:
            return raw.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)

    def _prompt_text(self, output: Output) -> str:
        if not self._echo:
            return ""
        return self._tokenizer.decode(output.turn.tokens, skip_special=True)

    def _width(self, delta: Delta) -> int:
        """Characters of an event's tokens, as `text_offset` counts them."""
        return sum(len(self._tokenizer.token_text(choice.token)) for choice in delta.choices)

    def _answer(self, choices: list[TextChoice], usage: Usage | UnsetType | None) -> Answer:
        head = self._header
        return Answer(head.id, KIND, head.created, head.model, head.fingerprint, choices, usage)
