"""`tenure generate`: one prompt, one answer."""

from __future__ import annotations

import asyncio
import json as json_module
import sys
from typing import Annotated, Any

from rich.console import Console

from tenure.cli.backends import Backend, Chat, open_backend
from tenure.cli.flags import DecodingFlags, EngineFlags, Where, flag
from tenure.cli.printing import show

ENGINE_DEFAULTS = EngineFlags()
DECODING_DEFAULTS = DecodingFlags()
WHERE_DEFAULTS = Where()


def generate(
    prompt: Annotated[str, flag("The text to continue; absent: read from stdin.")] = "-",
    *,
    chat: Annotated[bool, flag("Treat the prompt as a message to a chat model.")] = False,
    json: Annotated[bool, flag("Print the whole answer of /generate as JSON.")] = False,
    decoding: DecodingFlags = DECODING_DEFAULTS,
    where: Where = WHERE_DEFAULTS,
    engine: EngineFlags = ENGINE_DEFAULTS,
) -> None:
    """Continue one prompt and print the result.

    Example: tenure generate "The capital of France is" --max-new-tokens 8 --temperature 0
    """
    text = sys.stdin.read() if prompt == "-" else prompt

    async def work() -> None:
        backend = await open_backend(where, engine, Console(stderr=True))
        try:
            fields = await _prompt(backend, text, chat=chat)
            fields["sampling_params"] = decoding.sampling_params()
            shown = await show(backend.stream(fields), None if json else Console())
            if json:
                print(json_module.dumps(shown.answer, ensure_ascii=False))
        finally:
            await backend.close()

    asyncio.run(work())


async def _prompt(backend: Backend, text: str, *, chat: bool) -> dict[str, Any]:
    if not chat:
        return {"text": text}
    return {"input_ids": await backend.chat_ids(Chat([{"role": "user", "content": text}]))}
