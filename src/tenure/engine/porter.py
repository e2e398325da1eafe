"""Sessions and their KV on their way out of an engine and into it, in the engine's thread."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from tenure.core.errors import BadArchive, JournalFailed
from tenure.core.plan import Plan, StepRunner
from tenure.core.tenant import EVERYBODY, Tenant
from tenure.core.tokens import EMPTY, TokenLog
from tenure.core.transfer import KvPart, KvRun, KvSpot, SessionImage, TurnImage
from tenure.engine.limits import EngineLimits
from tenure.engine.messages import GetImage, Port, ReadKv, TakeIn, WriteKv
from tenure.engine.place import KvBytes, place
from tenure.engine.transport import Answer
from tenure.kv.manager import KvCache
from tenure.session.journal import Done, Journal, RestoredTurn, TurnRecord
from tenure.session.session import Session
from tenure.session.store import SessionStore, restored_turn
from tenure.session.turns import DoneTurn, RunningTurn, Turn


@dataclass(frozen=True, slots=True, eq=False)
class PorterParts:
    """What a porter reads and writes; `fingerprint` is the model's."""

    kv: KvCache
    kv_bytes: KvBytes
    runner: StepRunner
    sessions: SessionStore
    journal: Journal
    limits: EngineLimits
    fingerprint: str


