"""Frozen dataclasses as bytes and back, derived from their type hints.

Both ends run the same code, so a dataclass is the list of its fields' values in order, and a union
of several types is [which of them, value]. msgspec makes MessagePack of the plain values that are
left. A type that cannot travel is refused when its codec is made, not when it is first sent.
"""

from __future__ import annotations

import types
from array import array
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from operator import attrgetter
from pathlib import Path
from typing import (
    Any,
    Generic,
    TypeAlias,
    TypeVar,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)

import msgspec

from tenure.core import errors, tenant
from tenure.core.errors import TenureError
from tenure.core.tokens import Tokens

T = TypeVar("T")

Turn: TypeAlias = Callable[[Any], Any]
PLAIN = frozenset({int, float, str, bool, bytes, object})
"""Travel as they are; `object` stands in errors, whose values are made plain one by one."""


class Codec(Generic[T]):
    """Packs values of one type, which may be a union."""

    def __init__(self, kind: Any) -> None:
        """Raises TypeError for a type that cannot travel."""
        self._pack, self._unpack = _both(kind)
        self._encode = msgspec.msgpack.Encoder().encode
        self._decode = msgspec.msgpack.Decoder().decode

    def encode(self, value: T) -> bytes:
        return self._encode(self._pack(value))

    def decode(self, data: bytes) -> T:
        return self._unpack(self._decode(data))


def _both(kind: Any) -> tuple[Turn, Turn]:
    """(to plain values, from plain values)."""
    if kind in PLAIN:
        return _same, _same
    if kind is TenureError:
        return _pack_error, _unpack_error
    match get_origin(kind):
        case None:
            return _of_class(kind)
        case types.UnionType:
            return _of_union(get_args(kind))
        case origin if origin is Union:
            return _of_union(get_args(kind))
        case origin:
            return _of_container(origin, get_args(kind), kind)


def _of_class(kind: Any) -> tuple[Turn, Turn]:
    if kind is array:
        return _pack_tokens, _unpack_tokens
    if is_dataclass(kind):
        return _of_dataclass(cast("type[Any]", kind))
    if isinstance(kind, type) and issubclass(kind, Enum):
        return attrgetter("value"), kind
    if isinstance(kind, type) and issubclass(kind, Path):
        return str, kind
    raise TypeError(f"{kind} cannot travel between processes")


def _of_dataclass(kind: type[Any]) -> tuple[Turn, Turn]:
    # `Tokens` stands for a string there: at run time `array` takes no parameter.
    hints = get_type_hints(kind, localns={"Tokens": array})
    names = [field.name for field in fields(kind) if field.init]
    codecs = [_both(hints[name]) for name in names]
    packs = [pack for pack, _ in codecs]
    unpacks = [unpack for _, unpack in codecs]
    values = _values_of(names)

    def pack_all(value: Any) -> Any:
        return [pack(part) for pack, part in zip(packs, values(value), strict=True)]

    def unpack_all(plain: Any) -> Any:
        return kind(*[unpack(part) for unpack, part in zip(unpacks, plain, strict=True)])

    return (
        values if _all_same(packs) else pack_all,
        (lambda plain: kind(*plain)) if _all_same(unpacks) else unpack_all,
    )


def _values_of(names: list[str]) -> Turn:
    """The values of these attributes, as a tuple also where there is one or none."""
    if len(names) > 1:
        return attrgetter(*names)
    return lambda value: tuple(getattr(value, name) for name in names)


