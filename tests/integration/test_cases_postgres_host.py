"""A host's own engine and transactions on PostgreSQL: left as they were, whatever the host has set. H11, H12, H14."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import psycopg
import pytest
from sqlalchemy import URL, StaticPool, create_engine, event, text
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from qstore import (
    AsyncLocalKvRepository,
    AsyncTransportRepository,
    LocalKvRepository,
    LocalQueueRepository,
    StoreBusy,
    TransportRepository,
)
from tests import postgres
from tests.backends import MOUNTED, ManualClock

HELD = 2.5
"""Seconds that a lock is held for which a cancelled call must not wait."""


@pytest.fixture
def url() -> URL:
    return postgres.database()


def transport(bind: Any, **arguments: Any) -> TransportRepository[str]:
    return TransportRepository(bind, event_type=str, naming=MOUNTED, **arguments)


def use_all(bind: Any) -> None:
    """Each store, and each of its operations' kinds."""
    messages = transport(bind)
    queue, kv = LocalQueueRepository(bind, naming=MOUNTED), LocalKvRepository(bind, naming=MOUNTED)
    messages.publish_many([("g", "1"), ("g", "2")])
    lease = messages.claim("w", 60)
    assert lease is not None
    messages.ack(messages.extend(lease, 90))
    queue.send_many(["p", "q"])
    for message in queue.receive(2):
        queue.ack(message.receipt_handle)
    assert kv.put("k", b"v", ttl=60)
    assert kv.get("k") == b"v"
    assert kv.scan_prefix("k").items == [("k", b"v")]


Prepare = Callable[[Any], None]


def by_sql(connection: Any) -> None:
    connection.execute("SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL REPEATABLE READ")
    connection.commit()


def by_attribute(connection: Any) -> None:
    connection.isolation_level = psycopg.IsolationLevel.SERIALIZABLE


def nothing(connection: Any) -> None:
    """The defaults."""


@pytest.mark.parametrize(
    ("arguments", "prepare"),
    [
        ({}, nothing),
        ({"isolation_level": "REPEATABLE READ"}, nothing),
        ({"isolation_level": "SERIALIZABLE"}, nothing),
        ({"isolation_level": "AUTOCOMMIT"}, nothing),
        ({"connect_args": {"options": "-c default_transaction_isolation=serializable"}}, nothing),
        ({"connect_args": {"autocommit": True}}, nothing),
        ({}, by_sql),
        ({}, by_attribute),
        ({"execution_options": {"postgresql_readonly": False, "postgresql_deferrable": True}}, nothing),
    ],
    ids=[
        "defaults",
        "repeatable read",
        "serializable",
        "autocommit",
        "options",
        "driver autocommit",
        "by SQL",
        "by attribute",
        "deferrable",
    ],
)
def test_the_connections_of_a_hosts_engine_are_as_before(url: URL, arguments: dict[str, Any], prepare: Prepare) -> None:
    engine = create_engine(url, pool_size=1, max_overflow=0, **arguments)
    event.listen(engine, "connect", lambda connection, _: prepare(connection))

    def found() -> list[Any]:
        with engine.connect() as connection:
            driver: Any = connection.connection.driver_connection
            shown = ("transaction_isolation", "transaction_read_only", "transaction_deferrable", "lock_timeout")
            values = [connection.exec_driver_sql(f"SHOW {each}").scalar() for each in shown]
            return [*values, driver.autocommit, driver.info.backend_pid, driver.prepare_threshold]

    before, pool = found(), engine.pool
    use_all(engine)
    after = found()
    engine.dispose()
    assert after == before
    assert engine.pool is not pool or type(engine.pool) is type(pool)


