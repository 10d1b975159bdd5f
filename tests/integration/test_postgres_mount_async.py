"""Mounted on PostgreSQL in async sessions and connections, through psycopg and asyncpg."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from sqlalchemy import insert, select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import (
    AsyncEngine,
    AsyncSession,
    async_scoped_session,
    async_sessionmaker,
    create_async_engine,
)

from qstore import Event, FormatError, StaleLease, StaleReceipt, async_write_session, migrate
from tests.integration.postgres_host import STORES, Order, PostgresHost, postgres_host

BINDS: dict[str, Callable[[AsyncEngine], Any]] = {"AsyncSession": AsyncSession, "AsyncConnection": AsyncEngine.connect}
each_bind = pytest.mark.parametrize("bind", BINDS)
each_driver = pytest.mark.parametrize("driver", ["psycopg", "asyncpg"])


@pytest.fixture
def host() -> Iterator[PostgresHost]:
    with postgres_host() as host:
        yield host


@asynccontextmanager
async def engine_of(host: PostgresHost, driver: str) -> AsyncIterator[AsyncEngine]:
    engine = create_async_engine(host.url.set(drivername=f"postgresql+{driver}"))
    try:
        yield engine
    finally:
        await engine.dispose()


async def order(bind: Any, name: str = "order") -> None:
    await bind.execute(insert(Order).values(name=name))


async def _claim(host: PostgresHost, bind: Any) -> None:
    lease = await STORES.transport(bind).claim("another worker", 30)
    assert lease is not None
    assert lease.event.kind == "free"
    await STORES.transport(bind).ack(await STORES.transport(bind).extend(lease, 60))


async def _receive(host: PostgresHost, bind: Any) -> None:
    [message] = await STORES.localqueue(bind).receive()
    assert message.payload == "due"
    await STORES.localqueue(bind).ack(message.receipt_handle)


OPERATIONS: dict[str, Callable[[PostgresHost, Any], Awaitable[object]]] = {
    "publish": lambda host, bind: STORES.transport(bind).publish("new", Event(kind="new")),
    "publish_many": lambda host, bind: STORES.transport(bind).publish_many([("x", Event(kind="1"))]),
    "claim and ack": _claim,
    "ack a lease": lambda host, bind: STORES.transport(bind).ack(host.lease),
    "put": lambda host, bind: STORES.localkv(bind).put("taken", b"new"),
    "put_many": lambda host, bind: STORES.localkv(bind).put_many({"a": b"1", "b": b"2"}),
    "send_many": lambda host, bind: STORES.localqueue(bind).send_many(["new", {"a": 1}]),
    "receive and ack": _receive,
    "ack a receipt": lambda host, bind: STORES.localqueue(bind).ack(host.receipt_handle),
}


@each_driver
@each_bind
@pytest.mark.parametrize("ending", ["rollback", "savepoint rollback", "commit"])
def test_each_operation_and_the_hosts_row_are_kept_or_undone_together(
    host: PostgresHost, driver: str, bind: str, ending: str
) -> None:
    async def work() -> None:
        async with engine_of(host, driver) as engine:
            for name, act in OPERATIONS.items():
                before = host.stored()
                async with BINDS[bind](engine) as it:
                    await order(it)
                    if ending == "savepoint rollback":
                        savepoint = await it.begin_nested()
                        await act(host, it)
                        await savepoint.rollback()
                        await it.commit()
                    else:
                        await act(host, it)
                        assert (host.stored(), host.orders()) == (before, []), name
                        await getattr(it, ending)()
                assert (host.stored() != before) is (ending == "commit"), name
                assert host.orders() == ([] if ending == "rollback" else ["order"]), name
                host.sql("DELETE FROM orders")

    asyncio.run(work())


@each_driver
@each_bind
def test_what_fails_undoes_itself_alone_and_the_host_goes_on(host: PostgresHost, driver: str, bind: str) -> None:
    host.sql("ALTER TABLE qstore_localkv_kv ADD CONSTRAINT small CHECK (length(value) < 10)")
    STORES.transport(host.engine).nack(host.lease)
    STORES.localqueue(host.engine).nack(host.receipt_handle)
    for _ in range(2):
        assert STORES.transport(host.engine).claim("another", 60)
    assert len(STORES.localqueue(host.engine).receive(3)) == 3

    async def work() -> None:
        async with engine_of(host, driver) as engine, BINDS[bind](engine) as it:
            await order(it, "before")
            with pytest.raises(StaleLease):
                await STORES.transport(it).ack(host.lease)
            with pytest.raises(StaleReceipt):
                await STORES.localqueue(it).ack(host.receipt_handle)
            with pytest.raises(IntegrityError):
                await STORES.localkv(it).put_many({"a": b"1", "b": b"1" * 20})
            await STORES.localkv(it).put("c", b"1")
            await order(it, "after")
            await it.commit()

    asyncio.run(work())
    assert host.orders() == ["after", "before"]
    assert host.sql("SELECT key FROM qstore_localkv_kv ORDER BY key") == [("c",), ("taken",)]


@each_driver
def test_all_six_mapped_classes_are_selected(host: PostgresHost, driver: str) -> None:
    async def work() -> list[int]:
        async with engine_of(host, driver) as engine, AsyncSession(engine) as session:
            names = ("TransportMessage", "TransportGroup", "KvMeta", "KvEntry", "QueueMeta", "QueueMessage")
            return [len((await session.scalars(select(getattr(STORES, name)))).all()) for name in names]

    assert asyncio.run(work()) == [2, 2, 1, 1, 1, 3]


@each_driver
def test_gathered_operations_in_one_session_take_their_turns(host: PostgresHost, driver: str) -> None:
    async def work() -> None:
        async with engine_of(host, driver) as engine, AsyncSession(engine) as session:
            kv = STORES.localkv(session)
            await asyncio.gather(*(kv.put(f"k{number}", b"v") for number in range(20)))
            await session.commit()

    asyncio.run(work())
    assert host.sql("SELECT count(*) FROM qstore_localkv_kv") == [(21,)]


@each_driver
def test_a_write_session_commits_at_its_end_and_rolls_back_on_an_error(host: PostgresHost, driver: str) -> None:
    before = host.stored()

    async def lose(bind: Any) -> None:
        async with async_write_session(bind) as session:
            await order(session, "lost")
            await STORES.transport(session).publish("lost", Event(kind="k"))
            raise ValueError("no")

    async def work() -> None:
        async with engine_of(host, driver) as engine:
            binds: list[Any] = [engine, async_sessionmaker(engine, expire_on_commit=False)]
            for number, bind in enumerate(binds):
                with pytest.raises(ValueError, match="no"):
                    await lose(bind)
                if not number:
                    assert (host.orders(), host.stored()) == ([], before)
                async with async_write_session(bind) as session:
                    session.add(Order(name=f"order {number}"))
                    await STORES.transport(session).publish("kept", Event(kind="k"))
                    assert len(host.orders()) == number

    asyncio.run(work())
    assert host.orders() == ["order 0", "order 1"]
    assert host.sql("SELECT count(*) FROM qstore_transport_messages WHERE group_id IN ('kept', 'lost')") == [(2,)]


@each_driver
def test_an_async_scoped_session_is_joined(host: PostgresHost, driver: str) -> None:
    async def work() -> None:
        async with engine_of(host, driver) as engine:
            sessions = async_scoped_session(async_sessionmaker(engine), scopefunc=asyncio.current_task)
            await order(sessions)
            await STORES.localqueue(sessions).send("m")
            await sessions.rollback()
            await sessions.remove()

    before = host.stored()
    asyncio.run(work())
    assert (host.orders(), host.stored()) == ([], before)


@each_driver
def test_an_upgrade_by_another_does_not_upset_the_statements_of_a_connection(host: PostgresHost, driver: str) -> None:
    """A driver that has prepared a statement is told that the table changed."""

    async def work() -> None:
        async with engine_of(host, driver) as engine:
            kv, queue = STORES.localkv(engine), STORES.localqueue(engine)
            for _ in range(8):
                assert await kv.get("taken") == b"old"
                await queue.send("m")
            host.sql(
                "DROP INDEX qstore_localkv_idx_kv_expires; ALTER TABLE qstore_localqueue_messages DROP COLUMN ready"
            )
            migrate.upgrade(host.engine, naming=STORES.naming)
            assert await kv.get("taken") == b"old"
            assert len(await queue.receive(20)) == 10

    asyncio.run(work())


@each_driver
@each_bind
def test_a_read_without_the_tables_is_told_by_name(host: PostgresHost, driver: str, bind: str) -> None:
    host.sql("DROP TABLE qstore_localkv_kv")

    async def work() -> None:
        async with engine_of(host, driver) as engine, BINDS[bind](engine) as it:
            await order(it)
            with pytest.raises(FormatError, match="does not have the tables"):
                await STORES.localkv(it).get("k")
            await it.commit()

    asyncio.run(work())
    assert host.orders() == ["order"]
