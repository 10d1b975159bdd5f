"""Workers that do everything at random to one transport on a server, and note it down."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from random import Random
from threading import Thread
from typing import Any, NamedTuple, Protocol

from sqlalchemy import URL, Engine, create_engine, make_url
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.orm import Session

from qstore import AsyncTransportRepository, Lease, StaleLease, StoreBusy, TransportRepository
from tests import postgres
from tests.awaiting import EventLoop
from tests.backends import MOUNTED
from tests.concurrency.postgres_account import Note
from tests.concurrency.processes import Ready

HELD = 5
"""Leases that a worker has at most at the same time."""


class Notes(Protocol):
    """Where a worker's notes go."""

    def append(self, note: Note, /) -> object: ...

    def extend(self, notes: Iterable[Note], /) -> object: ...


class Plan(NamedTuple):
    """What the workers of a storm do."""

    claims: int
    seconds: float = 60
    """When they end in any case."""
    groups: int = 8
    publishing: float = 0.33
    """The share of operations that publish."""
    joining: float = 0
    """The share of operations that are callers' own transactions, four in ten of which are rolled back."""
    joined: int = 3
    """What such a transaction does, at most. Two that do more than one may deadlock."""
    isolation: str | None = None
    """Of the engines; None: the database's default."""
    killed: bool = False
    """Whether sessions are ended under way."""


class Worker:
    """One thread, with a repository that others may share."""

    def __init__(self, name: str, transport: Any, engine: Engine, plan: Plan, notes: Notes | None = None) -> None:
        self.notes: Any = [] if notes is None else notes
        self.claims = 0
        self._name = name
        self._transport = transport
        self._engine = engine
        self._plan = plan
        self._random = Random(name)
        self._held: list[tuple[Lease[str], float]] = []
        self._published = 0

    def run(self) -> None:
        deadline = time.monotonic() + self._plan.seconds
        try:
            while self.claims < self._plan.claims and time.monotonic() < deadline:
                self._step()
        except BaseException as error:
            self.notes.append(Note(f"failed: {error!r}"))
            raise
        finally:
            for lease, got in self._held:
                self._let_go(lease, got)

    def _step(self) -> None:
        random = self._random
        if random.random() < self._plan.joining:
            self._join()
        elif random.random() < self._plan.publishing:
            group, event = self._new()
            seq = self._own(lambda: self._transport.publish(group, event, random.randrange(5)))
            if seq is not None:
                self.notes.append(Note("published", event, group, seq, time.time()))
        elif random.random() < 0.05:
            new = [self._new() for _ in range(random.randrange(1, 5))]
            seqs = self._own(lambda: self._transport.publish_many(new))
            for (group, event), seq in zip(new, seqs or (), strict=False):
                self.notes.append(Note("published", event, group, seq, time.time()))
        elif self._held and random.random() < 0.5 + (len(self._held) >= HELD):
            self._settle(*self._held.pop(random.randrange(len(self._held))))
        else:
            visibility, floor = random.choice((0.02, 0.3, 1.0, 5.0)), random.choice((0, 0, 0, 1, 2, 4))
            lease = self._own(lambda: self._transport.claim(self._name, visibility, floor))
            if lease is not None:
                self.claims += 1
                self._hold(lease)

    def _settle(self, lease: Lease[str], got: float) -> None:
        self._let_go(lease, got)
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
                self._hold(extended)
        except StaleLease:
            if time.time() < lease.lock_expiry:
                self.notes.append(Note("stale before it had lapsed", lease.event, lease.group_id, lease.seq))

    def _join(self) -> None:
        """A caller's transaction: a conflict in it is the caller's, who begins again some other time."""
        notes: list[Note] = []
        with suppress(StoreBusy, DBAPIError), Session(self._engine) as session:
            transport = TransportRepository(session, event_type=str, naming=MOUNTED)
            for _ in range(self._random.randrange(self._plan.joined) + 1):
                if self._random.random() < 0.5:
                    group, event = self._new()
                    seq = transport.publish(group, event)
                    notes.append(Note("published", event, group, seq, time.time()))
                elif (lease := transport.claim(self._name, 5.0)) is not None:
                    self.claims += 1
                    transport.ack(lease)
                    self.notes.append(Note("acking", lease.event))
                    notes.append(Note("acked", lease.event, lease.group_id, lease.seq, time.time()))
            if self._random.random() < 0.6:
                session.commit()
                self.notes.extend(notes)

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
        group, event = f"g{self._random.randrange(self._plan.groups)}", f"{self._name} {self._published}"
        self.notes.append(Note("publishing", event, group))
        return group, event

    def _hold(self, lease: Lease[str]) -> None:
        got = time.time()
        self._held.append((lease, got))
        self.notes.append(Note("held", lease.event, lease.group_id, lease.seq, got, lease.lock_expiry))

    def _let_go(self, lease: Lease[str], got: float) -> None:
        until = min(time.time(), lease.lock_expiry)
        self.notes.append(Note("let go", lease.event, lease.group_id, lease.seq, got, until))


def storm(ready: Ready, url: str, name: str, threads: int, plan: Plan) -> list[Note]:
    """Run so many workers, on two sync engines and an async one. Returns what they noted."""
    with ExitStack() as stack:
        engines = [create_engine(url, **_arguments(plan)) for _ in range(2)]
        for engine in engines:
            stack.callback(engine.dispose)
        transports: list[Any] = [TransportRepository(each, event_type=str, naming=MOUNTED) for each in engines]
        transports.append(stack.enter_context(through_asyncpg(make_url(url), plan)))
        workers = [Worker(f"{name}.{n}", transports[n % 3], engines[n % 2], plan) for n in range(threads)]
        running = [Thread(target=worker.run) for worker in workers]
        ready()
        for thread in running:
            thread.start()
        for thread in running:
            thread.join(100)
        return [note for worker in workers for note in worker.notes]


@contextmanager
def through_asyncpg(url: URL, plan: Plan) -> Iterator[Any]:
    """A transport on an async engine, whose methods are awaited by the call itself."""
    loop = EventLoop()
    engine = create_async_engine(url.set(drivername="postgresql+asyncpg"), **_arguments(plan))
    try:
        yield loop.sync(AsyncTransportRepository(engine, event_type=str, naming=MOUNTED))
    finally:
        loop.run(engine.dispose())
        loop.close()


def _arguments(plan: Plan) -> dict[str, Any]:
    return {} if plan.isolation is None else {"isolation_level": plan.isolation}


def end_a_session(url: URL, random: Random) -> bool:
    """End a session, as an operator, a failing server or a cut link does. Whether there was one."""
    with postgres.connect(url) as connection:
        mine = "datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'"
        pids = [pid for (pid,) in connection.execute(f"SELECT pid FROM pg_stat_activity WHERE {mine}".encode())]
        if pids:
            connection.execute("SELECT pg_terminate_backend(%s)", (random.choice(pids),))
    return bool(pids)
