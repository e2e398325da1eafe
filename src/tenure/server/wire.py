"""What every request schema has in common."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Annotated, Any, cast

from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic.types import FailFast
from typing_extensions import TypeAliasType

from tenure.core.errors import InvalidField

# A list of a million wrong items must not make a million errors. The aliases have names because
# `Annotated` with FailFast does not hash, which unions need.
Ids = TypeAliasType("Ids", Annotated[list[int], FailFast()])
IdLists = TypeAliasType("IdLists", Annotated[list[Ids], FailFast()])
Texts = TypeAliasType("Texts", Annotated[list[str], FailFast()])
Bools = TypeAliasType("Bools", Annotated[list[bool], FailFast()])


MAX_UNKNOWN = 8


def about(default: Any, text: str, **bounds: float) -> Any:
    """A field with its description; bounds are documented here and enforced in `core`."""
    return Field(default=default, description=text, json_schema_extra=dict(bounds))


class Wire(BaseModel):
    """A JSON object of the interface: strict types, no unknown field, null means absent.

    Raises InvalidField for text that is no well-formed Unicode, in a field or in a list.
    """

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _drop_nulls(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        given = cast("dict[object, object]", data)
        names = {field.alias or name for name, field in cls.model_fields.items()}
        known = {k: v for k, v in given.items() if v is not None and k in names}
        for field, value in known.items():
            check_unicode(str(field), value)
        # A few unknown fields are named; each of a hundred thousand would cost an error.
        unknown = (k for k in given if k not in names)
        return known | dict.fromkeys(islice(unknown, MAX_UNKNOWN))


def check_unicode(field: str, value: object) -> None:
    """Raise InvalidField where a text, or a text of a list, holds a lone surrogate."""
    match value:
        case str():
            try:
                value.encode()
            except UnicodeEncodeError as error:
                bad = value[error.start : error.end]
                allowed = f"well-formed Unicode (character {error.start} is a lone surrogate)"
                raise InvalidField(field, bad, allowed) from None
        case list():
            for item in cast("list[object]", value):
                if isinstance(item, str):
                    check_unicode(field, item)
        case _:
            pass


def check_ids(field: str, ids: Sequence[int], n_vocab: int) -> None:
    """Raise InvalidField unless every id is one of the vocabulary."""
    if not ids or (min(ids) >= 0 and max(ids) < n_vocab):
        return
    bad = next(token for token in ids if not 0 <= token < n_vocab)
    raise InvalidField(field, bad, f"token ids in [0, {n_vocab})")


def token_biases(field: str, body: Mapping[str, float], n_vocab: int) -> dict[int, float]:
    """Biases by token id, from the strings that JSON has for keys. Raises InvalidField."""
    bias: dict[int, float] = {}
    for key, value in body.items():
        if not (key.isascii() and key.isdecimal() and len(key) < 12):
            raise InvalidField(field, key, "a map from token id to bias")
        bias[int(key)] = value
    check_ids(field, tuple(bias), n_vocab)
    return bias


def texts_of(value: str | list[str] | None) -> tuple[str, ...]:
    """One text, several, or none, as a tuple."""
    match value:
        case None:
            return ()
        case str():
            return (value,)
        case _:
            return tuple(value)
