"""The text side of a model: its tokenizer and chat template, as one value."""

from __future__ import annotations

from dataclasses import dataclass

from tenure.model.chat_template import ChatTemplate
from tenure.model.tokenizer.base import Tokenizer


@dataclass(frozen=True, slots=True)
class Text:
    """`chat` is None where the checkpoint has no chat template and none can be assumed."""

    tokenizer: Tokenizer
    chat: ChatTemplate | None
