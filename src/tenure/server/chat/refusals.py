"""Fields that are known and cannot be honoured: refused by name, unless they ask for nothing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from tenure.core.errors import InvalidField, UnsupportedField, UserError
from tenure.core.info import AdapterInfo
from tenure.server.chat.ask import AdapterName
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


def refuse_beside(body: Wire, kind: str, fields: Iterable[str], path: str) -> None:
    """Raise InvalidField for a field that is set and is none of `type` and `fields`.

    `body` is of type `kind`, which has these fields.
    """
    beside = body.model_fields_set - {"type", *fields}
    for name, value in body.model_dump(include=beside, by_alias=True, exclude_unset=True).items():
        raise InvalidField(f"{path}.{name}", value, f"absent for type {kind}")


def adapter_of(asked: str | None, served: str, lora_path: str | None = None) -> AdapterName | None:
    """The adapter that `model` and `lora_path` ask for; whether there is one, `check_adapter` says.

    A model's name may be the served one, an adapter's, or both with a colon between. Raises
    InvalidField where the two fields name different ones.
    """
    explicit = AdapterName(lora_path, "lora_path") if lora_path else None
    if asked is None or asked == served:
        return explicit
    named = AdapterName(asked.removeprefix(f"{served}:"), "model")
    if explicit is not None and explicit.name != named.name:
        raise InvalidField("lora_path", lora_path, "absent, or the adapter that model names")
    return named


def check_adapter(asked: AdapterName | None, served: str, loaded: Iterable[AdapterInfo]) -> None:
    """Raise NotFound unless the adapter is loaded."""
    names = [adapter.name for adapter in loaded]
    if asked is not None and asked.name not in names:
        has = ", ".join(map(repr, (served, *names[:8])))
        message = f"The model {asked.name[:80]!r} does not exist; this server has {has}."
        raise NotFound(message, asked.field, "model_not_found")
