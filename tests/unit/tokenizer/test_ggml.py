"""Tokenizers from GGUF metadata."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tenure.core.errors import InvalidField, ModelError
from tenure.model.tokenizer import Tokenizer, load_tokenizer
from tenure.model.tokenizer.sentencepiece import merges_of

Metadata = dict[str, object]
MakeBytes = Callable[..., Metadata]
MakePieces = Callable[[dict[str, float]], Metadata]

HARD_TEXTS = [
    "",
    " ",
    "  two spaces, \t\ttabs\r\n\n\nlines   ",
    "emoji 👩‍👩‍👧‍👦🇫🇷 and 日本語, 한국어, العربية, हिन्दी",
    "combining e\u0301 and precomposed \u00e9",
    "def f(x):\n    return {'a': [1, 2], **x}\n",
    "\u200b\ufeff\u00a0\u2003",
    "½ ② Ⅷ ٣٤ 12345",
    "plane 16 \U0010ffff",
]


def cuts(tokenizer: Tokenizer, text: str) -> list[str]:
    return [tokenizer.token_text(i) for i in tokenizer.encode(text, add_special=False)]


class TestByteLevel:
    MERGES = (
        "1 2",
        "12 3",
        "123 4",
        "Ġ 1",
        "a b",
        "! Ċ",
        "a '",
        "' L",
        "'L L",
        "Ġ Ġ",
    )

    @pytest.mark.parametrize(
        ("pre", "digits"),
        [
            ("smollm", ["1", "2", "3", "4"]),
            ("qwen2", ["1", "2", "3", "4"]),
            ("llama-bpe", ["123", "4"]),
            ("default", ["123", "4"]),
            ("gpt-2", ["1234"]),
            ("refact", ["1", "2", "3", "4"]),
            ("lfm2", ["123", "4"]),
            ("dbrx", ["123", "4"]),
            ("gpt-4o", ["123", "4"]),
        ],
    )
    def test_digits_are_cut_as_the_family_does(
        self, byte_level_metadata: MakeBytes, pre: str, digits: list[str]
    ) -> None:
        tokenizer = load_tokenizer(byte_level_metadata(pre, list(self.MERGES)))
        assert cuts(tokenizer, "1234") == digits

    @pytest.mark.parametrize(
        ("pre", "contraction", "newline"),
        [
            ("smollm", ["'", "L", "L"], ["!", "\n"]),
            ("gpt-2", ["'", "L", "L"], ["!", "\n"]),
            ("qwen2", ["'LL"], ["!\n"]),
            ("llama-bpe", ["'LL"], ["!\n"]),
            ("gpt-4o", ["'LL"], ["!\n"]),
        ],
    )
    def test_contractions_and_line_ends_are_cut_as_the_family_does(
        self,
        byte_level_metadata: MakeBytes,
        pre: str,
        contraction: list[str],
        newline: list[str],
    ) -> None:
        tokenizer = load_tokenizer(byte_level_metadata(pre, list(self.MERGES)))
        assert cuts(tokenizer, "we'LL")[2:] == contraction
        assert cuts(tokenizer, "!\n") == newline

    def test_qwen2_composes_characters_and_others_keep_them(
        self, byte_level_metadata: MakeBytes
    ) -> None:
        text = "e\u0301"
        qwen2, smollm = (
            load_tokenizer(byte_level_metadata(pre, [])) for pre in ("qwen2", "smollm")
        )
        assert qwen2.decode(qwen2.encode(text, False), False) == "\u00e9"
        assert smollm.decode(smollm.encode(text, False), False) == text

    def test_llama3_takes_a_whole_word_that_no_merge_builds(
        self, byte_level_metadata: MakeBytes
    ) -> None:
        metadata = byte_level_metadata("llama-bpe", [], ())
        pieces, kinds = metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.token_type"]
        assert isinstance(pieces, list)
        assert isinstance(kinds, list)
        pieces.append("abc")
        kinds.append(1)
        assert cuts(load_tokenizer(metadata), "abc") == ["abc"]
        for other in ("gpt-2", "dbrx"):
            metadata["tokenizer.ggml.pre"] = other
            assert cuts(load_tokenizer(metadata), "abc") == ["a", "b", "c"]

    def test_gpt4o_parts_words_where_a_capital_follows(
        self, byte_level_metadata: MakeBytes
    ) -> None:
        merges = ["a B", "B c", "aB c", "' T"]
        tokenizer = load_tokenizer(byte_level_metadata("gpt-4o", merges))
        assert cuts(tokenizer, "aBc'T") == ["a", "Bc", "'T"]
        other = load_tokenizer(byte_level_metadata("dbrx", merges))
        assert cuts(other, "aBc") == ["aBc"]

    @pytest.mark.parametrize("pre", ["smollm", "gpt-2", "llama-bpe", "gpt-4o", "default"])
    @pytest.mark.parametrize("text", HARD_TEXTS)
    def test_hard_text_comes_back(
        self, byte_level_metadata: MakeBytes, pre: str, text: str
    ) -> None:
        tokenizer = load_tokenizer(byte_level_metadata(pre, list(self.MERGES)))
        ids = tokenizer.encode(text, add_special=False)
        assert tokenizer.decode(ids, skip_special=False) == text

    def test_special_tokens_are_recognised_skipped_and_named(
        self, byte_level_metadata: MakeBytes
    ) -> None:
        metadata = byte_level_metadata("smollm", [], ("<|im_start|>", "<|im_end|>"))
        metadata["tokenizer.ggml.eos_token_id"] = 257
        tokenizer = load_tokenizer(metadata)
        ids = tokenizer.encode("a<|im_end|>b", add_special=False)
        assert ids == [ord("a"), 257, ord("b")]
        assert tokenizer.decode(ids, skip_special=True) == "ab"
        assert tokenizer.decode(ids, skip_special=False) == "a<|im_end|>b"
        assert tokenizer.special_ids == {256, 257}
        assert tokenizer.token_id("<|im_start|>") == 256
        assert tokenizer.token_id("<|no such|>") is None

    def test_end_of_turn_tokens_end_a_turn_besides_the_named_one(
        self, byte_level_metadata: MakeBytes
    ) -> None:
        metadata = byte_level_metadata("llama-bpe", [], ("<s>", "<|end_of_text|>", "<|eot_id|>"))
        metadata["tokenizer.ggml.eos_token_id"] = 257
        assert load_tokenizer(metadata).eos_ids == {257, 258}

    @pytest.mark.parametrize(
        ("pre", "flag", "first"),
        [
            ("llama-bpe", None, 256),
            ("smollm", None, ord("a")),
            ("smollm", True, 256),
            ("llama-bpe", False, ord("a")),
        ],
    )
    def test_bos_is_added_where_the_file_or_its_kind_says(
        self, byte_level_metadata: MakeBytes, pre: str, flag: bool | None, first: int
    ) -> None:
        metadata = byte_level_metadata(pre, [], ("<s>",))
        metadata["tokenizer.ggml.bos_token_id"] = 256
        if flag is not None:
            metadata["tokenizer.ggml.add_bos_token"] = flag
        tokenizer = load_tokenizer(metadata)
        assert tokenizer.encode("a", add_special=True)[0] == first
        assert tokenizer.encode("a", add_special=False) == [ord("a")]

    def test_lone_surrogates_are_refused_by_name(self, byte_level_metadata: MakeBytes) -> None:
        tokenizer = load_tokenizer(byte_level_metadata("smollm", []))
        with pytest.raises(InvalidField, match="text must be well-formed Unicode"):
            tokenizer.encode("a\ud83d", add_special=False)

    def test_ids_outside_the_vocabulary_have_no_text(self, byte_level_metadata: MakeBytes) -> None:
        tokenizer = load_tokenizer(byte_level_metadata("smollm", []))
        assert tokenizer.n_vocab == 256
        assert tokenizer.token_bytes(256) == b""
        assert tokenizer.decode([97, -1, 10**6, 98], skip_special=False) == "ab"


PIECES = {"▁": -1.0, "a": -2.0, "b": -3.0, "ab": -4.0, "▁a": -5.0, "bb": -6.0, "▁ab": -7.0}


class TestSentencePiece:
    def test_best_piece_is_joined_first(self, sentencepiece_metadata: MakePieces) -> None:
        tokenizer = load_tokenizer(sentencepiece_metadata(PIECES))
        assert cuts(tokenizer, "abb a") == [" ab", "b", " a"]

    def test_unknown_characters_become_bytes_and_come_back(
        self, sentencepiece_metadata: MakePieces
    ) -> None:
        tokenizer = load_tokenizer(sentencepiece_metadata(PIECES))
        ids = tokenizer.encode("aé", add_special=False)
        assert [tokenizer.token_bytes(i) for i in ids] == [b" a", b"\xc3", b"\xa9"]

    @pytest.mark.parametrize("text", HARD_TEXTS)
    def test_hard_text_comes_back(self, sentencepiece_metadata: MakePieces, text: str) -> None:
        tokenizer = load_tokenizer(sentencepiece_metadata(PIECES))
        ids = tokenizer.encode(text, add_special=True)
        assert ids[0] == tokenizer.bos_id == 1
        assert tokenizer.decode(ids, skip_special=True) == text

    def test_a_stream_keeps_the_space_before_its_first_word(
        self, sentencepiece_metadata: MakePieces
    ) -> None:
        """A stream continues a text, so its first space is no encoding artefact."""
        tokenizer = load_tokenizer(sentencepiece_metadata(PIECES))
        (token,) = tokenizer.encode("ab", add_special=False)
        assert tokenizer.stream(skip_special=True).push(token) == " ab"
        assert tokenizer.decode([token], skip_special=True) == "ab"

    def test_without_prefix_a_text_starts_as_it_is(
        self, sentencepiece_metadata: MakePieces
    ) -> None:
        metadata = sentencepiece_metadata(PIECES)
        metadata["tokenizer.ggml.add_space_prefix"] = False
        tokenizer = load_tokenizer(metadata)
        assert cuts(tokenizer, "ab") == ["ab"]
        assert tokenizer.decode(tokenizer.encode(" ab", False), skip_special=False) == " ab"

    def test_merges_are_ranked_by_the_joint_piece(self) -> None:
        pieces = {"a": 0, "b": 1, "ab": 2, "abb": 3, "bb": 4, "<b>": 5}
        scores = [0.0, 0.0, -1.0, -2.0, -3.0, 0.0]
        assert merges_of(pieces, scores, frozenset((5,))) == [
            ("a", "b"),
            ("a", "bb"),
            ("ab", "b"),
            ("b", "b"),
        ]


class TestDamage:
    @pytest.mark.parametrize(
        ("key", "value", "message"),
        [
            ("model", "bert", "tokenizer.ggml.model is 'bert'"),
            ("model", 3, "tokenizer.ggml.model must be a string"),
            ("pre", "no-such", "tokenizer.ggml.pre is 'no-such'"),
            ("tokens", "text", "tokenizer.ggml.tokens must be an array"),
            ("tokens", [1, 2], "tokenizer.ggml.tokens must be an array of strings"),
            ("tokens", ["a"], "entries for 1 tokens"),
            ("token_type", [1], "token_type has 1 entries"),
            ("merges", ["a b", "ab"], "'ab' is no merge"),
            ("merges", ["a nothere"], "vocabulary is damaged"),
            ("eos_token_id", 10**6, "eos_token_id must be an id below"),
            ("bos_token_id", -1, "bos_token_id must be an id below"),
            ("add_bos_token", "yes", "add_bos_token must be true or false"),
        ],
    )
    def test_a_damaged_key_is_named(
        self, byte_level_metadata: MakeBytes, key: str, value: object, message: str
    ) -> None:
        metadata = byte_level_metadata("smollm", ["a b"])
        metadata[f"tokenizer.ggml.{key}"] = value
        with pytest.raises(ModelError, match=message):
            load_tokenizer(metadata)

    def test_missing_letters_are_damage(self, byte_level_metadata: MakeBytes) -> None:
        metadata = byte_level_metadata("smollm", [])
        pieces = metadata["tokenizer.ggml.tokens"]
        assert isinstance(pieces, list)
        pieces[ord("a")] = "?a"
        with pytest.raises(ModelError, match="1 printable ASCII characters have no token"):
            load_tokenizer(metadata)

    def test_missing_scores_and_bytes_are_damage(self, sentencepiece_metadata: MakePieces) -> None:
        short = sentencepiece_metadata({"a": 0.0}) | {"tokenizer.ggml.scores": [0.0]}
        with pytest.raises(ModelError, match=r"scores has 1 entries for 260 tokens"):
            load_tokenizer(short)
        no_byte = sentencepiece_metadata({"a": 0.0})
        pieces = no_byte["tokenizer.ggml.tokens"]
        assert isinstance(pieces, list)
        pieces[3] = "zero"
        with pytest.raises(ModelError, match="1 of 256 byte tokens are missing"):
            load_tokenizer(no_byte)

    def test_absurdly_long_pieces_are_damage(self, sentencepiece_metadata: MakePieces) -> None:
        with pytest.raises(ModelError, match="a token of 100000 characters"):
            load_tokenizer(sentencepiece_metadata({"a" * 100_000: 0.0}))
