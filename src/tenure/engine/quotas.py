"""What each tenant uses of the engine, held against its limits."""

from __future__ import annotations

from dataclasses import dataclass

from tenure.core.tenant import LimitReached, OverLimit, Tenant
from tenure.sched.request import RequestSpec


@dataclass(slots=True)
class Use:
    """What one tenant has in flight: turns, and tokens that their KV may come to."""

    n_turns: int = 0
    n_tokens: int = 0
    n_refused: int = 0


class Quotas:
    """Counts turns in flight by tenant.

    Invariant: a turn is counted from `began` to `ended`, with its prompt and the most that it may
    still produce, so what runs can grow into no more than what was counted.
    """

    def __init__(self) -> None:
        self._of: dict[str, Use] = {}

    def of(self, tenant: str) -> Use:
        """What a tenant uses; not to be changed."""
        return self._of.get(tenant, Use())

    @property
    def tenants(self) -> tuple[str, ...]:
        """Every tenant that ever had a turn."""
        return tuple(self._of)

    def max_len(self, tenant: Tenant, n_prompt: int, most: int) -> int:
        """The longest that a context of this tenant may become, at most `most` tokens.

        Raises OverLimit where a limit of its own leaves no token for an answer.
        """
        limits = tenant.limits
        for name, limit in (("max_tokens", limits.max_tokens), ("kv_tokens", limits.kv_tokens)):
            if limit is not None and n_prompt >= limit:
                raise OverLimit(name, n_prompt + 1, limit, "tokens of one context")
        given = [limit for limit in (limits.max_tokens, limits.kv_tokens) if limit is not None]
        return min(most, *given) if given else most

    def check(self, spec: RequestSpec, n_waiting: int, max_queue: int) -> None:
        """Raises LimitReached where the tenant may not have one more turn like this in flight.

        `n_waiting` of its turns stand in a queue of `max_queue`.
        """
        limits = spec.tenant.limits
        use = self.of(spec.tenant.name)
        if limits.turns_at_once is not None and use.n_turns >= limits.turns_at_once:
            self._refuse(spec.tenant, "turns_at_once", use.n_turns, limits.turns_at_once, "turns")
        if limits.queue_share is not None:
            most = max(1, int(limits.queue_share * max_queue))
            if n_waiting >= most:
                self._refuse(spec.tenant, "queue_share", n_waiting, most, "waiting turns")
        if limits.kv_tokens is not None and use.n_tokens + _size(spec) > limits.kv_tokens:
            self._refuse(spec.tenant, "kv_tokens", use.n_tokens, limits.kv_tokens, "KV tokens")

    def began(self, spec: RequestSpec) -> None:
        use = self._of.setdefault(spec.tenant.name, Use())
        use.n_turns += 1
        use.n_tokens += _size(spec)

    def ended(self, spec: RequestSpec) -> None:
        use = self._of[spec.tenant.name]
        use.n_turns -= 1
        use.n_tokens -= _size(spec)

    def _refuse(self, tenant: Tenant, name: str, used: int, limit: int, what: str) -> None:
        self._of.setdefault(tenant.name, Use()).n_refused += 1
        raise LimitReached(name, used, limit, what)


def _size(spec: RequestSpec) -> int:
    """Tokens of KV that a turn comes to at most."""
    n_prompt = len(spec.prompt)
    return n_prompt + min(spec.turn.params.max_new_tokens, spec.max_len - n_prompt)