def _of_union(kinds: tuple[Any, ...]) -> tuple[Turn, Turn]:
    members = [kind for kind in kinds if kind is not types.NoneType]
    if all(kind in PLAIN for kind in members):
        return _same, _same
    codecs = [_both(kind) for kind in members]
    if len(members) == 1:
        return _or_none(*codecs[0])
    by_class = {
        get_origin(kind) or kind: (number, pack)
        for number, (kind, (pack, _)) in enumerate(zip(members, codecs, strict=True))
    }
    if len(by_class) < len(members):
        raise TypeError(f"{members} cannot travel: values of two of them look alike")
    unpacks: list[Turn] = [unpack for _, unpack in codecs]

    def pack_one(value: Any) -> Any:
        if value is None:
            return None
        number, pack = by_class[type(value)]
        return number, pack(value)

    def unpack_one(plain: Any) -> Any:
        if plain is None:
            return None
        number, part = plain
        return unpacks[cast("int", number)](part)

    return pack_one, unpack_one


def _or_none(pack: Turn, unpack: Turn) -> tuple[Turn, Turn]:
    return (
        lambda value: None if value is None else pack(value),
        lambda plain: None if plain is None else unpack(plain),
    )


def _of_container(origin: Any, args: tuple[Any, ...], kind: Any) -> tuple[Turn, Turn]:
    if origin is tuple and args[-1] is not Ellipsis:
        return _of_fixed(args)
    if origin in (tuple, list, frozenset):
        return _of_many(origin, args[0])
    if origin in (dict, Mapping):
        (pack_key, unpack_key), (pack, unpack) = map(_both, args)
        return (
            lambda value: {pack_key(key): pack(part) for key, part in value.items()},
            lambda plain: {unpack_key(key): unpack(part) for key, part in plain.items()},
        )
    raise TypeError(f"{kind} cannot travel between processes")


def _of_fixed(kinds: tuple[Any, ...]) -> tuple[Turn, Turn]:
    codecs = [_both(kind) for kind in kinds]
    packs, unpacks = [pack for pack, _ in codecs], [unpack for _, unpack in codecs]

    def pack_all(value: Any) -> Any:
        return [pack(part) for pack, part in zip(packs, value, strict=True)]

    def unpack_all(plain: Any) -> Any:
        return tuple(unpack(part) for unpack, part in zip(unpacks, plain, strict=True))

    return (_same if _all_same(packs) else pack_all), unpack_all


def _of_many(make: Turn, kind: Any) -> tuple[Turn, Turn]:
    pack, unpack = _both(kind)

    def pack_all(value: Any) -> Any:
        return [pack(part) for part in value]

    def unpack_all(plain: Any) -> Any:
        return make([unpack(part) for part in plain])

    return (
        _same if pack is _same else pack_all,
        make if unpack is _same else unpack_all,
    )


def _same(value: Any) -> Any:
    return value


def _all_same(turns: list[Turn]) -> bool:
    return all(turn is _same for turn in turns)


def _pack_tokens(value: Tokens) -> bytes:
    return value.tobytes()


def _unpack_tokens(plain: bytes) -> Tokens:
    ids = array("i")
    ids.frombytes(plain)
    return ids


# -- errors: the class by its name, and everything that the instance holds


def _classes(root: type[TenureError]) -> Iterator[type[TenureError]]:
    yield root
    for child in root.__subclasses__():
        yield from _classes(child)


ERRORS = {
    kind.__name__: kind
    for kind in _classes(TenureError)
    if kind.__module__ in (errors.__name__, tenant.__name__)
}


def _pack_error(error: TenureError) -> Any:
    known = (kind.__name__ for kind in type(error).__mro__ if kind.__name__ in ERRORS)
    held = {name: _plain(value) for name, value in vars(error).items()}
    return next(known), held


def _unpack_error(plain: Any) -> TenureError:
    name, held = plain
    kind = ERRORS[name]
    error = kind.__new__(kind)
    error.args = (held["message"],)
    vars(error).update(held)
    return error


def _plain(value: object) -> object:
    """A value as it is where MessagePack has it, else what a person would read of it."""
    match value:
        case None | bool() | int() | float() | str():
            return value
        case dict():
            return {_plain(k): _plain(v) for k, v in cast("dict[object, object]", value).items()}
        case list() | tuple():
            return [_plain(part) for part in cast("list[object]", value)]
        case _:
            return repr(value)
