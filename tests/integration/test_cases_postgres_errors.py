"""What goes wrong on PostgreSQL, told in qstore's errors: conflicts, no room, no tables, no connection."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from sqlalchemy import URL, Engine, create_engine, event, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.orm import Session

from qstore import (
    AsyncLocalKvRepository,
    BackendUnsupported,
    FormatError,
    LocalKvRepository,
    LocalQueueRepository,
    Naming,
    StoreBusy,
    StoreFull,
    TransportRepository,
    open_engine,
)
from qstore.engines import results
from tests import postgres
from tests.backends import MOUNTED

DRIVERS = pytest.mark.parametrize("driver", ["psycopg", "asyncpg"])
BINDS = pytest.mark.parametrize("joined", [False, True], ids=["own", "joined"])


def outcome(url: URL, driver: str, work: Callable[[Any], Any]) -> BaseException | None:
    """What a put raises through a driver, on an engine that it had used before."""

    async def through_asyncpg() -> BaseException | None:
        engine = create_async_engine(url.set(drivername="postgresql+asyncpg"))
        kv = AsyncLocalKvRepository(engine, naming=MOUNTED)
        try:
            await kv.put("k", b"v")
        except Exception as error:  # noqa: BLE001  it is what is asked for
            return error
        finally:
            await engine.dispose()
        return None

    if driver == "asyncpg":
        return asyncio.run(through_asyncpg())
    engine = create_engine(url)
    try:
        work(LocalKvRepository(engine, naming=MOUNTED))
    except Exception as error:  # noqa: BLE001  as above
        return error
    finally:
        engine.dispose()
    return None


def put(kv: LocalKvRepository) -> None:
    kv.put("k", b"v")


def refuse(url: URL, state: str) -> None:
    """Let the server refuse every put with a SQLSTATE."""
    with postgres.connect(url) as connection:
        body = f"BEGIN RAISE EXCEPTION 'refused' USING ERRCODE = '{state}'; END"
        connection.execute(f"CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ {body} $$".encode())
        connection.execute("CREATE TRIGGER refuse BEFORE INSERT ON qstore_localkv_kv EXECUTE FUNCTION refuse()")


@DRIVERS
@pytest.mark.parametrize(
    ("state", "kind"),
    [
        ("40001", StoreBusy),
        ("40P01", StoreBusy),
        ("55P03", StoreBusy),
        ("53300", StoreBusy),
        ("53100", StoreFull),
        ("25006", BackendUnsupported),
        ("42501", DBAPIError),
    ],
)
def test_an_error_is_what_its_sqlstate_says(
    url: URL, driver: str, state: str, kind: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("qstore.binding.engine.CONFLICT_PAUSES", (0.0,) * 3)
    refuse(url, state)
    error = outcome(url, driver, put)
    assert type(error) is kind or (kind is DBAPIError and isinstance(error, DBAPIError))
    assert kind is DBAPIError or (error is not None and isinstance(error.__cause__, DBAPIError))


@DRIVERS
def test_a_server_that_panics_for_want_of_room_leaves_unknown_what_was_written(
    url: URL, driver: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It does where it is its log that finds none, in a commit say. It says 53100 then, too."""
    refuse(url, "53100")
    told, real = [], results.severity

    def panic(error: BaseException) -> str:
        told.append(real(error))
        return "PANIC"

    monkeypatch.setattr(results, "severity", panic)
    error = outcome(url, driver, put)
    assert isinstance(error, DBAPIError)
    assert told == ["ERROR"]


def test_a_conflict_is_repeated_a_bounded_number_of_times_and_a_passing_one_is_never_seen(engine: Engine) -> None:
    with engine.begin() as connection:
        connection.exec_driver_sql("CREATE SEQUENCE tries")
        connection.exec_driver_sql(
            "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN IF nextval('tries') <= 5 THEN"
            " RAISE EXCEPTION 'refused' USING ERRCODE = '40001'; END IF; RETURN new; END $$"
        )
        connection.exec_driver_sql(
            "CREATE TRIGGER refuse BEFORE INSERT ON qstore_localkv_kv FOR EACH ROW EXECUTE FUNCTION refuse()"
        )
    kv = LocalKvRepository(engine, naming=MOUNTED)
    kv.put("k", b"v")
    assert kv.get("k") == b"v"


@DRIVERS
def test_a_database_that_only_reads_is_told_so_and_is_read(url: URL, driver: str) -> None:
    put(LocalKvRepository(engine := create_engine(url), naming=MOUNTED))
    LocalKvRepository(engine, naming=MOUNTED).put("expired", b"v", ttl=0)
    engine.dispose()
    with postgres.connect(url) as connection:
        connection.execute(f"ALTER DATABASE {url.database} SET default_transaction_read_only = on".encode())
    assert type(outcome(url, driver, put)) is BackendUnsupported
    assert outcome(url, "psycopg", lambda kv: (kv.get("k"), kv.get("expired"), kv.scan_prefix(""))) is None


