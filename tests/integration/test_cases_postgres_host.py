"""A host's own engine and transactions on PostgreSQL: left as they were, whatever the host has set. H11, H12, H14."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import psycopg
import pytest
from sqlalchemy import URL, StaticPool, create_engine, event, text
from sqlalchemy.orm import Session

from qstore import (
    LocalKvRepository,
    LocalQueueRepository,
    StoreBusy,
    TransportRepository,
)
from tests import postgres
from tests.backends import MOUNTED, ManualClock


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


def test_a_listener_that_leaves_a_new_connection_in_a_transaction_is_no_hindrance(url: URL) -> None:
    """Many set something so. What it has set is kept, as by the first commit of the host."""
    engine = create_engine(url, pool_size=1, max_overflow=0)
    event.listen(engine, "connect", lambda connection, _: connection.execute("SET lock_timeout = '777ms'"))
    engine.connect().close()  # SQLAlchemy ends that transaction of its first connection itself
    engine.pool.dispose()
    use_all(engine)
    with engine.connect() as connection:
        assert connection.exec_driver_sql("SHOW lock_timeout").scalar() == "777ms"
    engine.dispose()


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
