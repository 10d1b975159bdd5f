"""The schema on PostgreSQL: made whole or not at all, again and again, and in the caller's transaction."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import closing
from typing import Any

import pytest
from sqlalchemy import URL, Engine, event, text
from sqlalchemy.exc import OperationalError, ProgrammingError
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from qstore import InvalidInput, LocalKvRepository, migrate
from tests import postgres
from tests.backends import MOUNTED
from tests.migration.postgres_schema import ALL, Schema, catalog, engine_on, execute, tables

DRIVERS = ("psycopg", "asyncpg")


def test_upgrade_downgrade_and_stamp_may_be_repeated(url: URL, engine: Engine, whole: Schema) -> None:
    assert migrate.current(engine, naming=MOUNTED) == ()
    assert len(migrate.check(engine, naming=MOUNTED)) == 3
    for act in (migrate.upgrade, migrate.upgrade, migrate.stamp, migrate.upgrade):
        act(engine, naming=MOUNTED)
        assert (migrate.current(engine, naming=MOUNTED), migrate.check(engine, naming=MOUNTED)) == (ALL, ())
        assert catalog(url) == whole
    for _ in range(2):
        migrate.downgrade(engine, naming=MOUNTED)
        assert tables(url) == {"qstore_alembic_version"}
        assert migrate.current(engine, naming=MOUNTED) == ()
    migrate.upgrade(engine, naming=MOUNTED)
    assert catalog(url) == whole


def _head(store: str) -> str:
    [head] = [head for head in ALL if head.startswith(store)]
    return head


def test_one_store_comes_and_goes_without_the_others(url: URL, engine: Engine) -> None:
    migrate.upgrade(engine, naming=MOUNTED, stores=["localqueue"])
    assert migrate.current(engine, naming=MOUNTED) == (_head("localqueue"),)
    assert migrate.check(engine, naming=MOUNTED, stores=["localqueue"]) == ()
    migrate.upgrade(engine, naming=MOUNTED)
    migrate.downgrade(engine, naming=MOUNTED, stores=["localqueue"])
    assert migrate.current(engine, naming=MOUNTED) == (_head("localkv"), _head("transport"))
    assert "qstore_localkv_kv" in tables(url)
    assert "qstore_localqueue_meta" not in tables(url)


def test_a_downgrade_that_would_drop_rows_is_refused_and_changes_nothing(url: URL, engine: Engine) -> None:
    migrate.upgrade(engine, naming=MOUNTED)
    LocalKvRepository(engine, naming=MOUNTED).put("k", b"v")
    before = catalog(url)
    with pytest.raises(InvalidInput, match="1 rows of kv") as caught:
        migrate.downgrade(engine, naming=MOUNTED)
    assert caught.value.field == "drop_data"
    assert (catalog(url), migrate.current(engine, naming=MOUNTED)) == (before, ALL)
    migrate.downgrade(engine, naming=MOUNTED, drop_data=True)
    assert tables(url) == {"qstore_alembic_version"}


async def _all_async(bind: Any, commit: Callable[[], Awaitable[None]]) -> None:
    assert await migrate.current_async(bind, naming=MOUNTED) == ()
    for act in (migrate.upgrade_async, migrate.upgrade_async, migrate.stamp_async):
        await act(bind, naming=MOUNTED)
        assert await migrate.current_async(bind, naming=MOUNTED) == ALL
        assert await migrate.check_async(bind, naming=MOUNTED) == ()
    await migrate.downgrade_async(bind, naming=MOUNTED)
    assert len(await migrate.check_async(bind, naming=MOUNTED)) == 3
    await migrate.upgrade_async(bind, naming=MOUNTED)
    await commit()


@pytest.mark.parametrize("driver", DRIVERS)
@pytest.mark.parametrize("bound_to", ["engine", "connection", "session"])
def test_each_is_awaited_on_both_drivers(url: URL, whole: Schema, driver: str, bound_to: str) -> None:
    async def work() -> None:
        engine = create_async_engine(url.set(drivername=f"postgresql+{driver}"))
        try:
            if bound_to == "engine":
                await _all_async(engine, _nothing)
            elif bound_to == "connection":
                async with engine.connect() as connection:
                    await _all_async(connection, connection.commit)
            else:
                async with AsyncSession(engine) as session:
                    await _all_async(session, session.commit)
        finally:
            await engine.dispose()

    asyncio.run(work())
    assert catalog(url) == whole


async def _nothing() -> None:
    """Nothing is left to commit."""


def _failing_at(engine: Engine, beginning: str, fail: Callable[[Any], None]) -> None:
    def before(connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        if statement.lstrip().startswith(beginning):
            fail(connection)

    event.listen(engine, "before_cursor_execute", before)


@pytest.mark.parametrize(
    "beginning", ["CREATE TABLE", "INSERT INTO", "CREATE INDEX", "INSERT INTO qstore_alembic_version", "ALTER TABLE"]
)
def test_an_upgrade_that_fails_half_way_leaves_nothing_and_can_be_repeated(
    url: URL, whole: Schema, beginning: str
) -> None:
    seen: list[str] = []

    def fail(_: Any) -> None:
        seen.append(beginning)
        if len(seen) == 2:
            raise RuntimeError("half-way")

    with engine_on(url) as engine:
        _failing_at(engine, beginning, fail)
        with pytest.raises(RuntimeError, match="half-way"):
            migrate.upgrade(engine, naming=MOUNTED)
        assert tables(url) == set()
        migrate.upgrade(engine, naming=MOUNTED)
    assert catalog(url) == whole


@pytest.mark.parametrize("act", [migrate.upgrade, migrate.downgrade])
def test_a_session_that_the_server_ends_half_way_leaves_all_as_it_was(
    url: URL, whole: Schema, act: Callable[..., None]
) -> None:
    if act is migrate.downgrade:
        with engine_on(url) as engine:
            migrate.upgrade(engine, naming=MOUNTED)
    before = catalog(url)

    def end(connection: Any) -> None:
        pid = connection.connection.driver_connection.info.backend_pid
        with closing(postgres.connect(url)) as other:
            other.execute("SELECT pg_terminate_backend(%s, 5000)", [pid])

    with engine_on(url) as engine:
        _failing_at(engine, "CREATE INDEX" if act is migrate.upgrade else "DELETE FROM", end)
        with pytest.raises(OperationalError):
            act(engine, naming=MOUNTED)
    assert catalog(url) == before
    with engine_on(url) as engine:
        migrate.upgrade(engine, naming=MOUNTED)
    assert catalog(url) == whole


@pytest.mark.parametrize("kind", ["connection", "session"])
@pytest.mark.parametrize("end", ["commit", "rollback"])
def test_an_upgrade_joins_the_callers_transaction(url: URL, engine: Engine, whole: Schema, kind: str, end: str) -> None:
    execute(url, "CREATE TABLE orders (name TEXT)")
    bind: Any
    with Session(engine) if kind == "session" else engine.connect() as bind:
        bind.execute(text("INSERT INTO orders VALUES ('order')"))
        migrate.upgrade(bind, naming=MOUNTED)
        assert migrate.check(bind, naming=MOUNTED) == ()
        assert tables(url) == {"orders"}
        getattr(bind, end)()
    assert execute(url, "SELECT name FROM orders") == ([("order",)] if end == "commit" else [])
    execute(url, "DROP TABLE orders")
    empty: Schema = {about: [] for about in whole}
    assert catalog(url) == (whole if end == "commit" else empty)


def test_an_upgrade_that_is_refused_in_the_callers_transaction_leaves_it_usable(url: URL, engine: Engine) -> None:
    execute(url, "CREATE TABLE orders (name TEXT); CREATE TABLE qstore_localqueue_meta (id INTEGER)")
    with engine.begin() as connection:
        connection.execute(text("INSERT INTO orders VALUES ('before')"))
        with pytest.raises(Exception, match="qstore_localqueue_meta"):
            migrate.upgrade(connection, naming=MOUNTED)
        connection.execute(text("INSERT INTO orders VALUES ('after')"))
    assert execute(url, "SELECT name FROM orders") == [("before",), ("after",)]
    assert tables(url) == {"orders", "qstore_localqueue_meta"}


def test_an_engine_in_autocommit_still_upgrades_all_or_nothing(url: URL, whole: Schema) -> None:
    with engine_on(url, isolation_level="AUTOCOMMIT") as engine:
        _failing_at(engine, "INSERT INTO qstore_alembic_version", lambda _: (_ for _ in ()).throw(RuntimeError("no")))
        with pytest.raises(RuntimeError):
            migrate.upgrade(engine, naming=MOUNTED)
    assert tables(url) == set()
    with engine_on(url, isolation_level="AUTOCOMMIT") as engine:
        migrate.upgrade(engine, naming=MOUNTED)
        with engine.connect() as connection:
            driver: Any = connection.connection.driver_connection
            assert driver.autocommit
    assert catalog(url) == whole


def test_without_the_right_to_create_the_servers_own_error_comes_through_and_nothing_is_left(url: URL) -> None:
    execute(url, "REVOKE CREATE ON SCHEMA public FROM PUBLIC")
    with engine_on(url, connect_args={"options": "-c role=pg_monitor"}) as engine:
        with pytest.raises(ProgrammingError, match="permission denied"):
            migrate.upgrade(engine, naming=MOUNTED)
        assert len(migrate.check(engine, naming=MOUNTED)) == 3
    assert tables(url) == set()


@pytest.mark.parametrize("table", ["transport_messages", "transport_groups", "localkv_kv", "localqueue_messages"])
def test_vacuum_comes_by_the_number_of_dead_rows_and_pages_keep_room_for_the_next_version(
    url: URL, engine: Engine, table: str
) -> None:
    """D3. By PostgreSQL's own settings it comes when a fifth of a table is dead, and then rests again and again."""
    migrate.upgrade(engine, naming=MOUNTED)
    [(settings,)] = execute(url, f"SELECT reloptions FROM pg_class WHERE relname = 'qstore_{table}'")
    found = {name: float(value) for name, _, value in (setting.partition("=") for setting in settings)}
    assert found["autovacuum_vacuum_scale_factor"] == 0
    assert 0 < found["autovacuum_vacuum_threshold"] <= 5000
    assert found["autovacuum_vacuum_cost_delay"] == 0
    assert found["fillfactor"] < 100
