"""The text side of a model: its tokenizer and chat template, as one value."""

from __future__ import annotations

from dataclasses import dataclass, field

from tenure.core.errors import ContextTooLong
from tenure.model.chat_template import ChatTemplate, find_chat_template
from tenure.model.load import Checkpoint, CheckpointFormat
from tenure.model.tokenizer.base import Tokenizer
from tenure.model.tokenizer.load import load_tokenizer


@dataclass(frozen=True, slots=True)
class Text:
    """`chat` is None where the checkpoint has no chat template and none can be assumed.

    `eos_ids` end a turn: those that the checkpoint names, and the tokenizer's.
    """

    tokenizer: Tokenizer
    chat: ChatTemplate | None
    eos_ids: frozenset[int]
    longest_token: int = field(init=False)
    """Bytes of the vocabulary's longest token."""

    def __post_init__(self) -> None:
        lengths = (len(self.tokenizer.token_bytes(i)) for i in range(self.tokenizer.n_vocab))
        object.__setattr__(self, "longest_token", max(1, *lengths))

    def check_length(self, text: str, max_tokens: int) -> None:
        """Raise ContextTooLong where `text` must have more tokens than that, before it is encoded.

        Text that is far too long would take the tokenizer minutes.
        """
        n_least = -(-len(text.encode(errors="replace")) // self.longest_token)
        if n_least > max_tokens:
            raise ContextTooLong(n_least, max_tokens, "so many tokens at least, by its bytes")


def load_text(checkpoint: Checkpoint) -> Text:
    """Raises ModelError when the vocabulary or the template cannot be used."""
    match checkpoint.format:
        case CheckpointFormat.GGUF:
            source = checkpoint.metadata
        case CheckpointFormat.HF | CheckpointFormat.FOREIGN:
            source = checkpoint.path
    tokenizer = load_tokenizer(source)
    eos_ids = tokenizer.eos_ids.union(checkpoint.eos_token_ids)
    return Text(tokenizer, find_chat_template(source, tokenizer), eos_ids)
