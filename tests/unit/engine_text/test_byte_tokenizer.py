"""The tokenizer for tests speaks like the real ones over the same vocabulary."""

from __future__ import annotations

from pathlib import Path

import pytest

from tenure.core.errors import InvalidField
from tenure.model.tokenizer import load_tokenizer
from tenure.testing.byte_tokenizer import ByteTokenizer
from tenure.testing.byte_vocabulary import write_tokenizer

TEXTS = ["", "abc", "é🎉\n", "<|im_start|>user\nHi<|im_end|>\n", "<|endoftext|>x<|reserved_0|>"]


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("add_special", [True, False])
def test_it_agrees_with_the_same_vocabulary_in_files(
    tmp_path: Path, text: str, add_special: bool
) -> None:
    write_tokenizer(tmp_path)
    ours, real = ByteTokenizer(), load_tokenizer(tmp_path)
    ids = real.encode(text, add_special)
    assert ours.encode(text, add_special) == ids
    for skip in (True, False):
        assert ours.decode(ids, skip) == real.decode(ids, skip)
    assert (ours.n_vocab, ours.eos_ids, ours.special_ids) == (
        real.n_vocab,
        real.eos_ids,
        real.special_ids,
    )
    assert list(map(ours.token_bytes, ids)) == list(map(real.token_bytes, ids))


def test_bos_on_request() -> None:
    tokenizer = ByteTokenizer(add_bos=True)
    assert tokenizer.encode("a", add_special=True) == [tokenizer.bos_id, ord("a")]
    assert tokenizer.encode("a", add_special=False) == [ord("a")]


def test_names_have_ids() -> None:
    tokenizer = ByteTokenizer()
    assert tokenizer.token_id("<|im_end|>") in tokenizer.eos_ids
    assert tokenizer.token_id("a") == ord("a")
    assert tokenizer.token_id("é") is None
    assert tokenizer.token_text(ord("a")) == "a"


def test_lone_surrogates_are_refused() -> None:
    with pytest.raises(InvalidField, match="well-formed Unicode"):
        ByteTokenizer().encode("\ud800", add_special=False)
