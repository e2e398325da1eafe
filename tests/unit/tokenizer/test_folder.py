"""Tokenizers from folders in Hugging Face format, beside the library's own decoding."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import tokenizers
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, processors

from tenure.core.errors import ModelError
from tenure.model.tokenizer import load_tokenizer

TEXT = "Hello wörld <tag>🎉 a  b"


def byte_level_backend() -> tokenizers.Tokenizer:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {piece: i for i, piece in enumerate(alphabet)}
    backend = tokenizers.Tokenizer(models.BPE(vocab=vocab, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken("<s>", special=True), AddedToken("</s>", special=True)])
    backend.add_tokens([AddedToken("<tag>", special=False)])
    return backend


def sentencepiece_backend() -> tokenizers.Tokenizer:
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{i:02X}>" for i in range(256)), "▁", "▁H", "a", "b"]
    backend = tokenizers.Tokenizer(
        models.BPE(
            vocab={piece: i for i, piece in enumerate(pieces)},
            merges=[],
            unk_token="<unk>",
            byte_fallback=True,
        )
    )
    backend.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    backend.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    backend.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", 1)]
    )
    backend.add_special_tokens([AddedToken("<s>", special=True), AddedToken("</s>", special=True)])
    return backend


def write(folder: Path, backend: tokenizers.Tokenizer, **files: object) -> Path:
    backend.save(str(folder / "tokenizer.json"))
    for name, content in files.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    return folder


@pytest.mark.parametrize("make", [byte_level_backend, sentencepiece_backend])
def test_encoding_and_decoding_agree_with_the_library(tmp_path: Path, make: object) -> None:
    assert callable(make)
    backend = make()
    tokenizer = load_tokenizer(write(tmp_path, backend))
    ids = tokenizer.encode(TEXT, add_special=True)
    assert ids == backend.encode(TEXT).ids
    assert tokenizer.decode(ids, skip_special=True) == backend.decode(ids) == TEXT
    assert tokenizer.decode(ids, skip_special=False) == backend.decode(
        ids, skip_special_tokens=False
    )


def test_an_added_token_is_plain_text_whatever_its_letters(tmp_path: Path) -> None:
    """The library reads the ö of an added token as byte 0xF6."""
    backend = byte_level_backend()
    backend.add_tokens([AddedToken("wörld", special=False)])
    tokenizer = load_tokenizer(write(tmp_path, backend))
    ids = tokenizer.encode("a wörld", add_special=False)
    assert len(ids) == 3
    assert tokenizer.decode(ids, skip_special=True) == "a wörld"


def test_a_truncating_file_is_not_allowed_to_cut_prompts(tmp_path: Path) -> None:
    backend = byte_level_backend()
    backend.enable_truncation(3)
    backend.enable_padding(length=64)
    assert len(load_tokenizer(write(tmp_path, backend)).encode("abcdef", add_special=True)) == 6


def test_bos_comes_from_the_post_processor_unless_the_config_says_otherwise(
    tmp_path: Path,
) -> None:
    backend = sentencepiece_backend()
    tokenizer = load_tokenizer(write(tmp_path, backend))
    assert tokenizer.bos_id == 1
    assert tokenizer.encode("a", add_special=True)[0] == 1
    without = {"bos_token": "<s>", "add_bos_token": False}
    tokenizer = load_tokenizer(write(tmp_path, backend, tokenizer_config=without))
    assert tokenizer.bos_id == 1
    assert tokenizer.encode("a", add_special=True)[0] != 1


@pytest.mark.parametrize(
    ("files", "eos_ids"),
    [
        ({}, set()),
        ({"tokenizer_config": {"eos_token": {"content": "</s>"}}}, {257}),
        ({"generation_config": {"eos_token_id": [5, 6]}, "config": {"eos_token_id": 7}}, {5, 6}),
        ({"config": {"eos_token_id": 7}, "tokenizer_config": {"eos_token": "</s>"}}, {7, 257}),
    ],
)
def test_eos_ids_come_from_the_files_beside_it(
    tmp_path: Path, files: dict[str, object], eos_ids: set[int]
) -> None:
    folder = write(tmp_path, byte_level_backend(), **files)
    assert load_tokenizer(folder).eos_ids == eos_ids


def test_a_metaspace_decoder_is_understood(tmp_path: Path) -> None:
    backend = sentencepiece_backend()
    backend.decoder = decoders.Metaspace()
    tokenizer = load_tokenizer(write(tmp_path, backend))
    ids = tokenizer.encode("a b", add_special=False)
    assert tokenizer.decode(ids, skip_special=True) == backend.decode(ids) == "a b"


def test_sentencepiece_only_folder_is_told_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.model").write_bytes(b"\n\x07")
    with pytest.raises(ModelError, match="save_pretrained"):
        load_tokenizer(tmp_path)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("unrelated.txt", "", "has no tokenizer.json"),
        ("tokenizer.json", "{", "is damaged"),
        ("tokenizer.json", "[]", "is damaged"),
    ],
)
def test_a_missing_or_damaged_file_is_named(
    tmp_path: Path, name: str, content: str, message: str
) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(ModelError, match=message):
        load_tokenizer(tmp_path)


def test_a_damaged_configuration_is_named(tmp_path: Path) -> None:
    folder = write(tmp_path, byte_level_backend(), generation_config=["no object"])
    with pytest.raises(ModelError, match=r"generation_config.json must hold a JSON object"):
        load_tokenizer(folder)
    (folder / "generation_config.json").write_bytes(b"\xff\xfe{")
    with pytest.raises(ModelError, match=r"generation_config.json cannot be read"):
        load_tokenizer(folder)


def test_an_unknown_decoder_is_refused(tmp_path: Path) -> None:
    backend = byte_level_backend()
    backend.decoder = decoders.WordPiece()
    with pytest.raises(ModelError, match=r"decoder \['WordPiece'\]"):
        load_tokenizer(write(tmp_path, backend))
