"""Templates that mean harm, or only go on too long."""

from __future__ import annotations

import pytest

from tenure.core.clock import ManualClock
from tenure.core.errors import InvalidField, ModelError
from tenure.model.chat_template import ChatTemplate
from tenure.model.template_sandbox import TemplateLimits

LIMITS = TemplateLimits(work_chars=100_000, steps=20_000, seconds=1e9)


def render(source: str, limits: TemplateLimits = LIMITS) -> str:
    return ChatTemplate(source, {}, limits, ManualClock()).render([{"role": "user", "content": ""}])


def grown(start: str, step: str) -> str:
    """A template that makes `n.s` larger in each of 99 rounds."""
    loop = "{% for a in range(99) %}{% set n.s = " + step + " %}{% endfor %}"
    return "{% set n = namespace(s=" + start + ") %}" + loop


def loops(body: str, depth: int = 1) -> str:
    return "{% for a in range(9999) %}" * depth + body + "{% endfor %}" * depth


@pytest.mark.parametrize(
    "source",
    [
        loops("x", depth=2),
        loops("{% set c = a %}", depth=2),
        "{% set s %}" + loops("x" * 1000) + "{% endset %}",
        "{% macro m() %}" + loops("x" * 1000) + "{% endmacro %}{{ m() | length }}",
        "{% macro f(n) %}{% if n %}{{ f(n-1) }}{{ f(n-1) }}{% endif %}{% endmacro %}{{ f(60) }}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        grown("'x'", "n.s + n.s"),
        grown("'x'", "n.s ~ n.s"),
        grown("'xx'", "n.s.replace('x', n.s)"),
        grown("'xx'", "n.s | replace('x', n.s)"),
        grown("'xx'", "[n.s, n.s] | join(n.s)"),
        grown("'xx'", "n.s.join([n.s, n.s])"),
        grown("[1]", "n.s + n.s"),
        grown("[1]", "[n.s, n.s]") + "{{ n.s | tojson }}",
        grown("[1]", "[n.s, n.s]") + "{{ n.s }}",
        grown("[1]", "[n.s, n.s]") + "{{ '%s' % [n.s] }}",
        "{{ 'x' * 999999999 }}",
        "{{ 999999999 * [1] }}",
        "{{ range(9999999) | length }}",
        "{{ range(9999) | map('string') | map('replace', '', 'x' * 99) | list | length }}",
    ],
)
def test_a_template_that_goes_on_is_stopped(source: str) -> None:
    with pytest.raises(InvalidField, match="messages must be what the chat template can render"):
        render(source)


@pytest.mark.parametrize(
    "source",
    [
        "{{ 'x'.ljust(999999999) }}",
        "{{ 'x'.expandtabs(tabsize=999999999) }}",
        "{% set w = 999999999 %}{{ 'x' | indent(w, first=True) }}",
        "{{ 'a\nb' | indent(999999999) }}",
        "{% set w = '%999999999d' %}{{ w % 1 }}",
        "{% set w = '%*d' %}{{ w % (999999999, 1) }}",
        "{% set w = '%999999999d' %}{{ w | format(1) }}",
        "{{ '{:999999999}'.format(1) }}",
        "{{ '{:{}}'.format(1, 999999999) }}",
        "{{ strftime_now('%999999999d') }}",
        "{% set w = 999999999 %}{{ [1] | tojson(indent=w) }}",
        "{% set b = 9 %}{{ b ** 99999 }}",
        grown("9", "n.s * n.s"),
        "{{ ''.__class__.__mro__ }}",
        "{{ messages.append(1) }}",
        "{{ 'x'.translate({120: 'x' * 9999}) }}",
    ],
)
def test_a_template_that_oversteps_is_refused(source: str) -> None:
    with pytest.raises(ModelError, match="the chat template is not"):
        render(source)


class _FastClock(ManualClock):
    """Each look at it takes a second."""

    def now(self) -> float:
        self.advance(1.0)
        return super().now()


def test_the_wall_clock_stops_a_template_too() -> None:
    limits = TemplateLimits(seconds=5.0)
    source = "{% for a in range(9999) %}{% set b = a %}{% endfor %}"
    with pytest.raises(InvalidField, match="more than 5 s"):
        ChatTemplate(source, {}, limits, _FastClock()).render([])


def test_what_a_rendering_spent_is_not_held_against_the_next() -> None:
    template = ChatTemplate("{% for a in range(9000) %}x{% endfor %}", {}, LIMITS, ManualClock())
    for _ in range(5):
        assert len(template.render([])) == 9000


def test_missing_helpers_of_jinja_are_missing_here() -> None:
    with pytest.raises(ModelError, match="No filter named 'xmlattr'"):
        ChatTemplate("{{ {} | xmlattr }}", {})
    with pytest.raises(InvalidField, match="'lipsum' is undefined"):
        render("{{ lipsum(n=99999) }}")
