"""Jinja2 for templates that come from files of strangers.

Jinja's own sandbox keeps a template away from Python's insides and from changing its arguments. It
does not bound what a template costs; here every loop item, call, filter and output expression
draws on a budget, and operations that could make something huge in one go are checked before they
run. What is left is bounded by the budget times the size of one value, not a security boundary
against memory use: templates supplied by clients stay off.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from types import BuiltinMethodType
from typing import Any, TypeVar

import jinja2
from jinja2 import nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, LoopControlExtension
from jinja2.filters import FILTERS, do_indent, do_join, do_replace
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

from tenure.core.clock import Clock

T = TypeVar("T")

# fmt: off
FILTER_NAMES = (
    "abs", "capitalize", "count", "d", "default", "dictsort", "e", "escape", "first", "float",
    "groupby", "int", "items", "last", "length", "list", "lower", "map", "max", "min", "reject",
    "rejectattr", "reverse", "round", "safe", "select", "selectattr", "sort", "title", "trim",
    "truncate", "unique", "upper", "wordcount",
)
# fmt: on
"""Jinja's filters whose result is no larger than what they are given; others are not there."""

PADDING_METHODS = frozenset(("center", "expandtabs", "ljust", "rjust", "zfill"))
HIDDEN_METHODS = frozenset(("encode", "translate"))
MAX_RANGE = 10_000
MAX_PADDING = 1024
MAX_INT_BITS = 4096
CLOCK_EVERY = 256
"""Steps between two looks at the clock."""

_WIDE_FORMAT = re.compile(r"\d{4,}|\*|\{[^{}]*\{")
"""Format strings that can pad by thousands, or by a width that is an argument."""


@dataclass(frozen=True, slots=True)
class TemplateLimits:
    """Bounds of one template and of one rendering.

    `source_chars` is the template's length; `work_chars` all text that expressions make, output
    included; `steps` loop items, calls, filters and output expressions.
    """

    source_chars: int = 131_072
    work_chars: int = 64 * 2**20
    steps: int = 4_000_000
    seconds: float = 10.0


class TemplateOverrun(Exception):
    """A rendering went past its limits."""


class TemplateComplaint(jinja2.TemplateError):
    """What a template says through `raise_exception`."""


class Budget:
    """What one rendering may still spend."""

    def __init__(self, limits: TemplateLimits, clock: Clock) -> None:
        self.limits = limits
        self._clock = clock
        self._deadline = clock.now() + limits.seconds
        self._steps = 0
        self._chars = 0

    def spend(self, chars: int = 0) -> None:
        """One step that makes `chars` characters. Raises TemplateOverrun past a limit."""
        self._steps += 1
        self._chars += chars
        if self._steps > self.limits.steps:
            raise TemplateOverrun(f"more than {self.limits.steps} steps")
        if self._chars > self.limits.work_chars:
            raise TemplateOverrun(f"more than {self.limits.work_chars} characters of text")
        if self._steps % CLOCK_EVERY == 0 and self._clock.now() > self._deadline:
            raise TemplateOverrun(f"more than {self.limits.seconds:g} s")

    def metered(self, items: Iterable[T], chars: int = 0) -> Generator[T]:
        """`items`, each of which is a step that makes `chars` characters."""
        for item in items:
            self.spend(chars)
            yield item

    def measure(self, value: object) -> None:
        """Spend what spelling `value` out will cost; shared parts count each time."""
        stack = [value]
        while stack:
            match stack.pop():
                case str(text):
                    self.spend(len(text))
                case dict() as mapping:
                    self.spend(2)
                    stack += [*mapping, *mapping.values()]
                case list() | tuple() | set() as items:
                    self.spend(2)
                    stack += items
                case _:
                    self.spend(8)