class Porter:
    """Makes images of sessions, and sessions of images; copies KV out of the tree and into it.

    KV is looked for in the tenant's common namespace; a turn that asks for another leaves none.
    """

    def __init__(self, parts: PorterParts) -> None:
        self._parts = parts
        self._held = parts.kv_bytes

    def serve(self, message: Port, answer: Answer, tenant: Tenant) -> None:
        """Do what a message of the outside asks for. Raises what the verbs raise."""
        match message:
            case GetImage(session):
                answer(self.image(session, tenant))
            case TakeIn(image):
                self.take_in(image, lambda error: answer(error or image.options.id), tenant)
            case ReadKv(spot):
                answer(self.read(spot, tenant))
            case WriteKv(session, turn, part):
                answer(self.write(session, turn, part, tenant))

    # -- out

    def image(self, session_id: str, tenant: Tenant = EVERYBODY) -> SessionImage:
        """The done turns of a session. Raises SessionNotFound or SessionExpired."""
        session = self._parts.sessions.get(session_id, tenant.name)
        turns = [_image(session, turn) for turn in session.turns if _is_done(turn)]
        return SessionImage(session.options, session.tip, tuple(turns), self._parts.fingerprint)

    def read(self, spot: KvSpot, tenant: Tenant = EVERYBODY) -> KvPart:
        """Pages that are in memory. Raises SessionNotFound, SessionExpired or UnknownTurn."""
        kv, size = self._parts.kv, self._parts.kv.spec.page_size
        session = self._parts.sessions.get(spot.session, tenant.name)
        log = _log(session.turns.get(spot.turn))
        at = tenant.namespace(session.options.namespace)
        rows = kv.stored(at, log.read(0, len(log) // size * size))
        total = len(rows[0])
        if spot.start >= total:
            return KvPart(self._held.page_format, spot.start, spot.start, total, ())
        # What a copy has yet to bring into a page is not in it.
        if copies := kv.drain_copies():
            self._parts.runner.execute(Plan((), copies))
        kv.step_done()
        end = min(total, spot.start + max(1, spot.n_bytes // max(1, sum(self._held.page_bytes))))
        runs: list[KvRun] = []
        for group, (row, absent) in enumerate(zip(rows, kv.absent(0, total), strict=True)):
            at = range(max(spot.start, absent.start), max(end, absent.start))
            at = at if at.start < at.stop else range(end, end)
            wanted = row[at.start : at.stop]
            data = bytes(self._held.io.read_pages(group, wanted)) if wanted else b""
            runs.append(KvRun(at.start, len(wanted), data))
        return KvPart(self._held.page_format, spot.start, end, total, tuple(runs))

    # -- in

    def take_in(self, image: SessionImage, done: Done, tenant: Tenant = EVERYBODY) -> None:
        """Open a session with all its turns; `done` learns whether it would survive a restart.

        Raises BadArchive, SessionExists, Overloaded or JournalFailed, and has changed nothing then.
        """
        self._check(image)
        parts = self._parts
        parts.journal.check()
        session = parts.sessions.open(image.options, tenant=tenant)
        opened = parts.sessions.record(session)
        errors: list[JournalFailed] = []
        parts.journal.write(opened, partial(_note, errors))
        known: dict[str | None, tuple[int | None, TokenLog]] = {None: (None, EMPTY)}
        for turn in image.turns:
            before, history = known[turn.parent]
            record = TurnRecord(
                generation=session.generation,
                serial=parts.sessions.next_serial(),
                id=turn.id,
                parent=turn.parent,
                before=before if turn.n_inherited else None,
                n_inherited=turn.n_inherited,
                new=turn.new,
                output=turn.output,
                ended_at=opened.opened_at,
                namespace=session.options.namespace,
            )
            done_turn = restored_turn(RestoredTurn(record, None, gone=False), history)
            known[turn.id] = record.serial, done_turn.log
            session.restore(done_turn)
            parts.journal.write(record, partial(_note, errors))
        session.point_to(image.tip)
        parts.journal.after(partial(self._taken_in, session, errors, done))

    def _taken_in(
        self,
        session: Session,
        errors: list[JournalFailed],
        done: Done,
        error: JournalFailed | None,
    ) -> None:
        failed = error or next(iter(errors), None)
        if failed is not None:
            self._parts.sessions.discard(session)
        done(failed)

    def _check(self, image: SessionImage) -> None:
        if image.fingerprint != self._parts.fingerprint:
            raise BadArchive(
                f"it is of another model (fingerprint {image.fingerprint}), whose token ids mean "
                f"something else here ({self._parts.fingerprint})"
            )
        lengths: dict[str | None, int] = {None: 0}
        for turn in image.turns:
            self._parts.limits.check_ids(turn.new)
            self._parts.limits.check_ids(turn.output)
            before = lengths.get(turn.parent, -1)
            if turn.id in lengths or not 0 <= turn.n_inherited <= before:
                raise BadArchive(f"turn {turn.id!r} does not fit the turn before it")
            lengths[turn.id] = turn.n_inherited + len(turn.new) + len(turn.output)
        if image.tip not in lengths or (image.tip is None and image.turns):
            raise BadArchive("it lacks the turn that ended last")

    def write(self, session_id: str, turn_id: str, part: KvPart, tenant: Tenant = EVERYBODY) -> int:
        """Put pages of a turn's history into the tree; how many tokens that spares.

        0 where they were computed otherwise, or there is no room. Raises as `read` does.
        """
        kv, size = self._parts.kv, self._parts.kv.spec.page_size
        session = self._parts.sessions.get(session_id, tenant.name)
        log = _log(session.turns.get(turn_id))
        if part.page_format != self._held.page_format or not self._fits(part, len(log)):
            return 0
        found = {
            (group, run.first + i): memoryview(run.data)[i * n_bytes : (i + 1) * n_bytes]
            for group, (run, n_bytes) in enumerate(
                zip(part.runs, self._held.page_bytes, strict=True)
            )
            for i in range(run.n_pages)
        }
        tokens = log.read(0, part.end * size)
        at, span = tenant.namespace(session.options.namespace), (part.start, part.end)
        placed = place(kv, self._held.io, at, tokens, span, found)
        return 0 if placed is None else len(placed) * size

    def _fits(self, part: KvPart, n_tokens: int) -> bool:
        """Whether the part has every page that placing it would read, each of its size."""
        if not 0 <= part.start < part.end <= n_tokens // self._parts.kv.spec.page_size:
            return False
        absent = self._parts.kv.absent(part.start, part.end)
        sizes = self._held.page_bytes
        return len(part.runs) == len(sizes) and all(
            run.first <= at.start
            and at.stop <= run.first + run.n_pages
            and len(run.data) == run.n_pages * n_bytes
            for run, at, n_bytes in zip(part.runs, absent, sizes, strict=True)
        )


def _note(errors: list[JournalFailed], error: JournalFailed | None) -> None:
    if error is not None:
        errors.append(error)


def _is_done(turn: Turn) -> bool:
    match turn:
        case DoneTurn():
            return True
        case RunningTurn():
            return False


def _log(turn: Turn) -> TokenLog:
    match turn:
        case DoneTurn(log=log):
            return log
        case RunningTurn(prompt=prompt):
            return prompt


def _image(session: Session, turn: Turn) -> TurnImage:
    log, n_prompt = _log(turn), len(turn.prompt)
    history = EMPTY if turn.parent is None else _log(session.turns.get(turn.parent))
    n = turn.prompt.n_shared(history)
    new, output = turn.prompt.read(n, n_prompt), log.read(n_prompt, len(log))
    return TurnImage(turn.id, turn.parent, n, new, output)
