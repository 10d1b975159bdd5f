"""Workers that do everything at random to one transport on a server, and what must hold of what they noted."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from itertools import pairwise
from random import Random
from threading import Thread
from typing import Any, NamedTuple

from sqlalchemy import URL, Engine, create_engine, make_url
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.orm import Session

from qstore import AsyncTransportRepository, Lease, StaleLease, StoreBusy, TransportRepository
from tests import postgres
from tests.awaiting import EventLoop
from tests.backends import MOUNTED
from tests.concurrency.processes import Ready

GROUPS = 8
HELD = 5
"""Leases that a worker has at most at the same time."""

STATE = """
SELECT g.group_id, m.group_id, g.head, g.tail, g.holder, g.until, m.head, m.tail, m.locked_by, m.lock_expiry, m.others
  FROM {groups} AS g FULL JOIN (
    SELECT m.group_id, min(m.seq) AS head, max(m.seq) AS tail, (array_agg(m.locked_by ORDER BY m.seq))[1] AS locked_by,
           (array_agg(m.lock_expiry ORDER BY m.seq))[1] AS lock_expiry,
           count(m.locked_by) - count((SELECT m.locked_by FROM {groups} AS h WHERE h.head = m.seq)) AS others
      FROM {messages} AS m GROUP BY m.group_id) AS m ON m.group_id = g.group_id
 WHERE (g.group_id, g.head, g.tail, g.holder, g.until) IS DISTINCT FROM
       (m.group_id, m.head, m.tail, m.locked_by, m.lock_expiry) OR m.others <> 0
    OR NOT (g.ready OR g.until IS NOT NULL)
    OR g.ready AND g.until >= date_part('epoch', clock_timestamp())
"""
"""Groups whose state differs from what their messages say, and orphans of both kinds. One snapshot."""


class Note(NamedTuple):
    """What a worker did, or is about to do. `at` and `until` are epoch seconds: the server runs on this machine."""

    what: str
    event: str = ""
    group: str = ""
    seq: int = 0
    at: float = 0
    until: float = 0


class Plan(NamedTuple):
    """What the workers of a storm do."""

    claims: int
    joining: float = 0
    """The share of operations that are callers' own transactions, four in ten of which are rolled back."""
    isolation: str | None = None
    """Of the engines; None: the database's default."""
    killed: bool = False
    """Whether sessions are ended under way."""


class Worker:
    """One thread, with a repository that others may share."""

    def __init__(self, name: str, transport: Any, engine: Engine, plan: Plan) -> None:
        self.notes: list[Note] = []
        self.claims = 0
        self._name = name
        self._transport = transport
        self._engine = engine
        self._plan = plan
        self._random = Random(name)
        self._held: list[tuple[Lease[str], float]] = []
        self._published = 0

    def run(self) -> None:
        deadline = time.monotonic() + 60
        try:
            while self.claims < self._plan.claims and time.monotonic() < deadline:
                self._step()
        except BaseException as error:
            self.notes.append(Note(f"failed: {error!r}"))
            raise
        finally:
            for lease, got in self._held:
                self._note_held(lease, got)

    def _step(self) -> None:
        random = self._random
        if random.random() < self._plan.joining:
            self._join()
        elif random.random() < 0.33:
            group, event = self._new()
            seq = self._own(lambda: self._transport.publish(group, event, random.randrange(5)))
            if seq is not None:
                self.notes.append(Note("published", event, group, seq))
        elif random.random() < 0.05:
            new = [self._new() for _ in range(random.randrange(1, 5))]
            seqs = self._own(lambda: self._transport.publish_many(new))
            for (group, event), seq in zip(new, seqs or (), strict=False):
                self.notes.append(Note("published", event, group, seq))
        elif self._held and random.random() < 0.5 + (len(self._held) >= HELD):
            self._settle(*self._held.pop(random.randrange(len(self._held))))
        else:
            visibility, floor = random.choice((0.02, 0.3, 1.0, 5.0)), random.choice((0, 0, 0, 1, 2, 4))
            lease = self._own(lambda: self._transport.claim(self._name, visibility, floor))
            if lease is not None:
                self.claims += 1
                self._held.append((lease, time.time()))

    def _settle(self, lease: Lease[str], got: float) -> None:
        self._note_held(lease, got)
        choice = self._random.random()
        began = time.time()
        try:
            if choice < 0.7:
                self.notes.append(Note("acking", lease.event))
                # The ack of a message that is gone is none: another may have claimed it again, once the lease lapsed.
                if self._own(lambda: (self._transport.ack(lease),)) and time.time() < lease.lock_expiry:
                    self.notes.append(Note("acked", lease.event, lease.group_id, lease.seq, began))
            elif choice < 0.8:
                self._own(lambda: self._transport.nack(lease))
            elif choice < 0.9:
                self._own(lambda: self._transport.nack(lease, self._random.choice((0.01, 0.05))))
            elif (extended := self._own(lambda: self._transport.extend(lease, 0.3))) is not None:
                self._held.append((extended, time.time()))
        except StaleLease:
            if time.time() < lease.lock_expiry:
                self.notes.append(Note("stale before it had lapsed", lease.event, lease.group_id, lease.seq))

    def _join(self) -> None:
        """A caller's transaction: a conflict in it is the caller's, who begins again some other time."""
        notes: list[Note] = []
        with suppress(StoreBusy, DBAPIError), Session(self._engine) as session:
            transport = TransportRepository(session, event_type=str, naming=MOUNTED)
            for _ in range(self._random.randrange(1, 4)):
                if self._random.random() < 0.5:
                    group, event = self._new()
                    notes.append(Note("published", event, group, transport.publish(group, event)))
                elif (lease := transport.claim(self._name, 5.0)) is not None:
                    self.claims += 1
                    transport.ack(lease)
                    self.notes.append(Note("acking", lease.event))
                    notes.append(Note("acked", lease.event, lease.group_id, lease.seq, time.time()))
            if self._random.random() < 0.6:
                session.commit()
                self.notes += notes

    def _own(self, call: Callable[[], Any]) -> Any:
        """A call in a transaction of qstore's own. None where it found nothing, or its connection was ended."""
        try:
            return call()
        except StoreBusy as error:
            self.notes.append(Note(f"surfaced: {error}"))
        except DBAPIError as error:
            if not (self._plan.killed and error.connection_invalidated):
                raise
        return None

    def _new(self) -> tuple[str, str]:
        self._published += 1
        group, event = f"g{self._random.randrange(GROUPS)}", f"{self._name} {self._published}"
        self.notes.append(Note("publishing", event, group))
        return group, event

    def _note_held(self, lease: Lease[str], got: float) -> None:
        until = min(time.time(), lease.lock_expiry)
        self.notes.append(Note("held", lease.event, lease.group_id, lease.seq, got, until))


