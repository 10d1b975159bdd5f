"""Connections of a server that stay lent between operations, where nobody listens to the engine."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from threading import Event, Thread
from typing import Any

import psycopg
import pytest
from sqlalchemy import URL, Engine, create_engine, event, text
from sqlalchemy.exc import DBAPIError, OperationalError
from sqlalchemy.ext.asyncio import create_async_engine

from qstore import (
    AsyncLocalKvRepository,
    AsyncTransportRepository,
    LocalKvRepository,
    Naming,
    TransportRepository,
    migrate,
    open_async_engine,
    open_engine,
)
from qstore import Event as Message
from qstore.engines.lending import LendingPool
from tests import postgres

NAMING = Naming("qstore_")
WAITING = """
SELECT FROM pg_locks AS l JOIN pg_database AS d ON d.oid = l.database
 WHERE NOT l.granted AND d.datname = current_database()"""


@pytest.fixture
def engine(url: URL) -> Iterator[Engine]:
    engine = open_engine(url)
    yield engine
    engine.dispose()


def sessions(url: URL) -> list[int]:
    """The server's processes that somebody else is connected to."""
    with postgres.connect(url) as connection:
        query = "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
        return [pid for (pid,) in connection.execute(query)]


def terminate(url: URL) -> None:
    with postgres.connect(url) as connection:
        for pid in sessions(url):
            if pid != connection.info.backend_pid:
                connection.execute("SELECT pg_terminate_backend(%s, 5000)", (pid,))


def in_threads(number: int, work: Callable[[int], object]) -> None:
    threads = [Thread(target=work, args=(each,)) for each in range(number)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)


def test_one_connection_serves_all_operations_of_a_thread_and_a_transaction_of_the_callers_too(
    engine: Engine, url: URL
) -> None:
    kv = LocalKvRepository(engine, naming=NAMING)
    for number in range(10):
        kv.put("key", b"%d" % number)
        assert kv.get("key") == b"%d" % number
    with engine.connect() as connection:
        LocalKvRepository(connection, naming=NAMING).put("key", b"taken back")
        connection.rollback()
    assert kv.get("key") == b"9"
    assert len(sessions(url)) == 1


def test_nobody_waits_for_a_connection_while_one_is_not_in_use(engine: Engine) -> None:
    pool: Any = engine.pool
    assert isinstance(pool, LendingPool)
    lent = [pool.lend_on(engine) for _ in range(pool.size() + pool._max_overflow)]
    got = Event()

    def ask(_: int) -> None:
        pool.lend_on(engine).give()
        got.set()

    thread = Thread(target=ask, args=(0,))
    thread.start()
    while not pool._asking:
        pass
    lent.pop().give()
    assert got.wait(10)
    thread.join()
    for each in lent:
        each.give()


def test_more_threads_than_the_pool_has_connections_take_turns(engine: Engine) -> None:
    kv = LocalKvRepository(engine, naming=NAMING)
    in_threads(40, lambda number: [kv.put(f"{number} {each}", b"v") for each in range(20)])
    assert len(kv.scan_prefix("").items) == 800


def test_after_the_server_ended_all_sessions_one_call_fails_and_no_other(engine: Engine, url: URL) -> None:
    kv = LocalKvRepository(engine, naming=NAMING)
    pool: Any = engine.pool
    for lent in [pool.lend_on(engine) for _ in range(4)]:
        lent.give()
    assert len(sessions(url)) == 4
    terminate(url)
    with pytest.raises(DBAPIError) as raised:
        kv.put("key", b"lost")
    assert raised.value.connection_invalidated
    for _ in range(5):
        kv.put("key", b"kept")
    assert kv.get("key") == b"kept"


def test_a_batch_whose_session_ends_is_undone_and_the_next_one_is_done(engine: Engine, url: URL) -> None:
    kv = LocalKvRepository(engine, naming=NAMING)
    kv.put("key", b"v")
    with postgres.connect(url) as other:
        other.execute(
            "CREATE FUNCTION pause() RETURNS trigger LANGUAGE plpgsql AS"
            " $$BEGIN PERFORM pg_terminate_backend(pg_backend_pid()); PERFORM pg_sleep(5); RETURN NEW; END$$"
        )
        other.execute("CREATE TRIGGER pause BEFORE INSERT ON qstore_localkv_kv EXECUTE FUNCTION pause()")
        with pytest.raises(DBAPIError):
            kv.put_many({"a": b"1", "b": b"2"})
        other.execute("DROP TRIGGER pause ON qstore_localkv_kv")
    assert not kv.exists("a")
    kv.put_many({"a": b"1", "b": b"2"})
    assert kv.exists("b")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="has no fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")  # Python 3.12 warns of threads, as there are here