@pytest.mark.parametrize("level", ["AUTOCOMMIT", "READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"])
@pytest.mark.parametrize("kind", ["session", "connection"])
def test_a_transaction_of_any_kind_that_a_host_has_is_joined(url: URL, level: str, kind: str) -> None:
    engine = create_engine(url, isolation_level=level)
    try:
        with Session(engine) if kind == "session" else engine.connect() as bind:
            use_all(bind)
            bind.commit()
        with Session(engine) if kind == "session" else engine.connect() as bind:
            transport(bind).publish("undone", "e")
            bind.rollback()
            left = bind.execute(text("SELECT count(*) FROM qstore_transport_groups WHERE group_id = 'undone'")).scalar()
            assert left == (level == "AUTOCOMMIT")
    finally:
        engine.dispose()


def test_an_engine_with_one_connection_for_all_leaves_the_hosts_transaction_on_it_alone_or_is_refused(
    url: URL,
) -> None:
    """A StaticPool gives qstore the very connection on which the host is in its own transaction."""
    engine = create_engine(url, poolclass=StaticPool)
    try:
        with Session(engine) as session:
            session.execute(text("CREATE TABLE orders (id int)"))
            with suppress(Exception):
                transport(engine).publish("g", "e")
            session.commit()
            assert session.execute(text("SELECT to_regclass('orders')")).scalar() == "orders"
    finally:
        engine.dispose()


def test_listeners_of_the_host_see_every_statement_also_those_that_come_later(url: URL) -> None:
    engine = create_engine(url)
    messages = transport(engine)
    seen: list[str] = []
    event.listen(engine, "before_cursor_execute", lambda *args: seen.append(args[2]))
    messages.publish("g", "e")
    assert messages.claim("w", 60) is not None
    engine.dispose()
    assert len(seen) == 2
    assert all("qstore_transport_messages" in statement for statement in seen)


def test_a_host_that_has_set_a_lock_timeout_is_told_that_the_store_is_busy(url: URL) -> None:
    engine = create_engine(url, connect_args={"options": "-c lock_timeout=200"})
    messages = transport(engine)
    messages.publish("g", "1")
    with postgres.connect(url) as other:
        other.execute("BEGIN")
        other.execute("SELECT 1 FROM qstore_transport_groups FOR UPDATE")
        with pytest.raises(StoreBusy):
            messages.publish("g", "2")
        with Session(engine) as session:
            with pytest.raises(StoreBusy):
                transport(session).publish("g", "3")
            assert session.execute(text("SELECT 1")).scalar() == 1
        assert messages.claim("w", 60) is None
        other.execute("ROLLBACK")
    messages.publish("g", "4")
    engine.dispose()


def test_floats_that_the_server_writes_short_do_not_make_a_lease_stale(url: URL) -> None:
    """extra_float_digits = 0 rounds what psycopg reads: a lease must be found again by it, and no call may hang."""
    engine = create_engine(url, connect_args={"options": "-c extra_float_digits=0"})
    left = [200]

    def bounded(*_: Any) -> None:
        left[0] -= 1
        assert left[0], "it does not end"

    event.listen(engine, "before_cursor_execute", bounded)
    messages = transport(engine)
    try:
        for number in range(20):
            messages.publish("g", str(number))
            lease = messages.claim("w", 60)
            assert lease is not None
            messages.ack(lease)
    finally:
        engine.dispose()


def test_a_stamp_ahead_of_the_clock_starves_no_group_in_callers_transactions(url: URL, clock: ManualClock) -> None:
    """Semantics 8."""
    engine = create_engine(url)
    with Session(engine) as session:
        messages = transport(session, clock=clock)

        def served() -> str:
            lease = messages.claim("w", 5)
            assert lease is not None
            messages.ack(lease)
            session.commit()
            clock.advance(60)
            return lease.group_id

        messages.publish_many([("unlucky", "1"), ("unlucky", "2")])
        clock.advance(86_400)
        served()
        clock.advance(-86_400)
        messages.publish_many([("lucky", str(number)) for number in range(20)])
        found = {served() for _ in range(19)}
    engine.dispose()
    assert "unlucky" in found


