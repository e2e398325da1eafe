"""Who a session or a turn belongs to, and how much of the engine they may use."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from tenure.core.errors import ConfigError, Overloaded, UserError

NAME_MAX_CHARS = 64
SEPARATOR = "\x1f"
"""Never part of a tenant's name, which is printable."""


@dataclass(frozen=True, slots=True)
class TenantLimits:
    """What one tenant may use at once; None is no limit of its own.

    `sessions` bounds its open sessions, `turns_at_once` its turns in flight, and `queue_share` the
    part of the queue that its waiting turns may take, in (0, 1]. `kv_tokens` bounds the KV of its
    turns in flight, each counted with all that it may still produce, and of its idle sessions,
    which are demoted to keep to it; `max_tokens` one context, its output included. Construction
    raises ConfigError.
    """

    sessions: int | None = None
    turns_at_once: int | None = None
    queue_share: float | None = None
    kv_tokens: int | None = None
    max_tokens: int | None = None

    def __post_init__(self) -> None:
        counts = {
            "sessions": self.sessions,
            "turns_at_once": self.turns_at_once,
            "kv_tokens": self.kv_tokens,
            "max_tokens": self.max_tokens,
        }
        for name, value in counts.items():
            if value is not None and value < 1:
                raise ConfigError(f"{name} must be at least 1, got {value}")
        if self.queue_share is not None and not 0.0 < self.queue_share <= 1.0:
            raise ConfigError(f"queue_share must be in (0, 1], got {self.queue_share}")


NO_LIMITS = TenantLimits()


@dataclass(frozen=True, slots=True)
class Tenant:
    """Whoever holds one of the same set of API keys; named "" where nobody is told apart.

    A tenant's session ids, turn ids, tags and namespaces are its own: the same id of another tenant
    is another thing. With `shares_kv` its prompts may reuse KV that those of other such tenants
    left in the prefix tree; nothing else is shared. Construction raises ConfigError.
    """

    name: str = ""
    limits: TenantLimits = NO_LIMITS
    shares_kv: bool = False

    def __post_init__(self) -> None:
        if len(self.name) > NAME_MAX_CHARS or not self.name.isprintable():
            raise ConfigError(
                f"a tenant's name must be at most {NAME_MAX_CHARS} printable characters, "
                f"got {self.name[: 2 * NAME_MAX_CHARS]!r}"
            )

    def namespace(self, name: str) -> str:
        """Where KV is looked up that a turn of this tenant asks for in namespace `name`."""
        return name if self.shares_kv else owned(self.name, name)


EVERYBODY = Tenant()

TenantNow: TypeAlias = Callable[[], Tenant]
"""A tenant with the limits that hold now; they may change while the server runs."""


def owned(tenant: str, name: str) -> str:
    """A name that is the tenant's own; no two pairs give the same, whatever `name` is.

    Example: ("", "a") is "a", and ("acme", "a") is "acme\\x1fa".
    """
    return f"{tenant}{SEPARATOR}{name}" if tenant or SEPARATOR in name else name


def split_owned(key: str) -> tuple[str, str]:
    """The inverse of `owned`: (tenant, name)."""
    tenant, separator, name = key.partition(SEPARATOR)
    return (tenant, name) if separator else ("", key)


class OverLimit(UserError):
    """More than a limit of the caller's own ever allows; waiting does not help."""

    code = "over_limit"

    def __init__(self, limit_name: str, wanted: int, limit: int, what: str) -> None:
        super().__init__(f"{limit_name} allows {limit} {what}, and this needs {wanted}.")
        self.limit_name = limit_name
        self.wanted = wanted
        self.limit = limit


class LimitReached(Overloaded):
    """A limit of the caller's own is used up for now; nothing was changed."""

    code = "limit_reached"

    def __init__(self, limit_name: str, used: int, limit: int, what: str) -> None:
        super().__init__(
            f"{limit_name} allows {limit} {what}, and {used} are in use; try again later",
            retry_after_s=1.0,
        )
        self.limit_name = limit_name
        self.used = used
        self.limit = limit