def test_a_child_has_sessions_of_its_own_and_its_end_is_not_its_parents(engine: Engine, url: URL) -> None:
    kv = LocalKvRepository(engine, naming=NAMING)
    kv.put("key", b"parent")
    mine = sessions(url)
    child = os.fork()
    if child == 0:
        status = 1
        with suppress(BaseException):
            kv.put("key", b"child")
            status = 0 if set(sessions(url)) > set(mine) else 2
            engine.dispose()
        os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert kv.get("key") == b"child"
    assert sessions(url) == mine


def test_closing_the_repository_ends_its_sessions(url: URL) -> None:
    with LocalKvRepository.open(url) as kv:
        in_threads(3, lambda number: kv.put(f"{number}", b"v"))
        assert sessions(url)
    with postgres.connect(url) as connection:
        mine = connection.info.backend_pid
        query = "SELECT FROM pg_stat_activity WHERE datname = current_database() AND pid <> %s"
        for _ in range(100):
            if not (left := connection.execute(query, (mine,)).fetchall()):
                break
            connection.execute("SELECT pg_sleep(0.05)")
        assert not left


def test_a_hosts_connection_goes_back_to_its_pool_as_it_was(url: URL) -> None:
    engine = create_engine(url, pool_size=1, max_overflow=0)
    kv = LocalKvRepository(engine, naming=NAMING)
    with engine.connect() as connection:
        driver = connection.connection.dbapi_connection
    kv.put("key", b"v")
    kv.put_many({"a": b"1"})
    with engine.connect() as connection:
        assert connection.connection.dbapi_connection is driver
        assert driver is not None
        assert not driver.autocommit
    engine.dispose()


def test_what_is_not_qstores_error_is_sqlalchemys_with_the_statement(engine: Engine) -> None:
    with engine.begin() as connection:
        connection.execute(text("ALTER TABLE qstore_localkv_kv ADD CHECK (key <> 'key')"))
    with pytest.raises(DBAPIError, match="qstore_localkv_kv") as raised:
        LocalKvRepository(engine, naming=NAMING).put("key", b"v")
    assert isinstance(raised.value.orig, psycopg.errors.CheckViolation)
    assert raised.value.statement is not None
    assert not raised.value.connection_invalidated


def test_a_session_that_the_server_refuses_is_sqlalchemys_error_too(url: URL) -> None:
    role = f"role_{url.database}"
    with postgres.connect(url) as connection:
        connection.execute(f"CREATE ROLE {role} LOGIN CONNECTION LIMIT 0".encode())
        for engine in (open_engine(url.set(username=role)), create_engine(url.set(username=role))):
            with pytest.raises(OperationalError):
                LocalKvRepository(engine, naming=NAMING).get("key")
            engine.dispose()
        connection.execute(f"DROP ROLE {role}".encode())


@pytest.mark.parametrize("threshold", [5, None])
def test_statements_are_prepared_unless_the_host_says_that_none_are(url: URL, threshold: int | None) -> None:
    engine = create_engine(url, connect_args={"prepare_threshold": threshold})
    LocalKvRepository(engine, naming=NAMING).get("key")
    with engine.connect() as connection:
        found = connection.execute(text("SELECT count(*) FROM pg_prepared_statements")).scalar_one()
    engine.dispose()
    assert found == (0 if threshold is None else 1)


def test_who_wants_to_be_told_of_errors_is_told(engine: Engine) -> None:
    told: list[str | None] = []
    event.listen(engine, "handle_error", lambda context: told.append(context.statement))
    with engine.begin() as connection:
        connection.execute(text("DROP TABLE qstore_localkv_kv"))
    with pytest.raises(Exception, match="does not have the tables"):
        LocalKvRepository(engine, naming=NAMING).get("key")
    assert told


