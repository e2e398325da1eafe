"""From the fields that name sessions to the place of a turn; every dialect spells them alike."""

from __future__ import annotations

from tenure.core.errors import UserError
from tenure.core.turns import check_id
from tenure.server.chat.ask import Alone, AtTip, InSession, Place
from tenure.server.sglang.schema import SessionBody
from tenure.server.sglang.translate import session_ref

SESSION_HEADER = "x-session-id"


def place_of(params: SessionBody | None, tag: str | None, header: str | None) -> Place:
    """At most one of `session_params`, `session_id` and the header says where a turn goes.

    Raises UserError, InvalidField.
    """
    asked = params if params is not None and params.model_fields_set else None
    given = [
        name
        for name, value in (
            ("session_params", asked),
            ("session_id", tag),
            (SESSION_HEADER, header),
        )
        if value is not None
    ]
    if len(given) > 1:
        raise UserError(f"{given[0]} and {given[1]} cannot both be set.")
    if header is not None:
        check_id(SESSION_HEADER, header)
        return AtTip(header)
    return Alone(tag) if asked is None else InSession(session_ref(asked))
