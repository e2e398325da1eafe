"""Keeps values for the outside, bounded and in the journal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable

from tenure.core.kept import Kept
from tenure.core.tenant import Tenant
from tenure.engine.messages import Forget, GetKept, Keep, Keeps
from tenure.engine.transport import Answer
from tenure.session.journal import Done, Journal, KeptGone, KeptRecord, ignore

MAX_BYTES = 256 * 2**20
"""Kept in all; of the tenant that has the most, what was used least recently goes first."""

CloseSession = Callable[[str, str], None]
"""Closes a session, by tenant and id; it may be gone."""


class Keeping:
    """Values by tenant and name.

    Invariants: `_n_bytes[t]` is the sum over the values of tenant `t`, and all of them together are
    at most `max_bytes` after each verb, unless one value alone is larger; `_n_holders[t, s] > 0`
    counts the values that name session `s`. The journal's records are in the order of the verbs.
    """

    def __init__(self, journal: Journal, close: CloseSession, max_bytes: int = MAX_BYTES) -> None:
        self._journal = journal
        self._close = close
        self._max_bytes = max_bytes
        self._values: dict[str, dict[str, Kept]] = {}
        self._n_bytes: Counter[str] = Counter()
        self._n_holders: Counter[tuple[str, str]] = Counter()

    def restore(self, records: Iterable[KeptRecord]) -> None:
        """Take in what a journal kept, in the order in which it was written; once, at start."""
        for record in records:
            self._add(record.tenant, Kept(record.name, record.value, record.session))

    @property
    def n_values(self) -> int:
        return sum(map(len, self._values.values()))

    @property
    def size_bytes(self) -> int:
        return self._n_bytes.total()

    def get(self, tenant: str, name: str) -> Kept | None:
        """A value, which is from now on the one used last."""
        values = self._values.get(tenant, {})
        kept = values.pop(name, None)
        if kept is not None:
            values[name] = kept
        return kept

    def serve(self, message: Keeps, answer: Answer, tenant: Tenant) -> None:
        """Do what a message of the outside asks for. Raises JournalFailed."""
        match message:
            case Keep(kept):
                self._journal.check()
                self.put(tenant.name, kept, answer)
            case GetKept(name):
                answer(self.get(tenant.name, name))
            case Forget(name):
                self.remove(tenant.name, name, lambda _: answer(None))

    def put(self, tenant: str, kept: Kept, done: Done = ignore) -> None:
        """Keep a value, in place of one of the same name; `done` learns whether it is durable.

        One that is not is here until a restart brings back what was there before.
        """
        record = KeptRecord(tenant, kept.name, kept.value, kept.session)
        self._journal.write(record, done)
        self._add(tenant, kept)
        while self.size_bytes > self._max_bytes and self.n_values > 1:
            fullest = max(self._n_bytes, key=lambda name: (self._n_bytes[name], name))
            self.remove(fullest, next(iter(self._values[fullest])))

    def remove(self, tenant: str, name: str, done: Done = ignore) -> None:
        """Let a value go; an unknown name is none."""
        if self._let_go(tenant, name):
            self._journal.write(KeptGone(tenant, name), done)
        else:
            self._journal.after(done)

    # -- inside

    def _add(self, tenant: str, kept: Kept) -> None:
        if kept.session is not None:
            self._n_holders[tenant, kept.session] += 1
        self._let_go(tenant, kept.name)
        self._values.setdefault(tenant, {})[kept.name] = kept
        self._n_bytes[tenant] += kept.size_bytes

    def _let_go(self, tenant: str, name: str) -> bool:
        kept = self._values.get(tenant, {}).pop(name, None)
        if kept is None:
            return False
        self._n_bytes[tenant] -= kept.size_bytes
        if not self._values[tenant]:
            del self._values[tenant], self._n_bytes[tenant]
        if kept.session is not None:
            self._release(tenant, kept.session)
        return True

    def _release(self, tenant: str, session: str) -> None:
        self._n_holders[tenant, session] -= 1
        if not self._n_holders[tenant, session]:
            del self._n_holders[tenant, session]
            self._close(tenant, session)
