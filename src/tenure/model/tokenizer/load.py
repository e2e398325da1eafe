"""One door to every kind of tokenizer."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tenure.model.tokenizer.base import Tokenizer
from tenure.model.tokenizer.folder import from_folder
from tenure.model.tokenizer.ggml import from_metadata


def load_tokenizer(source: Path | Mapping[str, object]) -> Tokenizer:
    """From a folder with `tokenizer.json`, or from the metadata of a GGUF file.

    Raises ModelError when the vocabulary is missing, damaged, or of a kind that is not supported.
    """
    match source:
        case Path():
            return from_folder(source)
        case _:
            return from_metadata(source)