class _GenerationTag(Extension):
    """`{% generation %}` marks what an assistant said; for rendering it is nothing."""

    tags = {"generation"}  # noqa: RUF012 - jinja's own declaration

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _Guard(NodeTransformer):
    """Rewrites loops and `~` so that they go through the sandbox."""

    def visit_For(self, node: nodes.For) -> nodes.For:  # noqa: N802 - jinja calls it so
        if node.recursive:
            raise jinja2.TemplateSyntaxError("recursive loops are not supported", node.lineno)
        self.generic_visit(node)
        n_chars = sum(len(text.data) for text in node.find_all(nodes.TemplateData))
        args = [node.iter, nodes.Const(n_chars, lineno=node.lineno)]
        node.iter = _through("metered_items", args, node.lineno)
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Call:  # noqa: N802
        self.generic_visit(node)
        return _through("concatenated", node.nodes, node.lineno)


def _through(method: str, args: Sequence[nodes.Node], lineno: int) -> nodes.Call:
    target = nodes.EnvironmentAttribute(method, lineno=lineno)
    return nodes.Call(target, list(args), [], None, None, lineno=lineno)


class Sandbox(ImmutableSandboxedEnvironment):
    """One rendering's environment, with the switches that `transformers` gives chat templates."""

    intercepted_binops = frozenset(("+", "*", "**", "%"))

    def __init__(self, budget: Budget) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[LoopControlExtension, _GenerationTag],
            finalize=self._spelt,
            cache_size=0,
        )
        self._budget = budget
        plain = {name: FILTERS[name] for name in FILTER_NAMES}
        guarded: dict[str, Callable[..., Any]] = {
            "format": self._format,
            "indent": self._indent,
            "join": self._join,
            "replace": self._replace,
            "string": self._spelt,
            "tojson": self._tojson,
        }
        self.filters = {name: self._metered(f) for name, f in (plain | guarded).items()}
        self.globals = {
            "dict": _new_dict,
            "namespace": jinja2.utils.Namespace,
            "raise_exception": _raise_exception,
            "range": _range,
            "strftime_now": _strftime_now,
        }

    def compiled(self, source: str) -> Any:
        """The template's code. Raises what jinja raises."""
        return self.compile(_Guard().visit(self.parse(source)))

    def rendered(self, code: Any, variables: Mapping[str, object]) -> str:
        """Run `code`. Raises TemplateOverrun, TemplateComplaint, and what jinja raises."""
        template = self.template_class.from_code(self, code, self.make_globals(None))
        parts: list[str] = []
        for part in template.generate(**variables):
            self._budget.spend(len(part))
            parts.append(part)
        return "".join(parts)

    # -- what compiled templates call

    def metered_items(self, items: Iterable[T], chars: int) -> Iterator[T]:
        """A loop's items; `chars` is the plain text in the loop's body."""
        return self._budget.metered(items, chars)

    def concatenated(self, *parts: object) -> str:
        texts = [self._spelt(part) for part in parts]
        self._budget.spend(sum(map(len, texts)))
        return "".join(texts)

    def call(__self, __context: Any, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805
        """A call in a template; named as jinja names it, so that any keyword can be passed on."""
        __self._budget.spend()
        match __obj:
            case BuiltinMethodType(__self__=str(text), __name__=name):
                args = __self._checked_args(text, name, args, kwargs)
            case _:
                pass
        result = super().call(__context, __obj, *args, **kwargs)
        __self._budget.spend(len(result) if isinstance(result, str) else 0)
        return result

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        match operator, left, right:
            case "+", str() | list() | tuple(), str() | list() | tuple():
                self._budget.spend(len(left) + len(right))
            case "*", str() | list() | tuple(), int():
                self._budget.spend(len(left) * max(right, 0))
            case "*", int(), str() | list() | tuple():
                self._budget.spend(max(left, 0) * len(right))
            case "*", int(), int():
                _check_bits(left.bit_length() + right.bit_length())
            case "**", int(), int():
                _check_bits(left.bit_length() * max(right, 0))
            case "%", str(), _:
                _check_format(left)
                self._budget.measure(right)
            case _:
                self._budget.spend()
        return super().call_binop(context, operator, left, right)

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        if isinstance(obj, str | bytes) and attr in HIDDEN_METHODS:
            return False
        return super().is_safe_attribute(obj, attr, value)

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        wrapped = super().wrap_str_format(value)
        if wrapped is not None:
            _check_format(value.__self__)
        return wrapped

    # -- text that could grow

    def _checked_args(
        self, text: str, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> tuple[Any, ...]:
        """Arguments for a method of a string, once it is known that the result is paid for."""
        match name, args:
            case "replace", (str(old), str(new), *_):
                self._check_replace(text, old, new)
            case "join", (items,):
                return (self._joinable(items, text),)
            case _ if name in PADDING_METHODS:
                _check_padding(*args, *kwargs.values())
            case _:
                pass
        return args

    def _joinable(self, items: Iterable[Any], separator: str) -> list[Any]:
        kept = list(items)
        self._budget.spend(len(separator) * len(kept))
        self._budget.measure(kept)
        return kept

    def _metered(self, run: Callable[..., Any]) -> Callable[..., Any]:
        """A filter whose result is paid for; jinja's marks on the function are kept."""

        @functools.wraps(run)
        def metered(*args: Any, **kwargs: Any) -> Any:
            result = run(*args, **kwargs)
            match result:
                case str() | list() | tuple() | dict():
                    self._budget.spend(len(result))
                case Iterator():
                    return self._budget.metered(result)
                case _:
                    self._budget.spend()
            return result

        return metered

    def _spelt(self, value: object) -> str:
        if isinstance(value, str):
            self._budget.spend(len(value))
            return value
        self._budget.measure(value)
        return str(value)

    def _format(self, text: object, *args: object, **kwargs: object) -> str:
        spelt = self._spelt(text)
        _check_format(spelt)
        self._budget.measure([args, kwargs])
        return spelt % (kwargs or args)

    def _indent(
        self, text: str, width: int | str = 4, first: bool = False, blank: bool = False
    ) -> str:
        n = len(width) if isinstance(width, str) else width
        _check_padding(n)
        spelt = self._spelt(text)
        self._budget.spend(len(spelt) + n * (spelt.count("\n") + 1))
        return do_indent(spelt, width, first, blank)

    def _join(self, items: Iterable[Any], separator: str = "", attribute: Any = None) -> str:
        kept = self._joinable(items, separator)
        return str(do_join(nodes.EvalContext(self), kept, separator, attribute))

    def _replace(self, text: str, old: str, new: str, count: int | None = None) -> str:
        spelt = self._spelt(text)
        self._check_replace(spelt, str(old), str(new))
        return do_replace(nodes.EvalContext(self), spelt, str(old), str(new), count)

    def _check_replace(self, text: str, old: str, new: str) -> None:
        self._budget.spend(len(text) + text.count(old) * len(new))

    def _tojson(
        self,
        value: object,
        ensure_ascii: bool = False,
        indent: int | str | None = None,
        separators: tuple[str, str] | None = None,
        sort_keys: bool = False,
    ) -> str:
        """JSON as it is, without HTML escapes."""
        self._budget.measure(value)
        self._budget.measure(separators)
        _check_padding(len(indent) if isinstance(indent, str) else indent)
        return json.dumps(
            value,
            ensure_ascii=ensure_ascii,
            indent=indent,
            separators=separators,
            sort_keys=sort_keys,
        )


def _new_dict(*args: Any, **kwargs: Any) -> dict[Any, Any]:
    """`dict` as a function: the type itself is not for templates."""
    return dict(*args, **kwargs)


def _raise_exception(message: object) -> None:
    raise TemplateComplaint(str(message)[:2000])


def _strftime_now(pattern: str) -> str:
    _check_format(pattern)
    return datetime.now().strftime(pattern[:256])


def _range(*args: int) -> range:
    numbers = range(*args)
    if len(numbers) > MAX_RANGE:
        raise TemplateOverrun(f"a range of {len(numbers)} numbers (at most {MAX_RANGE})")
    return numbers


def _check_format(text: str) -> None:
    if _WIDE_FORMAT.search(text):
        raise SecurityError("a format string with a width of four digits or more, or a nested one")


def _check_padding(*widths: object) -> None:
    if any(isinstance(width, int) and width > MAX_PADDING for width in widths):
        raise SecurityError(f"padding by more than {MAX_PADDING} characters")


def _check_bits(n_bits: int) -> None:
    if n_bits > MAX_INT_BITS:
        raise SecurityError(f"an integer of more than {MAX_INT_BITS} bits")
