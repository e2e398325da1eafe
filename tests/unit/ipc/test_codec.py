"""Everything that the engine says and hears travels, found by looking at the types."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import types
from array import array
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import fields, is_dataclass, replace
from enum import Enum
from pathlib import Path
from typing import Any, Union, get_args, get_origin, get_type_hints

import pytest

from tenure import core
from tenure.core.config import EngineSettings
from tenure.core.errors import InvalidField, NoRoom, TenureError
from tenure.core.events import OutwardEvent
from tenure.core.tokens import tokens
from tenure.engine.ipc.codec import Codec
from tenure.engine.ipc.frames import DOWN, UP, Down, Refused, Up
from tenure.engine.messages import Message, Reply

SIMPLE = {int: 1, float: 0.5, str: "a", bool: True, bytes: b"\x00", object: "b"}


def samples(kind: Any) -> Iterator[Any]:
    """Values of a type, at least one for each member of each union inside it."""
    origin, args = get_origin(kind), get_args(kind)
    if kind in SIMPLE:
        yield SIMPLE[kind]
    elif kind is types.NoneType:
        yield None
    elif kind is array:
        yield tokens([1, 2**31 - 1])
    elif kind is TenureError:
        yield TenureError("a")
    elif is_dataclass(kind):
        yield from of_dataclass(kind)
    elif origin in (types.UnionType, Union):
        for member in args:
            yield from samples(member)
    elif origin is tuple and args[-1] is not Ellipsis:
        yield tuple(next(samples(part)) for part in args)
    elif origin in (tuple, list, frozenset):
        yield origin()
        yield origin(samples(args[0]))
    elif origin in (dict, Mapping):
        yield dict(zip(samples(args[0]), samples(args[1]), strict=False))
    elif issubclass(kind, Enum):
        yield from kind
    elif issubclass(kind, Path):
        yield Path("/a/b")
    else:
        raise AssertionError(f"no samples of {kind}")


def of_dataclass(kind: Any) -> Iterator[Any]:
    """A value with the plainest fields, and for each other value of a field one with that."""
    hints = get_type_hints(kind, localns={"Tokens": array})
    choices = {field.name: list(samples(hints[field.name])) for field in fields(kind)}
    plainest = {name: None if None in values else values[0] for name, values in choices.items()}
    base = kind(**plainest)
    yield base
    for name, values in choices.items():
        for value in values:
            # What may not be in a field need not travel.
            with suppress(TenureError):
                yield replace(base, **{name: value})


def members(alias: Any) -> tuple[Any, ...]:
    return get_args(alias) or (alias,)


@pytest.mark.parametrize("kind", [*members(Message), *members(OutwardEvent), *members(Down)])
def test_whatever_goes_down_or_is_told_travels(kind):
    codec: Codec[Any] = Codec(kind)
    n = 0
    for value in samples(kind):
        assert codec.decode(codec.encode(value)) == value
        n += 1
    assert n > 0


@pytest.mark.parametrize("kind", members(Reply), ids=str)
def test_every_reply_travels_as_what_it_is(kind):
    codec: Codec[Any] = Codec(Reply)
    for value in samples(kind):
        found = codec.decode(codec.encode(value))
        assert (type(found), found) == (type(value), value)


def test_frames_are_told_apart():
    for codec, alias in ((DOWN, Down), (UP, Up)):
        for kind in members(alias):
            value = next(samples(kind))
            assert type(codec.decode(codec.encode(value))) is kind


def error_types() -> Iterator[type[TenureError]]:
    for found in pkgutil.iter_modules(core.__path__, "tenure.core."):
        module = importlib.import_module(found.name)
        for _, kind in inspect.getmembers(module, inspect.isclass):
            if issubclass(kind, TenureError) and kind.__module__ == found.name:
                yield kind


def all_errors() -> list[TenureError]:
    """One of every type of `core`, its arguments by their hints."""
    made: list[TenureError] = []
    for kind in error_types():
        hints = get_type_hints(kind.__init__)
        names = list(inspect.signature(kind).parameters)
        made.append(kind(**{name: next(samples(hints[name])) for name in names}))
    return made


@pytest.mark.parametrize("error", all_errors(), ids=lambda error: type(error).__name__)
def test_every_error_comes_out_as_itself(error):
    match UP.decode(UP.encode(Refused(3, error))):
        case Refused(3, found):
            pass
        case other:
            raise AssertionError(other)
    assert type(found) is type(error)
    assert (vars(found), found.code, str(found)) == (vars(error), error.code, str(error))


def test_an_error_keeps_its_own_code_and_its_fields():
    error = NoRoom({0: 3, 1: 2})
    error.code = "other"
    match UP.decode(UP.encode(Refused(0, error))):
        case Refused(_, NoRoom(shortage=shortage, code=code)):
            assert (shortage, code) == ({0: 3, 1: 2}, "other")
        case other:
            raise AssertionError(other)


def test_a_wrong_value_of_any_type_travels_as_what_a_person_reads():
    error = InvalidField("a", {1, 2}, "b")
    match UP.decode(UP.encode(Refused(0, error))):
        case Refused(_, InvalidField(value=value)):
            assert value == "{1, 2}"
        case other:
            raise AssertionError(other)


NEVER = [set[int], complex, tuple[complex, ...], dict[str, complex], list[int] | list[str]]


@pytest.mark.parametrize("kind", NEVER, ids=str)
def test_a_type_that_cannot_travel_is_refused_at_once(kind):
    with pytest.raises(TypeError, match="cannot travel"):
        Codec(kind)


def test_settings_travel_with_their_paths():
    codec: Codec[EngineSettings] = Codec(EngineSettings)
    for settings in samples(EngineSettings):
        assert codec.decode(codec.encode(settings)) == settings
