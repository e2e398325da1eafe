"""Pages of items."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

from fastapi import Depends, Query

from tenure.core.errors import InvalidField, UnsupportedField
from tenure.server.openai.responses.items import Item

MAX_PAGE = 100


@dataclass(frozen=True, slots=True)
class Page:
    """Which part of a list is wanted; `include` has nothing to add."""

    after: Annotated[str | None, Query(description="The id of the item before the page.")] = None
    limit: Annotated[int, Query(description=f"1 to {MAX_PAGE}.")] = 20
    order: Annotated[Literal["asc", "desc"], Query()] = "desc"
    include: Annotated[list[str] | None, Query(description="Not supported.")] = None


PageQuery = Annotated[Page, Depends()]


def page_of(items: Sequence[Item], page: Page) -> dict[str, object]:
    """A page of `items`, which are in order of arrival. Raises InvalidField, UnsupportedField."""
    if page.include:
        raise UnsupportedField("include", "items have no further parts")
    if not 1 <= page.limit <= MAX_PAGE:
        raise InvalidField("limit", page.limit, f"in [1, {MAX_PAGE}]")
    ordered = list(items) if page.order == "asc" else list(reversed(items))
    if page.after is not None:
        ids = [item["id"] for item in ordered]
        if page.after not in ids:
            raise InvalidField("after", page.after, "the id of an item of the list")
        ordered = ordered[ids.index(page.after) + 1 :]
    data = ordered[: page.limit]
    return {
        "object": "list",
        "data": data,
        "first_id": data[0]["id"] if data else None,
        "last_id": data[-1]["id"] if data else None,
        "has_more": len(ordered) > len(data),
    }
