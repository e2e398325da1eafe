"""Tokenizers from a folder in Hugging Face format."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path

import tokenizers

from tenure.core.errors import ModelError
from tenure.model.tokenizer.fast import FastTokenizer, Marks
from tenure.model.tokenizer.pieces import byte_level, sentence_piece
from tenure.model.tokenizer.stream import ByteTable


def from_folder(folder: Path) -> FastTokenizer:
    """Reads `tokenizer.json`, and BOS and EOS from the configuration files beside it.

    Raises ModelError when the file is missing, damaged, or decodes in a way that is not known.
    """
    path = folder / "tokenizer.json"
    if not path.is_file():
        raise ModelError(_missing(folder))
    try:
        backend = tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:
        raise ModelError(f"{path} is damaged: {error}") from error
    backend.no_truncation()
    backend.no_padding()
    config = read_json(folder / "tokenizer_config.json")
    marks = _marks(folder, backend, config)
    decoder = _Decoder.of(read_json(path), path)
    return FastTokenizer(backend, _table(backend, decoder, marks), marks, decoder.strips_space)


def read_json(path: Path) -> dict[str, object]:
    """The object in `path`, empty when there is no such file. Raises ModelError when damaged."""
    if not path.is_file():
        return {}
    try:
        value = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise ModelError(f"{path} cannot be read: {error}") from error
    match value:
        case dict():
            return value
        case _:
            raise ModelError(f"{path} must hold a JSON object")


def token_text(value: object) -> str | None:
    """A token's spelling in `tokenizer_config.json`: a string, or an object with `content`."""
    match value:
        case str(text) | {"content": str(text)}:
            return text
        case _:
            return None


class _Decoder:
    """How `tokenizer.json` spells bytes, and whether decoding drops one leading space."""

    def __init__(self, is_byte_level: bool, strips_space: bool) -> None:
        self.spell = byte_level if is_byte_level else sentence_piece
        self.strips_space = strips_space

    @classmethod
    def of(cls, document: Mapping[str, object], path: Path) -> _Decoder:
        steps = list(_steps(document.get("decoder")))
        kinds = [step.get("type") for step in steps]
        if "ByteLevel" in kinds:
            return cls(is_byte_level=True, strips_space=False)
        if "ByteFallback" in kinds or "Metaspace" in kinds:
            return cls(is_byte_level=False, strips_space=any(map(_strips, steps)))
        raise ModelError(
            f"{path} has the decoder {kinds}; supported are byte-level and SentencePiece kinds"
        )


def _steps(decoder: object) -> Iterator[Mapping[str, object]]:
    match decoder:
        case {"type": "Sequence", "decoders": list(steps)}:
            for step in steps:
                yield from _steps(step)
        case dict():
            yield decoder
        case _:
            return


def _strips(step: Mapping[str, object]) -> bool:
    match step:
        case {"type": "Strip", "content": " ", "start": int(n)}:
            return n > 0
        case {"type": "Metaspace", "prepend_scheme": scheme}:
            return scheme != "never"
        case {"type": "Metaspace"}:
            return step.get("add_prefix_space") is not False
        case _:
            return False


def _table(backend: tokenizers.Tokenizer, decoder: _Decoder, marks: Marks) -> ByteTable:
    vocab = backend.get_vocab(with_added_tokens=True)
    table = [b""] * (max(vocab.values(), default=-1) + 1)
    for piece, i in vocab.items():
        table[i] = decoder.spell(piece)
    added = backend.get_added_tokens_decoder()
    for i, token in added.items():
        table[i] = token.content.encode("utf-8")
    special = {i for i, token in added.items() if token.special} | marks.eos_ids
    if marks.bos_id is not None:
        special.add(marks.bos_id)
    return ByteTable(table, frozenset(special))


def _marks(folder: Path, backend: tokenizers.Tokenizer, config: Mapping[str, object]) -> Marks:
    added = backend.encode("", add_special_tokens=True).ids
    bos = token_text(config.get("bos_token"))
    bos_id = backend.token_to_id(bos) if bos is not None else (added[0] if added else None)
    match config.get("add_bos_token"):
        case bool(add_bos):
            pass
        case _:
            add_bos = bos_id is not None and added[:1] == [bos_id]
    return Marks(bos_id, frozenset(_eos_ids(folder, backend, config)), add_bos)


def _eos_ids(
    folder: Path, backend: tokenizers.Tokenizer, config: Mapping[str, object]
) -> Iterator[int]:
    """The generation's EOS ids (else the model's), and the tokenizer's own."""
    generation = read_json(folder / "generation_config.json")
    source = generation if "eos_token_id" in generation else read_json(folder / "config.json")
    match source.get("eos_token_id"):
        case int(token):
            yield token
        case list(tokens):
            yield from (token for token in tokens if isinstance(token, int))
        case _:
            pass
    spelling = token_text(config.get("eos_token"))
    token = backend.token_to_id(spelling) if spelling is not None else None
    if token is not None:
        yield token


def _missing(folder: Path) -> str:
    if (folder / "tokenizer.model").is_file():
        return (
            f"{folder} has a SentencePiece tokenizer.model but no tokenizer.json. Convert it once "
            "with transformers: AutoTokenizer.from_pretrained(folder).save_pretrained(folder), "
            "or use a GGUF file of the model"
        )
    return f"{folder} has no tokenizer.json; is it a model folder in Hugging Face format?"
