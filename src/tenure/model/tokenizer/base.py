"""What the rest of the engine asks of a tokenizer.

One rule holds for every implementation: the text of ids is the UTF-8 decoding of their bytes, in
order, where bytes that are not UTF-8 become U+FFFD. Nothing is put between tokens, special or not,
so `spaces_between_special_tokens` makes no difference, as with every fast tokenizer; and `decode`
equals the pieces of a `stream` put together, but for one leading space.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol


class TextStream(Protocol):
    """Text of ids that arrive one by one; it holds back the bytes of an unfinished character.

    There is no way back: after a rewind, start a new stream.
    """

    def push(self, token: int) -> str:
        """The text that is certain now, `""` while a character is unfinished."""
        ...

    def flush(self) -> str:
        """What is held back, as U+FFFD where it is no whole character; the stream starts afresh."""
        ...


class Tokenizer(Protocol):
    """A vocabulary and its rules. Instances are immutable, so threads may share one.

    `eos_ids` end a turn. `special_ids` are control tokens, which `skip_special` leaves out.
    `n_vocab` counts the ids that have a text; a model's own vocabulary may be padded beyond it, and
    ids there decode to nothing.
    """

    @property
    def n_vocab(self) -> int: ...

    @property
    def bos_id(self) -> int | None: ...

    @property
    def eos_ids(self) -> frozenset[int]: ...

    @property
    def special_ids(self) -> frozenset[int]: ...

    def encode(self, text: str, add_special: bool) -> list[int]:
        """Ids of `text`; special tokens written out in it are recognised.

        With `add_special`, a BOS is put in front where the checkpoint asks for one; text from a
        chat template has its own and must be encoded without. Raises InvalidField when `text` is
        no well-formed Unicode.
        """
        ...

    def decode(self, ids: Iterable[int], skip_special: bool) -> str:
        """Text of a whole sequence.

        A tokenizer whose `encode` puts a space before the first word takes that space away again.
        """
        ...

    def token_bytes(self, token: int) -> bytes:
        """The bytes that `token` stands for; empty outside the vocabulary."""
        ...

    def token_text(self, token: int) -> str:
        """`token_bytes` as text, with U+FFFD for a part of a character."""
        ...

    def token_id(self, text: str) -> int | None:
        """The id of the special or plain token that is spelt `text`, None when there is none."""
        ...

    def stream(self, skip_special: bool) -> TextStream: ...