def test_an_engine_that_was_opened_to_read_only_reads(url: URL) -> None:
    writable = create_engine(url)
    LocalKvRepository(writable, naming=MOUNTED).put("k", b"v", ttl=0)
    writable.dispose()
    engine = open_engine(url, read_only=True)
    kv = LocalKvRepository(engine, naming=MOUNTED)
    assert kv.get("k") is None
    with postgres.connect(url) as connection:
        expired_there = connection.execute("SELECT count(*) FROM qstore_localkv_kv").fetchone()
    try:
        with pytest.raises(BackendUnsupported):
            kv.put("l", b"v")
    finally:
        engine.dispose()
    assert expired_there == (1,)


@BINDS
@pytest.mark.parametrize("call", ["get", "put", "scan", "claim", "publish", "receive"])
def test_missing_tables_are_named_and_leave_a_callers_transaction_as_it_was(
    engine: Engine, call: str, *, joined: bool
) -> None:
    elsewhere = Naming("elsewhere_")
    with Session(engine) as session:
        bind: Any = session if joined else engine
        session.execute(text("CREATE TABLE orders (id int)"))
        calls: dict[str, Callable[[], Any]] = {
            "get": lambda: LocalKvRepository(bind, naming=elsewhere).get("k"),
            "put": lambda: LocalKvRepository(bind, naming=elsewhere).put("k", b"v"),
            "scan": lambda: LocalKvRepository(bind, naming=elsewhere).scan_prefix("k"),
            "claim": lambda: TransportRepository(bind, naming=elsewhere).claim("w", 1),
            "publish": lambda: TransportRepository(bind, naming=elsewhere, event_type=str).publish("g", "e"),
            "receive": lambda: LocalQueueRepository(bind, naming=elsewhere).receive(),
        }
        with pytest.raises(FormatError, match=r"migrate\.upgrade"):
            calls[call]()
        assert session.execute(text("SELECT count(*) FROM orders")).scalar() == 0


def end_sessions(url: URL) -> None:
    with postgres.connect(url) as connection:
        connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database()"
            " AND pid <> pg_backend_pid() AND backend_type = 'client backend'"
        )


@pytest.mark.parametrize("call", ["publish", "publish_many", "send_many", "claim"])
@pytest.mark.parametrize("at", [1, 2, 3])
def test_a_connection_that_is_lost_at_any_statement_is_the_drivers_error_and_the_next_call_works(
    url: URL, engine: Engine, call: str, at: int
) -> None:
    transport = TransportRepository(engine, naming=MOUNTED, event_type=str)
    queue = LocalQueueRepository(engine, naming=MOUNTED)
    calls: dict[str, Callable[[], Any]] = {
        "publish": lambda: transport.publish("g", "e"),
        "publish_many": lambda: transport.publish_many([("g", "e"), ("h", "e")]),
        "send_many": lambda: queue.send_many(["p", "p"]),
        "claim": lambda: transport.claim("w", 60),
    }
    left = [at]

    def lose(*_: Any) -> None:
        left[0] -= 1
        if left[0] == 0:
            end_sessions(url)

    calls[call]()
    event.listen(engine, "before_cursor_execute", lose)
    lost: DBAPIError | None = None
    try:
        calls[call]()
    except DBAPIError as error:
        lost = error
    event.remove(engine, "before_cursor_execute", lose)
    assert lost is None or lost.connection_invalidated
    calls[call]()
    counts = "SELECT count(*) FROM qstore_transport_messages UNION ALL SELECT count(*) FROM qstore_localqueue_messages"
    with postgres.connect(url) as connection:
        numbers = [number for (number,) in connection.execute(counts).fetchall()]
    whole = 1 if call == "publish" else 2
    assert all(number % whole == 0 for number in numbers)


def test_a_lost_connection_in_a_callers_transaction_is_the_drivers_error_and_undoes_it_all(
    url: URL, engine: Engine
) -> None:
    with Session(engine) as session:
        transport = TransportRepository(session, naming=MOUNTED, event_type=str)
        transport.publish("g", "1")
        end_sessions(url)
        with pytest.raises(DBAPIError) as caught:
            transport.publish("g", "2")
        assert caught.value.connection_invalidated
        session.rollback()
        assert transport.claim("w", 60) is None


def test_the_trap_is_real_a_role_that_may_have_no_more_connections_gives_psycopg_no_sqlstate(url: URL) -> None:
    with postgres.connect(url) as connection:
        role = f"limited_{url.database}"
        connection.execute(f"CREATE ROLE {role} LOGIN PASSWORD 'p' CONNECTION LIMIT 1".encode())
        connection.execute(f"GRANT ALL ON ALL TABLES IN SCHEMA public TO {role}".encode())
    engine = create_engine(url.set(username=role, password="p"))
    with engine.connect(), pytest.raises(DBAPIError) as caught:
        LocalKvRepository(engine, naming=MOUNTED).get("k")
    engine.dispose()
    assert isinstance(caught.value.orig, psycopg.OperationalError)
    assert caught.value.orig.sqlstate is None
