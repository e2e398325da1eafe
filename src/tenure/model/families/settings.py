"""Typed reads from a checkpoint's configuration, with errors that name file, key and value."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import cast

from tenure.core.errors import ModelError


class Settings:
    """One configuration: a JSON object or the metadata of a GGUF file.

    `where` names the file in messages; `prefix` stands before every key (`llama.` in GGUF). An
    absent key and a null are the same. Each read is remembered, so that what no one read can be
    reported. Every read raises ModelError for a value of the wrong kind or range.
    """

    def __init__(self, where: str, values: Mapping[str, object], prefix: str = "") -> None:
        self.where = where
        self.prefix = prefix
        self._values = values
        self._read: set[str] = set()

    def has(self, key: str) -> bool:
        return self._get(key) is not None

    def integer(self, key: str) -> int:
        """A required integer of at least 1."""
        value = self._get(key)
        if type(value) is not int or value < 1:
            raise self.refusal(key, "an integer of at least 1")
        return value

    def count(self, key: str) -> int:
        """A required integer of at least 0."""
        value = self._get(key)
        if type(value) is not int or value < 0:
            raise self.refusal(key, "an integer of at least 0")
        return value

    def integer_or(self, key: str, default: int) -> int:
        return self.integer(key) if self.has(key) else default

    def per_layer(self, key: str, n_layers: int, default: int) -> tuple[int, ...]:
        """One integer of at least 0 for each layer, or one for all; `default` when absent."""
        match self._get(key):
            case None:
                return (default,) * n_layers
            case list():
                found = self.indices(key)
                if len(found) != n_layers:
                    raise self.refusal(key, f"{n_layers} integers, one a layer")
                return found
            case _:
                return (self.integer(key),) * n_layers

    def numbers(self, key: str, default: Sequence[float]) -> tuple[float, ...]:
        """As many numbers as `default` has, which is taken when absent."""
        value = self._get(key)
        if value is None:
            return tuple(default)
        if type(value) is not list or len(cast(list[object], value)) != len(default):
            raise self.refusal(key, f"{len(default)} numbers")
        numbers = [_number(v) for v in cast(list[object], value)]
        if None in numbers:
            raise self.refusal(key, f"{len(default)} numbers")
        return tuple(number for number in numbers if number is not None)

    def number(self, key: str) -> float:
        """A required number above 0."""
        value = self._get(key)
        if type(value) not in (int, float) or not cast(float, value) > 0:
            raise self.refusal(key, "a number above 0")
        return float(cast(float, value))

    def number_or(self, key: str, default: float) -> float:
        return self.number(key) if self.has(key) else default

    def number_if(self, key: str) -> float | None:
        """None when absent."""
        return self.number(key) if self.has(key) else None

    def flag_or(self, key: str, default: bool) -> bool:
        value = self._get(key)
        if value is None:
            return default
        if type(value) is not bool:
            raise self.refusal(key, "true or false")
        return value

    def text_or(self, key: str, default: str) -> str:
        value = self._get(key)
        if value is None:
            return default
        if type(value) is not str:
            raise self.refusal(key, "a string")
        return value

    def texts(self, key: str) -> tuple[str, ...]:
        """A list of strings; empty when absent."""
        value = self._get(key)
        if value is None:
            return ()
        if type(value) is not list or any(type(v) is not str for v in cast(list[object], value)):
            raise self.refusal(key, "a list of strings")
        return tuple(cast(list[str], value))

    def indices(self, key: str) -> tuple[int, ...]:
        """A list of integers of at least 0; empty when absent."""
        value = self._get(key)
        if value is None:
            return ()
        if type(value) is not list or not all(
            type(v) is int and v >= 0 for v in cast(list[object], value)
        ):
            raise self.refusal(key, "a list of integers of at least 0")
        return tuple(cast(list[int], value))

    def section(self, key: str) -> Settings:
        """A nested object; empty when absent."""
        value = self._get(key)
        if value is None:
            value = {}
        if type(value) is not dict:
            raise self.refusal(key, "an object")
        return Settings(f"{self.where}: {key}", cast(dict[str, object], value))

    def require(self, key: str, allowed: Sequence[object]) -> None:
        """Refuse, by name, a value that this build does not compute; absent is always allowed."""
        value = self._get(key)
        if value is not None and value not in allowed:
            raise self.refusal(key, " or ".join(["absent", *(repr(a) for a in allowed)]))

    def require_neutral(self, neutral: Mapping[str, Sequence[object]]) -> None:
        """Refuse each key that is set to anything but its neutral values."""
        for key, allowed in neutral.items():
            self.require(key, allowed)

    def only_unread(self, neutral: Mapping[str, Sequence[object]]) -> dict[str, Sequence[object]]:
        """The entries whose key nobody has read; who reads a key answers for its value."""
        return {key: allowed for key, allowed in neutral.items() if key not in self._read}

    def ignore(self, *keys: str) -> None:
        """Take note of keys that have no effect on this model."""
        self._read.update(keys)

    def unread(self, harmless: Iterable[str]) -> tuple[str, ...]:
        """Keys under the prefix that nobody read and that are not known to be harmless."""
        skip = self._read | set(harmless)
        keys = (k[len(self.prefix) :] for k in self._values if k.startswith(self.prefix))
        return tuple(sorted(k for k in keys if k not in skip and self._peek(k) is not None))

    def refusal(self, key: str, allowed: str) -> ModelError:
        """The error for `key`; its message holds its value and what is allowed."""
        value = repr(self._peek(key))
        shown = value if len(value) <= 80 else value[:77] + "..."
        return ModelError(f"{self.where}: {self.prefix}{key} must be {allowed}, got {shown}")

    def _peek(self, key: str) -> object:
        return self._values.get(self.prefix + key)

    def _get(self, key: str) -> object:
        self._read.add(key)
        return self._peek(key)


def _number(value: object) -> float | None:
    """A number; transformers writes infinity as {"__float__": "Infinity"}."""
    match value:
        case {"__float__": "Infinity"}:
            return float("inf")
        case int() | float() if type(value) is not bool:
            return float(value)
        case _:
            return None
