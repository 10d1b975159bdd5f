"""Any number of processes, tasks and transactions upgrade one PostgreSQL database at the same instant. H19."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from sqlalchemy import URL
from sqlalchemy.ext.asyncio import create_async_engine

from qstore import Event, LocalKvRepository, LocalQueueRepository, Naming, TransportRepository, migrate
from tests import postgres
from tests.backends import MOUNTED
from tests.migration.crowd import Crowd, crowd_of
from tests.migration.postgres_schema import Schema, catalog, engine_on, execute, tables

LEVELS = ("read committed", "repeatable read", "serializable")


@pytest.fixture(scope="module")
def crowd() -> Iterator[Crowd]:
    with crowd_of(6) as crowd:
        yield crowd


def upgrade_and_use(url: URL, **arguments: Any) -> None:
    with engine_on(url, **arguments) as engine:
        migrate.upgrade(engine, naming=MOUNTED)
        assert migrate.check(engine, naming=MOUNTED) == ()
        TransportRepository(engine, naming=MOUNTED).publish("g", Event(kind="k"))
        LocalKvRepository(engine, naming=MOUNTED).put("k", b"v")
        LocalQueueRepository(engine, naming=MOUNTED).send("m")


def upgrade_as_serializable(url: URL) -> None:
    upgrade_and_use(url, isolation_level="SERIALIZABLE")


def upgrade_in_a_transaction(url: URL) -> None:
    with engine_on(url) as engine, engine.begin() as connection:
        migrate.upgrade(connection, naming=MOUNTED)


def open_all(url: URL) -> None:
    for kind in (TransportRepository, LocalKvRepository, LocalQueueRepository):
        kind.open(url).close()


def look_and_create(url: URL) -> None:
    """What plain Alembic does: no lock, and IF NOT EXISTS does not help where two create at once."""
    execute(url, "BEGIN; CREATE TABLE IF NOT EXISTS t (id BIGINT); SELECT pg_sleep(1); COMMIT")


def _shown(url: URL) -> str:
    return url.render_as_string(hide_password=False)


@pytest.mark.parametrize("level", LEVELS)
def test_six_processes_upgrade_one_empty_database_at_once(crowd: Crowd, whole: Schema, level: str) -> None:
    for _ in range(2):
        url = postgres.empty_database()
        execute(url, f"ALTER DATABASE {url.database} SET default_transaction_isolation = '{level}'")
        deeds: list[tuple[Callable[..., None], tuple[Any, ...]]] = [
            (upgrade_and_use, (url,)),
            (open_all, (url,)),
            (upgrade_as_serializable, (url,)),
        ]
        assert crowd.do(*deeds) == []
        assert catalog(url) == whole
        assert execute(url, "SELECT count(*) FROM qstore_alembic_version") == [(3,)]
        assert execute(url, "SELECT count(*) FROM qstore_transport_messages") == [(4,)]


@pytest.mark.parametrize("level", LEVELS)
def test_six_processes_upgrade_in_transactions_of_their_own(crowd: Crowd, whole: Schema, level: str) -> None:
    """At a level whose snapshot is taken before the lock is had, only StoreBusy may say so."""
    url = postgres.empty_database()
    execute(url, f"ALTER DATABASE {url.database} SET default_transaction_isolation = '{level}'")
    failed = crowd.do((upgrade_in_a_transaction, (url,)))
    if level == "read committed":
        assert failed == []
    assert [each for each in failed if "qstore.errors.StoreBusy" not in each] == []
    assert catalog(url) == whole


def test_the_trap_is_real_creating_without_the_lock_fails_together(crowd: Crowd) -> None:
    failed: list[str] = []
    for _ in range(10):
        failed += crowd.do((look_and_create, (postgres.empty_database(),)))
        if failed:
            break
    assert any("UniqueViolation" in each for each in failed), failed


@pytest.mark.parametrize("driver", ["psycopg", "asyncpg"])
def test_six_tasks_upgrade_at_once(whole: Schema, driver: str) -> None:
    url = postgres.empty_database()

    async def work() -> None:
        engine = create_async_engine(url.set(drivername=f"postgresql+{driver}"))
        try:
            await asyncio.gather(*(migrate.upgrade_async(engine, naming=MOUNTED) for _ in range(6)))
        finally:
            await engine.dispose()

    asyncio.run(work())
    assert catalog(url) == whole


def test_an_upgrade_waits_for_one_in_a_transaction_that_is_still_open() -> None:
    url = postgres.empty_database()
    with engine_on(url) as engine, engine.connect() as connection:
        migrate.upgrade(connection, naming=MOUNTED)
        other = threading.Thread(target=migrate.upgrade, args=(engine,), kwargs={"naming": Naming("other_")})
        other.start()
        other.join(0.3)
        assert other.is_alive()
        connection.rollback()
        other.join(30)
        assert not other.is_alive()
    assert tables(url) == {name.replace("qstore_", "other_") for name in tables(postgres.database())}
