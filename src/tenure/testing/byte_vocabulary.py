"""A vocabulary of single bytes and a few ChatML markers, as files that real loaders read.

Token b is the byte b for b below 256; BOS, `<|im_start|>` and EOS follow, then reserved tokens.
"""

from __future__ import annotations

import json
from pathlib import Path

N_VOCAB = 264
BOS = 256
IM_START = 257
EOS = 258
MARKERS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
NORMAL, CONTROL = 1, 3
"""GGUF token types."""


def byte_characters() -> list[str]:
    """The printable character that byte-level BPE writes for each byte (as GPT-2's encoder does).

    Printable Latin-1 bytes stand for themselves; the others take the code points from 256 on.
    """
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(256, 512))
    return [chr(b if b in printable else next(others)) for b in range(256)]


def special_tokens(n_vocab: int) -> list[str]:
    """Names of the tokens from 256 on; raises ValueError when the markers do not fit."""
    n_reserved = n_vocab - 256 - len(MARKERS)
    if n_reserved < 0:
        raise ValueError(f"n_vocab must be at least {256 + len(MARKERS)}, got {n_vocab}")
    return [*MARKERS, *(f"<|reserved_{i}|>" for i in range(n_reserved))]


def write_tokenizer(folder: Path, n_vocab: int = N_VOCAB) -> None:
    """Write `tokenizer.json` and `tokenizer_config.json` with a ChatML template."""
    specials = special_tokens(n_vocab)
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False}
    tokenizer = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [_added(256 + i, text) for i, text in enumerate(specials)],
        "normalizer": None,
        "pre_tokenizer": {**byte_level, "use_regex": True},
        "post_processor": None,
        "decoder": {**byte_level, "use_regex": True},
        "model": {
            "type": "BPE",
            "vocab": {text: i for i, text in enumerate([*byte_characters(), *specials])},
            "merges": [],
        },
    }
    config = {
        "bos_token": MARKERS[0],
        "eos_token": MARKERS[2],
        "add_bos_token": False,
        "chat_template": CHAT_TEMPLATE,
        "tokenizer_class": "PreTrainedTokenizerFast",
    }
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    (folder / "tokenizer_config.json").write_text(json.dumps(config))


def gguf_vocabulary(n_vocab: int = N_VOCAB) -> dict[str, object]:
    """The tokenizer part of a GGUF file's metadata."""
    specials = special_tokens(n_vocab)
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": [*byte_characters(), *specials],
        "tokenizer.ggml.token_type": [NORMAL] * 256 + [CONTROL] * len(specials),
        "tokenizer.ggml.merges": list[str](),
        "tokenizer.ggml.bos_token_id": BOS,
        "tokenizer.ggml.eos_token_id": EOS,
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.chat_template": CHAT_TEMPLATE,
    }


def _added(token_id: int, text: str) -> dict[str, object]:
    return {
        "id": token_id,
        "content": text,
        "single_word": False,
        "lstrip": False,
        "rstrip": False,
        "normalized": False,
        "special": True,
    }
