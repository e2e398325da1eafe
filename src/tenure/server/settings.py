"""What the HTTP server is told on start."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tenure.server.limits import Limits


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """`shown` is what `/server_info` tells of the start settings; it must hold no secret.

    `tool_call_parser` names the format of tool calls in the model's output; None takes the one that
    its chat template shows.
    """

    limits: Limits = field(default_factory=Limits)
    shown: Mapping[str, object] = field(default_factory=dict[str, object])
    tool_call_parser: str | None = None
