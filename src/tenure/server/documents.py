"""The OpenAPI document, and a page that shows it; nothing of either comes from elsewhere."""

from __future__ import annotations

import json
from html import escape
from typing import Any, cast

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem }
code, pre { font: 13px/1.45 ui-monospace, monospace }
summary { cursor: pointer; padding: .3rem 0 } summary b { display: inline-block; width: 4rem }
pre { overflow-x: auto; background: #8882; padding: 1rem }
:root { color-scheme: light dark }
"""


def install(app: FastAPI) -> None:
    """Serve `/openapi.json` (FastAPI's own route) without what never happens, and `/docs`."""
    made: list[dict[str, Any]] = []

    def document() -> dict[str, Any]:
        if not made:
            made.append(_document(app))
        return made[0]

    async def page(_: Request) -> Response:
        return HTMLResponse(_page(document()))

    app.openapi = document
    app.add_route("/docs", page, include_in_schema=False)


def _document(app: FastAPI) -> dict[str, Any]:
    found = get_openapi(
        title=app.title, version=app.version, summary=app.summary, routes=app.routes
    )
    # FastAPI documents its own answer to a wrong schema; here a wrong schema answers 400.
    for methods in cast("dict[str, dict[str, dict[str, Any]]]", found["paths"]).values():
        for operation in methods.values():
            operation["responses"].pop("422", None)
    for unused in ("HTTPValidationError", "ValidationError"):
        found["components"]["schemas"].pop(unused, None)
    return found


def _page(document: dict[str, Any]) -> str:
    parts = [f"<!doctype html><meta charset=utf-8><title>Tenure API</title><style>{_STYLE}</style>"]
    parts.append(f"<h1>Tenure {escape(document['info']['version'])}</h1>")
    parts.append('<p>The machine-readable document is <a href="openapi.json">openapi.json</a>.</p>')
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            about = escape(operation.get("description", ""))
            shown = {
                key: operation[key] for key in ("requestBody", "responses") if key in operation
            }
            parts.append(
                f"<details><summary><b>{method.upper()}</b> <code>{escape(path)}</code> {about}"
                f"</summary><pre>{escape(json.dumps(shown, indent=2))}</pre></details>"
            )
    schemas = document["components"]["schemas"]
    parts.append("<h2>Schemas</h2>")
    for name, schema in schemas.items():
        parts.append(
            f"<details><summary><code>{escape(name)}</code></summary>"
            f"<pre>{escape(json.dumps(schema, indent=2))}</pre></details>"
        )
    return "".join(parts)
