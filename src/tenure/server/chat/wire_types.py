"""Types of fields that hold JSON of the caller's own."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from pydantic import AfterValidator, ValidationInfo
from typing_extensions import TypeAliasType

from tenure.core.errors import InvalidField


def _writable(value: object, info: ValidationInfo) -> object:
    """Raise InvalidField unless the value can be written as JSON again."""
    try:
        msgspec.json.encode(value)
    except (UnicodeEncodeError, RecursionError) as error:
        allowed = "JSON of well-formed Unicode, not nested too deeply"
        raise InvalidField(str(info.field_name), str(error), allowed) from None
    return value


Json = TypeAliasType("Json", Annotated[dict[str, Any], AfterValidator(_writable)])
Labels = TypeAliasType("Labels", Annotated[dict[str, str], AfterValidator(_writable)])
