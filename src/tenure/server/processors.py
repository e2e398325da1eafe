"""How a request names a logit processor, in every dialect that has the field."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import cast

from tenure.core.errors import InvalidField, UnsupportedField
from tenure.core.turns import Processor

FIELD = "custom_logit_processor"


def processor_of(text: str | None, custom_params: Mapping[str, object] | None) -> Processor | None:
    """From a name, or from JSON `{"name": ..., "params": {...}}`; an empty text asks for none.

    `custom_params` are params as well. Raises UnsupportedField for pickled code, and InvalidField.
    """
    if not text:
        if custom_params:
            raise InvalidField("custom_params", custom_params, f"absent without {FIELD}")
        return None
    if not text.lstrip().startswith("{"):
        return Processor(text, dict(custom_params or {}))
    try:
        given = cast("dict[str, object]", json.loads(text))
    except ValueError:
        raise InvalidField(FIELD, text, "the name of a processor, or a JSON object") from None
    if "callable" in given:
        raise UnsupportedField(
            FIELD, "code that comes with a request is never run; name an installed processor"
        )
    name, params = given.get("name"), given.get("params", {})
    known = given.keys() <= {"name", "params"}
    if not known or not name or not isinstance(name, str) or not isinstance(params, dict):
        raise InvalidField(FIELD, text, 'JSON with "name", and an object as "params"')
    return Processor(name, {**cast("dict[str, object]", params), **(custom_params or {})})
