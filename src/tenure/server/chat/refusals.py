"""Fields that are known and cannot be honoured: refused by name, unless they ask for nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tenure.core.errors import UnsupportedField, UserError
from tenure.server.wire import Wire

NOTHING: tuple[object, ...] = (False, 0, "", [], {})
"""Values that ask for nothing, whatever the field."""


@dataclass(frozen=True, slots=True)
class Refused:
    """Why a field is refused; `neutral` values ask for what happens anyway."""

    reason: str
    neutral: tuple[object, ...] = NOTHING


class NotFound(UserError):
    """Something that a request names does not exist; `param` is the field that names it."""

    def __init__(self, message: str, param: str | None, code: str) -> None:
        super().__init__(message)
        self.param = param
        self.code = code


def refuse(body: Wire, table: Mapping[str, Refused], path: str = "") -> None:
    """Raise UnsupportedField for a field of `table` that is set and not neutral.

    `path` stands before the field's name, as in "messages[0].".
    """
    for field, value in body:
        refused = table.get(field) if field in body.model_fields_set else None
        if refused is not None and value not in refused.neutral:
            raise UnsupportedField(f"{path}{field}", refused.reason)


def check_model(asked: str | None, served: str) -> None:
    """Raise NotFound unless `asked` is the served model, or absent."""
    if asked is not None and asked != served:
        message = f"The model {asked[:80]!r} does not exist; this server has {served!r}."
        raise NotFound(message, "model", "model_not_found")
