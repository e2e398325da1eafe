"""The server against its own OpenAPI document."""

from __future__ import annotations

import asyncio
import re

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis.checks import not_a_server_error
from schemathesis.generation import GenerationMode
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from tenure.core.clock import MonotonicClock
from tenure.engine.wire import launch
from tenure.server.app import create_app
from tenure.server.limits import Limits
from tenure.server.settings import ServerSettings
from tenure.testing.fake_runner import FakeRunner
from tenure.testing.harness import FakeSetup

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
]


@pytest.fixture
def app():
    setup = FakeSetup(context_len=512)
    engine = launch(setup.wiring(FakeRunner(setup.kv_spec(), setup.model), MonotonicClock()))
    yield create_app(engine, ServerSettings(limits=Limits(max_batch=8)))
    asyncio.run(engine.close())


def test_no_answer_is_a_failure_or_undocumented(app, subtests):
    schema = schemathesis.openapi.from_asgi("/openapi.json", app)
    # The events of sessions have no end; they have tests of their own.
    ending = schema.exclude(path="/v1/sessions/events")
    operations = [found.ok() for found in ending.get_all_operations()]
    assert len(operations) >= 32
    for operation in operations:
        with subtests.test(operation=operation.label):

            @given(case=operation.as_strategy() | operation.as_strategy(GenerationMode.NEGATIVE))
            @settings(
                max_examples=40,
                derandomize=True,
                deadline=None,
                database=None,
                suppress_health_check=list(HealthCheck),
            )
            def conforms(case):
                case.call_and_validate(checks=CHECKS)

            conforms()


async def test_the_document_names_only_answers_that_happen(served):
    document = (await served.http.get("/openapi.json")).json()
    for path, methods in document["paths"].items():
        for operation in methods.values():
            assert operation["responses"].keys() >= {"200", "400", "401", "413", "500", "503"}, path
            assert "422" not in operation["responses"]
    ids = [op["operationId"] for methods in document["paths"].values() for op in methods.values()]
    assert len(set(ids)) == len(ids)


async def test_the_page_needs_nothing_from_elsewhere(served):
    page = (await served.http.get("/docs")).text
    assert "/generate" in page
    assert not re.search(r"https?://|//cdn|<script", page)
