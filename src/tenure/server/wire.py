"""What every request schema has in common."""

from __future__ import annotations

from collections.abc import Sequence
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


def about(default: Any, text: str, **bounds: float) -> Any:
    """A field with its description; bounds are documented here and enforced in `core`."""
    return Field(default=default, description=text, json_schema_extra=dict(bounds))


class Wire(BaseModel):
    """A JSON object of the interface: strict types, no unknown field, null means absent."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _drop_nulls(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        given = cast("dict[object, object]", data)
        return {k: v for k, v in given.items() if v is not None or k not in cls.model_fields}


def check_ids(field: str, ids: Sequence[int], n_vocab: int) -> None:
    """Raise InvalidField unless every id is one of the vocabulary."""
    if not ids or (min(ids) >= 0 and max(ids) < n_vocab):
        return
    bad = next(token for token in ids if not 0 <= token < n_vocab)
    raise InvalidField(field, bad, f"token ids in [0, {n_vocab})")
