"""The default model's tokenizer and chat template, read from its own file.

The ids are those of the public SmolLM2 tokenizer.
"""

from __future__ import annotations

import pytest

from tenure.model.chat_template import ChatTemplate, find_chat_template
from tenure.model.default import default_model_path
from tenure.model.tokenizer import Tokenizer, load_tokenizer
from tenure.model.weights.gguf import open_gguf

pytestmark = pytest.mark.weights

KNOWN = {
    "Hello, world!": [19556, 28, 905, 17],
    "The capital of France is": [504, 3575, 282, 4649, 314],
    "  leading": [216, 2899],
    "a  b   c    d\n\n\n\te": [81, 216, 278, 256, 265, 333, 287, 16506, 197, 85],
    "1234567890": [33, 34, 35, 36, 37, 38, 39, 40, 41, 32],
    "I'm you're WE'LL": [57, 5248, 346, 2316, 26587, 23, 16421],
    "한국어": [33085, 246, 181, 130, 251, 183, 240, 129],
    "e\u0301 a\u0308": [85, 151, 219, 253, 151, 226],
    "👩\u200d👧": [10813, 235, 119, 321, 231, 10813, 235, 117],
    "\r\n\r\n\t\t  \r x": [18682, 1656, 256, 201, 1792],
    "½ ² ③": [16738, 216, 19133, 216, 173, 235, 112],
    "def f(x):\n    return {'a': [1, 2], **x}\n": [
        *(1604, 275, 24, 104, 727, 472, 1003, 7353, 81, 1539, 933),
        *(33, 28, 216, 34, 1750, 1903, 104, 109, 198),
    ],
    "<|im_start|>user\nHi<|im_end|>\n": [1, 4093, 198, 26843, 2, 198],
    "a<|im_end|>b <|endoftext|> c": [81, 2, 82, 216, 0, 265],
}


@pytest.fixture(scope="module")
def metadata() -> dict[str, object]:
    return dict(open_gguf(default_model_path()).metadata)


@pytest.fixture(scope="module")
def tokenizer(metadata: dict[str, object]) -> Tokenizer:
    return load_tokenizer(metadata)


@pytest.mark.parametrize("text", KNOWN)
def test_known_encodings(tokenizer: Tokenizer, text: str) -> None:
    ids = tokenizer.encode(text, add_special=True)
    assert ids == KNOWN[text]
    assert tokenizer.decode(ids, skip_special=False) == text


def test_what_its_marks_are(tokenizer: Tokenizer) -> None:
    assert tokenizer.n_vocab == 49_152
    assert tokenizer.bos_id == 1
    assert tokenizer.eos_ids == {0, 2}
    assert tokenizer.special_ids == set(range(17))


def test_its_chat_template(metadata: dict[str, object], tokenizer: Tokenizer) -> None:
    template = find_chat_template(metadata, tokenizer)
    assert isinstance(template, ChatTemplate)
    user = {"role": "user", "content": "Hi"}
    assert template.render([user]) == (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face"
        "<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    )
    assert template.continuation([user], ended_with="<|im_end|>") == (
        "\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    )
