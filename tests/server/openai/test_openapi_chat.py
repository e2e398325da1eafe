"""The chat interfaces, over a model that can chat, against their own OpenAPI document."""

from __future__ import annotations

import asyncio

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

from tenure.server.app import create_app
from tenure.server.limits import Limits
from tenure.server.settings import ServerSettings
from tenure.testing.chat_templates import HERMES
from tenure.testing.harness import FakeSetup, fake_client

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
]


@pytest.fixture
def app():
    engine = fake_client(FakeSetup(context_len=256, template=HERMES))
    yield create_app(engine, ServerSettings(limits=Limits(max_batch=4)))
    asyncio.run(engine.close())


@pytest.mark.slow
def test_no_answer_is_a_failure_or_undocumented(app, subtests):
    schema = schemathesis.openapi.from_asgi("/openapi.json", app).include(path_regex="^/v1/")
    operations = [found.ok() for found in schema.get_all_operations()]
    assert len(operations) >= 17
    for operation in operations:
        with subtests.test(operation=operation.label):

            @given(case=operation.as_strategy() | operation.as_strategy(GenerationMode.NEGATIVE))
            @settings(
                max_examples=25,
                derandomize=True,
                deadline=None,
                database=None,
                suppress_health_check=list(HealthCheck),
            )
            def conforms(case):
                case.call_and_validate(checks=CHECKS)

            conforms()
