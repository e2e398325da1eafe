"""The text side of a model: its tokenizer and chat template, as one value."""

from __future__ import annotations

from dataclasses import dataclass

from tenure.model.chat_template import ChatTemplate, find_chat_template
from tenure.model.load import Checkpoint, CheckpointFormat
from tenure.model.tokenizer.base import Tokenizer
from tenure.model.tokenizer.load import load_tokenizer


@dataclass(frozen=True, slots=True)
class Text:
    """`chat` is None where the checkpoint has no chat template and none can be assumed."""

    tokenizer: Tokenizer
    chat: ChatTemplate | None


def load_text(checkpoint: Checkpoint) -> Text:
    """Raises ModelError when the vocabulary or the template cannot be used."""
    match checkpoint.format:
        case CheckpointFormat.GGUF:
            source = checkpoint.metadata
        case CheckpointFormat.HF:
            source = checkpoint.path
    tokenizer = load_tokenizer(source)
    return Text(tokenizer, find_chat_template(source, tokenizer))
