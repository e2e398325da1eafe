"""A hundred JSON schemas of growing difficulty: ten kinds, ten sizes of each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

Schema: TypeAlias = dict[str, Any]

WORDS = (
    "alpha", "bravo", "charlie", "delta", "echo", "foxtrot", "golf", "hotel", "india", "juliet",
    "kilo", "lima", "mike", "november", "oscar", "papa", "quebec", "romeo", "sierra", "tango",
    "uniform", "victor", "whiskey", "xray", "yankee", "zulu",
)  # fmt: skip
SHORT = {"type": "string", "maxLength": 24}


def closed(properties: Schema, required: list[str] | None = None, **more: Any) -> Schema:
    """An object with these properties and no others; all required unless said."""
    names = list(properties) if required is None else required
    return {
        "type": "object",
        "properties": properties,
        "required": names,
        "additionalProperties": False,
        **more,
    }


def scalar(i: int) -> Schema:
    return (
        {"type": "boolean"},
        {"type": "integer", "minimum": 0, "maximum": 9},
        {"enum": ["red", "green", "blue"]},
        {"const": {"fixed": [1, 2, 3]}},
        {"type": "integer", "minimum": -273, "maximum": 1_000_000},
        {"type": "string", "minLength": 3, "maxLength": 12},
        {"type": "number", "minimum": -1.5, "exclusiveMaximum": 2.25},
        {"type": ["integer", "null"], "exclusiveMinimum": 17},
        {"type": "integer", "multipleOf": 7, "minimum": 0, "maximum": 700},
        {"enum": [1, "one", None, True, [1], {"one": 1}]},
    )[i]


def flat(i: int) -> Schema:
    kinds: list[Schema] = [SHORT, {"type": "integer"}, {"type": "boolean"}, {"enum": ["a", "b"]}]
    return closed({WORDS[k]: kinds[k % 4] for k in range(i + 1)})


def optional(i: int) -> Schema:
    properties = {
        WORDS[k]: {"type": "integer", "minimum": k, "maximum": 10 * k} for k in range(1, i + 3)
    }
    return closed(properties, required=list(properties)[:: i + 2])


def listed(i: int) -> Schema:
    item: Schema = {"enum": list(WORDS[: i + 2])}
    for depth in range(i // 4):
        item = {"type": "array", "items": item, "minItems": 1, "maxItems": 3 - depth}
    if i % 3 == 2:
        pair = {
            "type": "array",
            "prefixItems": [item, {"type": "integer"}],
            "items": False,
            "minItems": 2,
        }
        return {"type": "array", "items": pair, "minItems": 1, "maxItems": 3}
    return {"type": "array", "items": item, "minItems": i // 2, "maxItems": i + 1}


def patterned(i: int) -> Schema:
    patterns = (
        "^[a-z]+$",
        "^[A-Z]{2}[0-9]{4}$",
        r"^\d{3}-\d{4}$",
        "^(foo|bar|baz)(-(foo|bar|baz)){0,3}$",
        r"^v\d{1,3}\.\d{1,3}\.\d{1,3}(-(alpha|beta|rc)\.\d)?$",
        "^#[0-9a-f]{6}$",
        r"^[a-z][a-z0-9_]{0,15}@(home|work)\.example$",
        r"^([01]\d|2[0-3]):[0-5]\d(:[0-5]\d)?$",
        r"^/([a-z]{1,8}/){1,4}[a-z]{1,8}\.(txt|md|py)$",
        r"^(\+\d{1,2} )?\(\d{3}\) \d{3}( \d{2}){2}$",
    )
    return closed(
        {"code": {"type": "string", "pattern": patterns[i]}, "known": {"type": "boolean"}}
    )


def formatted(i: int) -> Schema:
    formats = (
        "date",
        "time",
        "date-time",
        "uuid",
        "ipv4",
        "email",
        "hostname",
        "uri",
        "ipv6",
        "duration",
    )
    return closed(
        {
            formats[k].replace("-", "_"): {"type": "string", "format": formats[k]}
            for k in {i, i // 2}
        }
    )


def union(i: int) -> Schema:
    choices = [
        closed({"kind": {"const": WORDS[k]}, f"value_{k}": flat(k % 4)}) for k in range(i + 2)
    ]
    if i % 2:
        return {
            "anyOf": [*choices, {"type": "null"}, {"type": "integer", "minimum": 0, "maximum": 99}]
        }
    return closed({"choice": {"oneOf": choices}, "more": {"anyOf": [{"type": "null"}, choices[0]]}})


def nested(i: int) -> Schema:
    inner: Schema = closed(
        {"leaf": {"enum": ["x", "y"]}, "n": {"type": "integer", "minimum": 0, "maximum": 9}}
    )
    for depth in range(i + 1):
        inner = closed({WORDS[depth]: inner, f"{WORDS[depth]}_{depth}": {"$ref": "#/$defs/flag"}})
    return {**inner, "$defs": {"flag": {"type": ["boolean", "null"]}}}


def recursive(i: int) -> Schema:
    here: Schema = {"$ref": "#/$defs/node"}
    nodes: list[Schema] = [
        closed(
            {
                "value": {"type": "integer", "minimum": 0, "maximum": 9},
                "next": {"anyOf": [{"type": "null"}, here]},
            }
        ),
        closed(
            {
                "name": {"enum": list(WORDS[:4])},
                "children": {"type": "array", "items": here, "maxItems": 2},
            }
        ),
        closed(
            {
                "op": {"enum": ["+", "*"]},
                "left": {"$ref": "#/$defs/side"},
                "right": {"$ref": "#/$defs/side"},
            }
        ),
        {
            "type": "array",
            "items": {"anyOf": [here, {"type": "integer", "minimum": 0, "maximum": 9}]},
            "maxItems": 3,
        },
        closed({"if": {"type": "boolean"}, "then": here, "else": here}, required=["if"]),
    ]
    side = {"anyOf": [{"type": "integer", "minimum": 0, "maximum": 99}, here]}
    root: Schema = {**here, "$defs": {"node": nodes[i % 5], "side": side}}
    if i < 5:
        return root
    return {**closed({"title": {"enum": list(WORDS)}, "root": here}), "$defs": root["$defs"]}


def mixed(i: int) -> Schema:
    item = closed({
        "sku": {"type": "string", "pattern": "^[A-Z]{3}-[0-9]{3}$"},
        "count": {"type": "integer", "minimum": 1, "maximum": 99},
        "price": {"type": "number", "minimum": 0, "maximum": 1000},
        "options": {"type": "object", "additionalProperties": {"enum": ["on", "off"]}},
    }, required=["sku", "count"])  # fmt: skip
    address = closed(
        {
            "street": SHORT,
            "city": {"enum": list(WORDS)},
            "zip": {"type": "string", "pattern": "^[0-9]{5}$"},
        }
    )
    order: Schema = closed({
        "id": {"type": "string", "format": "uuid"},
        "items": {
            "type": "array", "items": {"$ref": "#/$defs/item"}, "minItems": 1,
            "maxItems": 1 + i // 3,
        },
        "ship_to": {"$ref": "#/$defs/address"},
        "bill_to": {"anyOf": [{"$ref": "#/$defs/address"}, {"type": "null"}]},
        "status": {"enum": list(WORDS[: 2 * i + 2])},
        **{f"flag_{k}": {"type": ["boolean", "null"]} for k in range(3 * i)},
    })  # fmt: skip
    defs = {"item": item, "address": address}
    if i % 2:
        return {**order, "$defs": defs}
    versioned = {"version": {"const": i}, **order["properties"]}
    return {**closed(versioned, ["version", *order["required"]]), "$defs": defs}


KINDS: dict[str, Callable[[int], Schema]] = {
    "scalar": scalar,
    "flat": flat,
    "optional": optional,
    "list": listed,
    "pattern": patterned,
    "format": formatted,
    "union": union,
    "nested": nested,
    "recursive": recursive,
    "mixed": mixed,
}


def schemas() -> list[tuple[str, Schema]]:
    """All of them, by name; `union 9` is harder than `union 0`."""
    return [(f"{kind} {i}", make(i)) for kind, make in KINDS.items() for i in range(10)]
