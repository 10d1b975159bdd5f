"""What an await costs: publish, claim and ack of one message, on an empty store (line 4)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from typing import Any

import aiosqlite
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from qstore import AsyncTransportRepository, Event, TransportRepository
from tests.benchmarks.cycle import event_of
from tests.benchmarks.lines import Line, at_most, slower
from tests.benchmarks.measuring import Contender, Scale, interleaved
from tests.benchmarks.raw import EVENT, RawTransport
from tests.concurrency.seed import SeedTransport

__all__ = ["lines"]

Hop = Callable[..., asyncio.Future[Any]]

HOPPED = "raw sqlite3, a bare hop an operation"
INSERT = "INSERT INTO messages (group_id, event) VALUES (?, ?)"
INSERT_GROUP = "INSERT OR IGNORE INTO groups (group_id, priority) VALUES (?, ?)"
STAMP = "UPDATE groups SET last_claimed_at = ? WHERE group_id = ?"
LEASE = "UPDATE messages SET locked_by = ?, lock_expiry = ? WHERE seq = ?"
DELETE = "DELETE FROM messages WHERE seq = ?"
DELETE_GROUP = "DELETE FROM groups WHERE group_id = ? AND NOT EXISTS (SELECT 1 FROM messages WHERE group_id = ?)"


def lines(directory: Path, scale: Scale) -> Iterator[Line]:
    """The async cycle at NORMAL, where the hops weigh most."""
    raw, hopped = (RawTransport(directory / f"{name}.sqlite", "normal") for name in ("raw", "hopped"))
    event = event_of(EVENT)
    with asyncio.Runner() as runner, _thread(runner.get_loop()) as hop:
        ours = runner.run(_opened(directory / "async.sqlite"))
        sync = TransportRepository.open(directory / "sync.sqlite", durability="normal")
        driver = runner.run(_driver(directory / "aiosqlite.sqlite"))
        engine = create_async_engine(f"sqlite+aiosqlite:///{directory / 'sqlalchemy.sqlite'}")
        runner.run(_prepare(engine))

        def repeated(cycle: Callable[[], Awaitable[None]]) -> Callable[[int], None]:
            async def run(times: int) -> None:
                for _ in range(times):
                    await cycle()

            return lambda times: runner.run(run(times))

        figures = interleaved(
            {
                "raw inline sqlite3": raw.cycle,
                "async twin": repeated(lambda: _ours(ours, event)),
                "sync repository": lambda times: _sync(sync, event, times),
                HOPPED: repeated(lambda: _hopped(hop, hopped)),
                "raw aiosqlite, a hop a statement": repeated(lambda: _hops(driver)),
                "SQLAlchemy asyncio": Contender(repeated(lambda: _sqlalchemy(engine)), times=10),
            },
            scale,
            times=100,
        )
        for closing in (ours.close(), driver.close(), engine.dispose()):
            runner.run(closing)
        sync.close()
    raw.close()
    hopped.close()
    what = "publish+claim+ack, awaited, NORMAL"
    yield slower(what, figures, "async twin", "raw inline sqlite3", at_most(3.5, aim=3))
    for yardstick in ("sync repository", HOPPED, "raw aiosqlite, a hop a statement", "SQLAlchemy asyncio"):
        yield slower(what, figures, "async twin", yardstick)


async def _opened(path: Path) -> AsyncTransportRepository[Event]:
    return await AsyncTransportRepository.open(path, durability="normal")


async def _ours(transport: AsyncTransportRepository[Event], event: Event) -> None:
    await transport.publish("group", event)
    lease = await transport.claim("worker", 30)
    assert lease is not None
    await transport.ack(lease)


def _sync(transport: TransportRepository[Event], event: Event, times: int) -> None:
    for _ in range(times):
        transport.publish("group", event)
        lease = transport.claim("worker", 30)
        assert lease is not None
        transport.ack(lease)


@contextmanager
def _thread(loop: asyncio.AbstractEventLoop) -> Iterator[Hop]:
    """A thread that does what it is given, and no more than that: what a hop costs at the least."""
    calls: SimpleQueue[tuple[Callable[..., Any], tuple[Any, ...], asyncio.Future[Any]] | None] = SimpleQueue()

    def work() -> None:
        while (call := calls.get()) is not None:
            function, args, future = call
            loop.call_soon_threadsafe(future.set_result, function(*args))

    def hop(function: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:
        future = loop.create_future()
        calls.put((function, args, future))
        return future

    thread = Thread(target=work)
    thread.start()
    yield hop
    calls.put(None)
    thread.join()


async def _hopped(hop: Hop, raw: RawTransport) -> None:
    await hop(raw.publish, "group", EVENT)
    row = await hop(raw.claim, "worker", 30)
    await hop(raw.ack, *row[:2])


async def _driver(path: Path) -> aiosqlite.Connection:
    connection = await aiosqlite.connect(path, isolation_level=None)
    for statement in ("PRAGMA journal_mode=WAL", "PRAGMA synchronous=NORMAL", *SeedTransport.DDL):
        await connection.execute(statement)
    return connection


async def _hops(connection: aiosqlite.Connection) -> None:
    await connection.execute(INSERT, ("group", EVENT))
    await connection.execute(INSERT_GROUP, ("group", 0))
    await connection.execute("BEGIN IMMEDIATE")
    now = time.time()
    cursor = await connection.execute(SeedTransport.SELECT, (now, now, 0))
    row = await cursor.fetchone()
    assert row is not None
    await connection.execute(STAMP, (now, row[1]))
    await connection.execute(LEASE, ("worker", now + 30, row[0]))
    await connection.execute("COMMIT")
    await connection.execute(DELETE, (row[0],))
    await connection.execute(DELETE_GROUP, (row[1], row[1]))


async def _prepare(engine: AsyncEngine) -> None:
    async with engine.connect() as connection:
        for statement in ("PRAGMA journal_mode=WAL", "PRAGMA synchronous=NORMAL", *SeedTransport.DDL):
            await connection.exec_driver_sql(statement)
        await connection.commit()


_SELECT = text(
    SeedTransport.SELECT.replace("< ?", "< :now")
    .replace(">= ?)", ">= :now)")
    .replace("priority >= ?", "priority >= :floor")
)
_INSERT = text("INSERT INTO messages (group_id, event) VALUES (:group_id, :event)")
_INSERT_GROUP = text("INSERT OR IGNORE INTO groups (group_id, priority) VALUES (:group_id, 0)")
_STAMP = text("UPDATE groups SET last_claimed_at = :now WHERE group_id = :group_id")
_LEASE = text("UPDATE messages SET locked_by = :worker, lock_expiry = :expiry WHERE seq = :seq")
_DELETE = text("DELETE FROM messages WHERE seq = :seq")
_DELETE_GROUP = text(
    "DELETE FROM groups WHERE group_id = :group_id AND NOT EXISTS (SELECT 1 FROM messages WHERE group_id = :group_id)"
)


async def _sqlalchemy(engine: AsyncEngine) -> None:
    async with engine.begin() as connection:
        await connection.execute(_INSERT, {"group_id": "group", "event": EVENT})
        await connection.execute(_INSERT_GROUP, {"group_id": "group"})
    async with engine.begin() as connection:
        now = time.time()
        seq, group_id, _event = (await connection.execute(_SELECT, {"now": now, "floor": 0})).one()
        await connection.execute(_STAMP, {"now": now, "group_id": group_id})
        await connection.execute(_LEASE, {"worker": "worker", "expiry": now + 30, "seq": seq})
    async with engine.begin() as connection:
        await connection.execute(_DELETE, {"seq": seq})
        await connection.execute(_DELETE_GROUP, {"group_id": group_id})
