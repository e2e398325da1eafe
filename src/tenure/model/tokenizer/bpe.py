"""Byte-level BPE: how each family cuts text into words before it merges."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

import tokenizers
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers

from tenure.core.errors import ModelError
from tenure.model.tokenizer.pieces import ASCII_CHARS

_CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_TAIL = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_LLAMA3_WORDS = _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}" + _TAIL
_QWEN2_WORDS = _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}" + _TAIL
_GPT2_WORDS = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_UPPER, _LOWER = (rf"[\p{{L{kind}}}\p{{Lm}}\p{{Lo}}\p{{M}}" for kind in ("u", "l"))
_GPT4O_WORDS = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}\p{{Lt}}]*{_LOWER}]+{_CONTRACTIONS}?"
    rf"|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}\p{{Lt}}]+{_LOWER}]*{_CONTRACTIONS}?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_DEFAULT_SPLITS = (r"[\p{P}\$\+<=>\^~\|]+", _GPT2_WORDS, r"\p{N}+", "[0-9][0-9][0-9]")


class Pre(Enum):
    """Kinds of `tokenizer.ggml.pre`, by how they cut words."""

    GPT2 = "gpt-2"
    SMOLLM = "smollm"
    QWEN2 = "qwen2"
    LLAMA3 = "llama-bpe"
    DBRX = "dbrx"
    GPT4O = "gpt-4o"
    DEFAULT = "default"

    @property
    def add_bos(self) -> bool:
        """Whether a prompt starts with BOS where the file does not say."""
        return self is Pre.LLAMA3


_SPELLINGS = {
    "gpt-2": Pre.GPT2,
    "gpt2": Pre.GPT2,
    "granite-docling": Pre.GPT2,
    "smollm": Pre.SMOLLM,
    "refact": Pre.SMOLLM,
    "starcoder": Pre.SMOLLM,
    "qwen2": Pre.QWEN2,
    "deepseek-r1-qwen": Pre.QWEN2,
    "llama-bpe": Pre.LLAMA3,
    "llama3": Pre.LLAMA3,
    "llama-v3": Pre.LLAMA3,
    "falcon3": Pre.LLAMA3,
    "falcon-h1": Pre.LLAMA3,
    "lfm2": Pre.LLAMA3,
    "dbrx": Pre.DBRX,
    "gpt-4o": Pre.GPT4O,
    "default": Pre.DEFAULT,
}


def pre_tokenizer(name: str) -> Pre:
    """The kind that a GGUF names. Raises ModelError for one that is not known."""
    if name not in _SPELLINGS:
        raise ModelError(
            f"tokenizer.ggml.pre is {name!r}; supported are {', '.join(_SPELLINGS)}. "
            "Use the checkpoint's folder with tokenizer.json instead"
        )
    return _SPELLINGS[name]


@dataclass(frozen=True, slots=True)
class _Cut:
    """Word rules: splits in order, then the bytes; `whole_words` tries a word before merging."""

    words: pre_tokenizers.PreTokenizer
    whole_words: bool = False
    compose: bool = False


def _cut(pre: Pre) -> _Cut:
    plain = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    gpt2 = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    match pre:
        case Pre.GPT2:
            return _Cut(gpt2)
        case Pre.SMOLLM:
            digits = pre_tokenizers.Digits(individual_digits=True)
            return _Cut(pre_tokenizers.Sequence([digits, gpt2]))
        case Pre.QWEN2:
            return _Cut(pre_tokenizers.Sequence([_split(_QWEN2_WORDS), plain]), compose=True)
        case Pre.LLAMA3:
            return _Cut(pre_tokenizers.Sequence([_split(_LLAMA3_WORDS), plain]), whole_words=True)
        case Pre.DBRX:
            return _Cut(pre_tokenizers.Sequence([_split(_LLAMA3_WORDS), plain]))
        case Pre.GPT4O:
            return _Cut(pre_tokenizers.Sequence([_split(_GPT4O_WORDS), plain]))
        case Pre.DEFAULT:
            return _Cut(pre_tokenizers.Sequence([*map(_split, _DEFAULT_SPLITS), plain]))


def _split(pattern: str) -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Split(Regex(pattern), "isolated")


def byte_level_backend(
    pre: Pre, pieces: Sequence[str], merges: Sequence[str]
) -> tokenizers.Tokenizer:
    """A BPE over `pieces` with `merges` ("left right", best first).

    Raises ModelError when a printable ASCII character has no token, or a merge names a token that
    is not there.
    """
    vocab = {piece: i for i, piece in reversed(list(enumerate(pieces))) if piece}
    missing = sorted(ASCII_CHARS - vocab.keys())
    if missing:
        raise ModelError(
            f"the vocabulary is damaged: {len(missing)} printable ASCII characters have no token "
            f"(the first is spelt {missing[0]!r})"
        )
    pairs = [_pair(merge) for merge in merges]
    cut = _cut(pre)
    try:
        model = models.BPE(vocab=vocab, merges=pairs, ignore_merges=cut.whole_words)
    except Exception as error:
        raise ModelError(f"the vocabulary is damaged: {error}") from error
    backend = tokenizers.Tokenizer(model)
    if cut.compose:
        backend.normalizer = normalizers.NFC()
    backend.pre_tokenizer = cut.words
    backend.decoder = decoders.ByteLevel()
    return backend


def _pair(merge: str) -> tuple[str, str]:
    left, _, right = merge.partition(" ")
    if not left or not right:
        raise ModelError(f"the vocabulary is damaged: {merge!r:.80} is no merge of two tokens")
    return left, right
