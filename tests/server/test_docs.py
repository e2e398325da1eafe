"""`docs/http-api.md` names what the server has."""

from __future__ import annotations

from pathlib import Path

import pytest

from tenure.core import errors
from tenure.server.sglang.schema import (
    AbortBody,
    CloseSessionBody,
    GenerateBody,
    OpenSessionBody,
    SamplingBody,
    SessionBody,
)

TEXT = (Path(__file__).parents[2] / "docs" / "http-api.md").read_text()


@pytest.mark.parametrize(
    "schema",
    [GenerateBody, SamplingBody, SessionBody, OpenSessionBody, CloseSessionBody, AbortBody],
)
def test_every_field_is_described(schema):
    for field in schema.model_fields:
        assert f"`{field}`" in TEXT or f'"{field}"' in TEXT, field


def test_every_code_of_a_refusal_is_described():
    refusals = [errors.UserError, *errors.UserError.__subclasses__()]
    for refusal in refusals:
        assert f"`{refusal.code}`" in TEXT, refusal