def read_whole(url: URL) -> int:
    """How often all of a transport's table was read, by sessions that are over."""
    with postgres.connect(url) as connection:
        connection.execute("SELECT pg_sleep(0.05)")
        query = "SELECT sum(seq_scan) FROM pg_stat_user_tables WHERE relname LIKE 'qstore_transport_%'"
        row = connection.execute(query).fetchone()
    assert row is not None
    return int(row[0])


@pytest.mark.parametrize("driver", ["psycopg", "asyncpg"])
def test_a_plan_that_was_made_when_the_queue_was_nearly_empty_reads_no_table_whole(url: URL, driver: str) -> None:
    async def work() -> None:
        engine = open_async_engine(url.set(drivername=f"postgresql+{driver}"))
        transport = AsyncTransportRepository(engine, naming=NAMING)
        for number in range(10):
            await transport.publish(f"group {number}", Message(kind="k"))
        with postgres.connect(url) as connection:
            connection.execute("VACUUM ANALYZE")
        for number in range(10):
            await transport.publish(f"group {number}", Message(kind="k"))
            lease = await transport.claim("worker", 30)
            assert lease is not None
            await transport.ack(await transport.extend(lease, 30))
        await engine.dispose()

    before = read_whole(url)
    asyncio.run(work())
    while sessions(url):  # they tell the server what they did when they end
        pass
    assert read_whole(url) == before


def test_the_callers_own_statements_are_planned_as_the_server_is_set(engine: Engine) -> None:
    show = text("SHOW enable_seqscan")
    LocalKvRepository(engine, naming=NAMING).put("key", b"v")
    pool: Any = engine.pool
    lent = pool.lend_on(engine)
    assert [tuple(row) for row in lent.rows(str(show), [])] == [("off",)]
    lent.give()
    with engine.connect() as connection:
        assert connection.execute(show).scalar_one() == "on"


@pytest.mark.parametrize("driver", ["psycopg", "asyncpg"])
@pytest.mark.parametrize("opened", [True, False], ids=["opened", "host"])
def test_async_sessions_that_end_cost_one_call_and_cancelled_ones_none(url: URL, driver: str, *, opened: bool) -> None:
    async def work() -> None:
        at = url.set(drivername=f"postgresql+{driver}")
        engine = open_async_engine(at) if opened else create_async_engine(at)
        kv = AsyncLocalKvRepository(engine, naming=NAMING)
        await asyncio.gather(*(kv.put(f"{number}", b"v") for number in range(40)))
        terminate(url)
        with pytest.raises(DBAPIError):
            await kv.put("key", b"lost")
        await asyncio.gather(*(kv.put(f"{number}", b"w") for number in range(40)))
        with postgres.connect(url) as other, other.transaction():
            other.execute("LOCK qstore_localkv_kv")
            for _ in range(30):
                put = asyncio.ensure_future(kv.put("key", b"cancelled"))
                # A server ignores what cancels a statement that it has not begun.
                while not other.execute(WAITING).fetchall():  # noqa: ASYNC110  it is the server's event
                    await asyncio.sleep(0.001)
                put.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await put
        await kv.put_many({"a": b"1", "b": b"2"})
        assert await kv.get("key") is None
        assert await kv.get("b") == b"2"
        await engine.dispose()

    asyncio.run(work())


def test_a_seq_is_drawn_from_the_tables_own_sequence_whatever_that_is_called_and_also_when_the_table_is_made_anew(
    engine: Engine, url: URL
) -> None:
    transport = TransportRepository(engine, naming=NAMING)
    with postgres.connect(url) as other:
        other.execute("""ALTER SEQUENCE qstore_transport_messages_seq_seq RENAME TO "it's ours" """)
        other.execute("""ALTER SEQUENCE "it's ours" RESTART WITH 100""")
        event = Message(kind="placed")
        first, second = transport.publish("group", event), transport.publish("group", event)
        [third] = transport.publish_many([("group", event)])
        assert 100 == first < second < third
        migrate.downgrade(engine, naming=NAMING, stores=["transport"], drop_data=True)
        migrate.upgrade(engine, naming=NAMING)
        other.execute("""ALTER SEQUENCE qstore_transport_messages_seq_seq RENAME TO "it's ours" """)
        assert transport.publish("group", event) == 1