def storm(ready: Ready, url: str, name: str, threads: int, plan: Plan) -> list[Note]:
    """Run so many workers, on two sync engines and an async one. Returns what they noted."""
    with ExitStack() as stack:
        engines = [create_engine(url, **_arguments(plan)) for _ in range(2)]
        for engine in engines:
            stack.callback(engine.dispose)
        transports: list[Any] = [TransportRepository(each, event_type=str, naming=MOUNTED) for each in engines]
        transports.append(stack.enter_context(_through_asyncpg(make_url(url), plan)))
        workers = [Worker(f"{name}.{n}", transports[n % 3], engines[n % 2], plan) for n in range(threads)]
        running = [Thread(target=worker.run) for worker in workers]
        ready()
        for thread in running:
            thread.start()
        for thread in running:
            thread.join(100)
        return [note for worker in workers for note in worker.notes]


@contextmanager
def _through_asyncpg(url: URL, plan: Plan) -> Iterator[Any]:
    loop = EventLoop()
    engine = create_async_engine(url.set(drivername="postgresql+asyncpg"), **_arguments(plan))
    try:
        yield loop.sync(AsyncTransportRepository(engine, event_type=str, naming=MOUNTED))
    finally:
        loop.run(engine.dispose())
        loop.close()


def _arguments(plan: Plan) -> dict[str, Any]:
    return {} if plan.isolation is None else {"isolation_level": plan.isolation}


def wrong_states(url: URL) -> list[Any]:
    """Groups whose state is not what their messages say."""
    with postgres.connect(url) as connection:
        connection.execute("SET default_transaction_isolation = 'read committed'")
        return connection.execute(MOUNTED.of("transport").render(STATE).encode()).fetchall()


def drained(url: URL) -> list[Note]:
    """Claim and ack all that is left, once what is leased or parked has lapsed."""
    notes: list[Note] = []
    engine = create_engine(url)
    transport = TransportRepository(engine, event_type=str, naming=MOUNTED)
    deadline = time.monotonic() + 20
    while _left(url) != (0, 0) and time.monotonic() < deadline:
        while (lease := transport.claim("drain", 60)) is not None:
            transport.ack(lease)
            notes.append(Note("acked", lease.event, lease.group_id, lease.seq, time.time()))
        time.sleep(0.02)
    engine.dispose()
    if (left := _left(url)) != (0, 0):
        notes.append(Note(f"left: {left[0]} groups, {left[1]} messages"))
    return notes


def _left(url: URL) -> Any:
    tables = MOUNTED.of("transport").render("SELECT (SELECT count(*) FROM {groups}), (SELECT count(*) FROM {messages})")
    with postgres.connect(url) as connection:
        return connection.execute(tables.encode()).fetchone()


def faults(notes: list[Note]) -> Counter[str]:
    """What must not be, by kind: an empty one if all is well."""
    found = Counter(note.what for note in notes if note.what.startswith(("failed", "surfaced", "stale", "left")))
    acked = Counter(note.event for note in notes if note.what == "acked")
    published = {note.event for note in notes if note.what == "published"}
    begun = {note.event for note in notes if note.what == "publishing"}
    unsure = {note.event for note in notes if note.what == "acking"}
    found["lost"] = len(published - acked.keys() - unsure)
    found["acked twice"] = sum(number > 1 for number in acked.values())
    found["out of nothing"] = len(acked.keys() - begun)
    found["a seq twice"] = len(published) - len({note.seq for note in notes if note.what == "published"})
    for held in _by_group(notes, "held"):
        found["two in flight"] += sum(
            later.at < earlier.until for earlier, later in pairwise(held) if later.seq != earlier.seq
        )
    for done in _by_group(notes, "acked"):
        found["out of order"] += sum(later.seq < earlier.seq for earlier, later in pairwise(done))
    return +found


def _by_group(notes: list[Note], what: str) -> list[list[Note]]:
    groups = defaultdict(list)
    for note in notes:
        if note.what == what:
            groups[note.group].append(note)
    return [sorted(group, key=lambda note: note.at) for group in groups.values()]
