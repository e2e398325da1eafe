"""`docs/openai.md` and `docs/anthropic.md` name what the server has."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tenure.server.anthropic.schema import MessagesBody
from tenure.server.openai.responses.schema import ResponseBody
from tenure.server.openai.schema import ChatBody, CompletionBody

DOCS = Path(__file__).parents[3] / "docs"


@pytest.mark.parametrize(
    ("page", "schema"),
    [
        ("openai.md", ChatBody),
        ("openai.md", CompletionBody),
        ("openai.md", ResponseBody),
        ("anthropic.md", MessagesBody),
    ],
)
def test_every_field_is_described(page, schema):
    text = (DOCS / page).read_text()
    missing = [name for name in schema.model_fields if f"`{name}`" not in text]
    assert missing == []


async def test_every_endpoint_is_described(served):
    text = (DOCS / "openai.md").read_text() + (DOCS / "anthropic.md").read_text()
    document = (await served.http.get("/openapi.json")).json()
    for path in document["paths"]:
        if path.startswith("/v1/") and not path.startswith("/v1/sessions"):
            shown = re.sub(r"\{[a-z_]*_id\}", "{id}", path)
            shown = shown.replace("items/{id}", "items/{item}").replace(
                "models/{id}", "models/{name}"
            )
            assert f"`{shown}`" in text or f"POST {shown}`" in text, path
