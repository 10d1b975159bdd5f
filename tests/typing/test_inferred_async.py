"""What a type checker infers of the async twins. mypy runs over this file; the tests run what it accepts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, assert_type

import pytest
from pydantic import JsonValue, TypeAdapter
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, async_sessionmaker, create_async_engine

from qstore import (
    AsyncLocalKvRepository,
    AsyncLocalQueueRepository,
    AsyncTransportRepository,
    Event,
    Lease,
    ReceivedMessage,
    ScanPage,
    async_write_session,
    migrate,
    open_async_engine,
)
from qstore.repository import Opening
from tests.typing.host import STORES, Base, Cancelled, Order

Run = Callable[[Callable[[AsyncEngine, AsyncSession], Awaitable[None]]], None]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Await something with a host's engine and session."""

    async def hosting(body: Callable[[AsyncEngine, AsyncSession], Awaitable[None]]) -> None:
        engine = create_async_engine(f"sqlite+aiosqlite:///{tmp_path / 'host.sqlite'}")
        async with engine.begin() as connection:
            await connection.run_sync(Base.metadata.create_all)
        async with AsyncSession(engine) as session:
            await body(engine, session)
        await engine.dispose()

    return lambda body: asyncio.run(hosting(body))


def test_the_default_event(run: Run) -> None:
    async def inferred(engine: AsyncEngine, session: AsyncSession) -> None:
        assert_type(AsyncTransportRepository(engine), AsyncTransportRepository[Event])
        async with engine.connect() as connection:
            assert_type(AsyncTransportRepository(connection), AsyncTransportRepository[Event])
            assert_type(STORES.transport(connection), AsyncTransportRepository[Event])
        assert_type(AsyncTransportRepository(session), AsyncTransportRepository[Event])
        assert_type(STORES.transport(engine), AsyncTransportRepository[Event])
        assert_type(await STORES.transport(session).claim("w", 5), Lease[Event] | None)

    run(inferred)


def test_the_default_event_of_an_opened_store(tmp_path: Path) -> None:
    async def inferred() -> None:
        async with AsyncTransportRepository.open(tmp_path / "transport.sqlite") as transport:
            assert_type(transport, AsyncTransportRepository[Event])
            await transport.publish("g", Event(kind="k"))
            lease = await transport.claim("w", 5)
            assert_type(lease, Lease[Event] | None)
            assert lease is not None
            assert_type(lease.event.data, dict[str, Any])
            assert_type(await transport.extend(lease, 5), Lease[Event])
        opening = AsyncTransportRepository.open(tmp_path / "transport.sqlite")
        assert_type(opening, Opening[AsyncTransportRepository[Event]])
        awaited = await opening
        assert_type(awaited, AsyncTransportRepository[Event])
        await awaited.close()

    asyncio.run(inferred())


def test_a_model_of_the_callers(run: Run, tmp_path: Path) -> None:
    async def inferred(engine: AsyncEngine, session: AsyncSession) -> None:
        orders = STORES.transport(session, event_type=Order)
        assert_type(orders, AsyncTransportRepository[Order])
        assert_type(await orders.publish("g", Order(number=1)), int)
        assert_type(await orders.publish_many([("g", Order(number=2)), ("g", Order(number=3), 1)]), list[int])
        assert_type(await orders.claim("w", 5), Lease[Order] | None)
        assert_type(AsyncTransportRepository(engine, event_type=Order), AsyncTransportRepository[Order])
        async with AsyncTransportRepository.open(tmp_path / "orders.sqlite", event_type=Order) as opened:
            assert_type(opened, AsyncTransportRepository[Order])
            await opened.publish("g", Order(number=1))
            lease = await opened.claim("w", 5)
            assert lease is not None
            assert_type(lease.event.number, int)

    run(inferred)


def test_a_union_by_its_type_adapter(run: Run) -> None:
    async def inferred(_engine: AsyncEngine, session: AsyncSession) -> None:
        adapter: TypeAdapter[Order | Cancelled] = TypeAdapter(Order | Cancelled)
        happenings = STORES.transport(session, event_type=adapter)
        assert_type(happenings, AsyncTransportRepository[Order | Cancelled])
        await happenings.publish("g", Cancelled(reason="no"))
        lease = await happenings.claim("w", 5)
        assert lease is not None
        assert_type(lease.event, Order | Cancelled)

    run(inferred)


