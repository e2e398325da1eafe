"""Text to token ids and back."""

from tenure.model.tokenizer.base import TextStream, Tokenizer
from tenure.model.tokenizer.load import load_tokenizer

__all__ = ["TextStream", "Tokenizer", "load_tokenizer"]
