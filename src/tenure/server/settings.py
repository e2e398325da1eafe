"""What the HTTP server is told on start."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tenure.core.errors import ConfigError
from tenure.server.limits import Limits


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """`api_key` None lets everybody in. `shown` is what `/server_info` tells of the start settings;

    it must hold no secret. `tool_call_parser` names the format of tool calls in the model's output;
    None takes the one that its chat template shows.
    """

    api_key: str | None = field(default=None, repr=False)
    limits: Limits = field(default_factory=Limits)
    shown: Mapping[str, object] = field(default_factory=dict[str, object])
    tool_call_parser: str | None = None

    def __post_init__(self) -> None:
        """Raises ConfigError for a key that no client could send."""
        key = self.api_key
        if key is not None and (not key or not key.isascii() or not key.isprintable()):
            raise ConfigError(
                "api_key must be printable ASCII and not empty; leave it out for none"
            )
        if key is not None and key != key.strip():
            raise ConfigError("api_key must not begin or end with a space: headers lose it")