def test_an_event_or_bind_of_another_type_is_an_error_to_the_checker_and_at_run_time(run: Run) -> None:
    """mypy tells of an ignored error that is none."""

    async def inferred(engine: AsyncEngine, session: AsyncSession) -> None:
        orders = STORES.transport(session, event_type=Order)
        with pytest.raises(TypeError):
            await orders.publish("g", Event(kind="k"))  # type: ignore[arg-type]  # it must not pass
        with pytest.raises(TypeError):
            await orders.ack("1:abc")  # type: ignore[arg-type]  # it must not pass
        with pytest.raises(TypeError):
            await STORES.localkv(session).put("k", "text")  # type: ignore[arg-type]  # it must not pass
        with pytest.raises(TypeError):
            AsyncTransportRepository(engine.sync_engine)  # type: ignore[arg-type]  # it must not pass

    run(inferred)


def test_a_call_that_is_not_awaited_is_no_result_to_the_checker(run: Run) -> None:
    async def inferred(_engine: AsyncEngine, session: AsyncSession) -> None:
        forgotten = STORES.localkv(session).get("k")
        with pytest.raises(AttributeError):
            forgotten.decode()  # type: ignore[attr-defined]  # it must not pass
        forgotten.close()

    run(inferred)


def test_the_key_value_store(run: Run, tmp_path: Path) -> None:
    async def inferred(engine: AsyncEngine, session: AsyncSession) -> None:
        assert_type(STORES.localkv(engine), AsyncLocalKvRepository)
        kv = STORES.localkv(session)
        assert_type(kv, AsyncLocalKvRepository)
        assert_type(await kv.put("k", b"v"), bool)
        assert_type(await kv.get("k"), bytes | None)
        assert_type(await kv.scan_prefix("k"), ScanPage)
        assert_type(kv.iter_prefix("k"), AsyncIterator[tuple[str, bytes]])
        async for key, value in kv.iter_prefix("k"):
            assert_type(key, str)
            assert_type(value, bytes)
        async with AsyncLocalKvRepository.open(tmp_path) as opened:
            assert_type(opened, AsyncLocalKvRepository)

    run(inferred)


def test_the_queue(run: Run, tmp_path: Path) -> None:
    async def inferred(engine: AsyncEngine, session: AsyncSession) -> None:
        assert_type(STORES.localqueue(engine), AsyncLocalQueueRepository)
        queue = STORES.localqueue(session)
        assert_type(queue, AsyncLocalQueueRepository)
        assert_type(await queue.send({"a": [1, None]}), int)
        messages = await queue.receive(2)
        assert_type(messages, list[ReceivedMessage])
        assert_type(messages[0].payload, JsonValue)
        async with AsyncLocalQueueRepository.open(tmp_path) as opened:
            assert_type(opened, AsyncLocalQueueRepository)

    run(inferred)


def test_engines_sessions_and_migrations(run: Run, tmp_path: Path) -> None:
    async def inferred(engine: AsyncEngine, _session: AsyncSession) -> None:
        async with async_write_session(engine) as session:
            assert_type(session, AsyncSession)
        async with async_write_session(async_sessionmaker(engine)) as session:
            assert_type(session, AsyncSession)
        opened = open_async_engine(tmp_path / "localkv.sqlite")
        assert_type(opened, AsyncEngine)
        await migrate.upgrade_async(opened)
        assert_type(await migrate.current_async(opened), tuple[str, ...])
        assert_type(await migrate.check_async(opened), tuple[str, ...])
        await opened.dispose()

    run(inferred)


def test_classes_derived_from_a_repository_open_as_themselves(tmp_path: Path) -> None:
    class Orders(AsyncTransportRepository[Order]):
        pass

    async def inferred() -> None:
        async with Orders.open(tmp_path / "orders.sqlite", event_type=Order) as orders:
            assert_type(orders, Orders)
            assert_type(await orders.claim("w", 5), Lease[Order] | None)

    asyncio.run(inferred())
