"""Every interface answers an error of the engine's tree with the same status."""

from __future__ import annotations

import pytest

from tenure.core.errors import JournalFailed
from tenure.server.anthropic import errors as anthropic
from tenure.server.chat.failures import failure_of
from tenure.server.errors import from_tenure
from tenure.server.native.errors import native_error
from tenure.server.openai import errors as openai

ANSWERED = {
    "sglang": from_tenure,
    "native": native_error,
    "openai": lambda error: openai.shaped(failure_of(error)),
    "anthropic": lambda error: anthropic.shaped(failure_of(error)),
}


@pytest.mark.parametrize("dialect", ANSWERED)
def test_a_journal_that_cannot_be_written_makes_the_server_unavailable(dialect):
    answer = ANSWERED[dialect](JournalFailed("the disk is full", 1.5))
    assert (answer.status, answer.headers["Retry-After"]) == (503, "2")
