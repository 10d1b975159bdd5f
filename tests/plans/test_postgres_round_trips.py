"""On a server each operation is one statement and one round trip, with no BEGIN and no COMMIT of its own. Issue 5."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, event
from sqlalchemy.ext.asyncio import create_async_engine

from qstore import (
    AsyncLocalKvRepository,
    AsyncLocalQueueRepository,
    AsyncTransportRepository,
    LocalKvRepository,
    LocalQueueRepository,
    TransportRepository,
)
from tests import postgres
from tests.awaiting import EventLoop
from tests.backends import MOUNTED
from tests.plans.wire import Wire, listened_to

Stores = tuple[Engine, Any, Any, Any]
"""An engine, and a transport, a queue and a key-value store on it."""


@pytest.fixture
def wire() -> Iterator[Wire]:
    with listened_to(postgres.database()) as wire:
        yield wire


@pytest.fixture(params=["psycopg", "async psycopg", "asyncpg"])
def stores(request: pytest.FixtureRequest, wire: Wire) -> Iterator[Stores]:
    if request.param == "psycopg":
        engine = create_engine(wire.url)
        yield (
            engine,
            TransportRepository(engine, event_type=str, naming=MOUNTED),
            LocalQueueRepository(engine, naming=MOUNTED),
            LocalKvRepository(engine, naming=MOUNTED),
        )
        engine.dispose()
        return
    loop = EventLoop()
    awaited = create_async_engine(wire.url.set(drivername=f"postgresql+{request.param.split()[-1]}"))
    yield (
        awaited.sync_engine,
        loop.sync(AsyncTransportRepository(awaited, event_type=str, naming=MOUNTED)),
        loop.sync(AsyncLocalQueueRepository(awaited, naming=MOUNTED)),
        loop.sync(AsyncLocalKvRepository(awaited, naming=MOUNTED)),
    )
    loop.run(awaited.dispose())
    loop.close()


def operations(stores: Stores) -> dict[str, Callable[[], Any]]:
    """Where each finds something."""
    _, messages, queue, kv = stores
    messages.publish_many([("g", "e")] * 9 + [(f"h{n}", "e", 3) for n in range(20)])
    leases = [messages.claim("w", 60) for _ in range(12)]
    queue.send_many(["p"] * 50)
    received = queue.receive(20)
    kv.put_many({"k": b"v", "l": b"v"})
    return {
        "publish": lambda: messages.publish("h1", "e"),
        "claim": lambda: messages.claim("w", 60),
        "claim with a floor": lambda: messages.claim("w", 60, 2),
        "ack": lambda: messages.ack(leases.pop()),
        "nack": lambda: messages.nack(leases.pop()),
        "park": lambda: messages.nack(leases.pop(), 60),
        "extend": lambda: messages.extend(leases.pop(), 60),
        "send": lambda: queue.send("p"),
        "send_many": lambda: queue.send_many(["p", "q"]),
        "receive": lambda: queue.receive(2),
        "ack of the queue": lambda: queue.ack(received.pop().receipt_handle),
        "nack of the queue": lambda: queue.nack(received.pop().receipt_handle),
        "put": lambda: kv.put("k", b"w", ttl=60),
        "put if absent": lambda: kv.put("k", b"w", if_not_exists=True),
        "put_many": lambda: kv.put_many({"k": b"w", "n": b"w"}),
        "get": lambda: kv.get("l"),
        "exists": lambda: kv.exists("l"),
        "delete": lambda: kv.delete("n"),
        "scan": lambda: kv.scan_prefix("k", limit=5),
    }


def test_each_operation_is_one_statement_that_a_listener_sees_and_one_round_trip(stores: Stores, wire: Wire) -> None:
    """The second time: the first time asyncpg has the statement prepared."""
    statements: list[str] = []
    event.listen(stores[0], "before_cursor_execute", lambda *args: statements.append(args[2]))
    counted = {}
    for name, call in operations(stores).items():
        call()
        statements.clear()
        before = wire.trips
        call()
        counted[name] = len(statements), wire.trips - before
    assert counted == dict.fromkeys(counted, (1, 1))


def test_a_host_whose_transaction_is_joined_sees_a_savepoint_around_each_operation(wire: Wire) -> None:
    engine = create_engine(wire.url)
    statements: list[str] = []
    event.listen(engine, "before_cursor_execute", lambda *args: statements.append(args[2].split()[0]))
    with engine.connect() as connection:
        statements.clear()
        kv = LocalKvRepository(connection, naming=MOUNTED)
        kv.put("k", b"v")
        kv.get("k")
    engine.dispose()
    assert statements == ["SAVEPOINT", "INSERT", "RELEASE", "SAVEPOINT", "SELECT", "RELEASE"]


def test_the_wire_counts_what_a_transaction_takes(wire: Wire) -> None:
    engine = create_engine(wire.url)
    with engine.connect() as connection:
        before = wire.trips
        connection.exec_driver_sql("SELECT 1")
        connection.commit()
        counted = wire.trips - before
    engine.dispose()
    assert counted == 3