@pytest.mark.parametrize("driver", ["psycopg", "asyncpg"])
@pytest.mark.parametrize("joined", [False, True], ids=["own", "joined"])
@pytest.mark.parametrize("call", ["publish", "publish_many", "put"])
def test_a_call_that_waits_for_a_row_and_is_cancelled_ends_at_once_and_has_not_happened(
    url: URL, driver: str, call: str, *, joined: bool
) -> None:
    """H14. The lock is a host's, and is held for much longer."""

    async def main(holder: psycopg.Connection[Any]) -> tuple[bool, int]:
        engine = create_async_engine(url.set(drivername=f"postgresql+{driver}"), pool_size=1, max_overflow=0)
        async with AsyncSession(engine) as session:
            bind: Any = session if joined else engine
            messages = AsyncTransportRepository(bind, event_type=str, naming=MOUNTED)
            kv = AsyncLocalKvRepository(bind, naming=MOUNTED)
            calls: dict[str, Callable[[], Any]] = {
                "publish": lambda: messages.publish("locked", "late"),
                "publish_many": lambda: messages.publish_many([("a", "late"), ("locked", "late")]),
                "put": lambda: kv.put("locked", b"late"),
            }
            freed = asyncio.get_running_loop().call_later(HELD, holder.execute, "ROLLBACK")
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(calls[call](), 0.2)
            at_once = holder.info.transaction_status == psycopg.pq.TransactionStatus.INTRANS
            freed.cancel()
            holder.execute("ROLLBACK")
            await session.rollback()
        out: int = engine.sync_engine.pool.checkedout()  # type: ignore[attr-defined]
        assert await AsyncTransportRepository(engine, event_type=str, naming=MOUNTED).publish("next", "e")
        await engine.dispose()
        return at_once, out

    engine = create_engine(url)
    transport(engine).publish("locked", "first")
    LocalKvRepository(engine, naming=MOUNTED).put("locked", b"first")
    engine.dispose()
    with postgres.connect(url) as holder, postgres.connect(url) as other:
        holder.execute("BEGIN")
        holder.execute("SELECT 1 FROM qstore_transport_groups FOR UPDATE")
        holder.execute("SELECT 1 FROM qstore_localkv_kv FOR UPDATE")
        at_once, out = asyncio.run(main(holder))
        late = other.execute("SELECT count(*) FROM qstore_transport_messages WHERE event = '\"late\"'").fetchone()
        value = other.execute("SELECT value FROM qstore_localkv_kv").fetchone()
    assert (late, value, out) == ((0,), (b"first",), 0)
    assert at_once


FORK = """
import os, signal, sys
from qstore import TransportRepository
messages = TransportRepository.open(sys.argv[1], event_type=str)
messages.publish("before", "e")
child = os.fork()
signal.alarm(8)
for number in range(30):
    messages.publish(f"{'child' if child == 0 else 'parent'} {number}", "e")
if child == 0:
    os._exit(0)
_, status = os.waitpid(child, 0)
messages.close()
sys.exit(status != 0)
"""


def test_a_repository_that_is_used_on_both_sides_of_a_fork_keeps_two_conversations_apart(url: URL) -> None:
    """Semantics 12: in the child it opens its own connection, or is refused by name."""
    arguments = [sys.executable, "-W", "ignore", "-c", FORK, url.render_as_string(hide_password=False)]
    with subprocess.Popen(arguments) as process:
        try:
            assert process.wait(8) == 0
        finally:
            process.kill()
    with postgres.connect(url) as connection:
        assert connection.execute("SELECT count(*) FROM qstore_transport_messages").fetchone() == (61,)


@pytest.fixture(autouse=True)
def no_session_is_left(url: URL) -> Iterator[None]:
    """Every connection that a test made is closed at its end."""
    yield
    deadline = time.monotonic() + 5
    query = (
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
        " AND backend_type = 'client backend'"
    )
    with postgres.connect(url) as connection:
        while connection.execute(query).fetchone() != (0,) and time.monotonic() < deadline:
            time.sleep(0.02)
        assert connection.execute(query).fetchone() == (0,)
