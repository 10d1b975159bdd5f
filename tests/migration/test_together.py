"""Any number of processes and threads may open or upgrade the same new store at the same instant."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from qstore import NATIVE, migrate
from tests.backends import MOUNTED
from tests.migration.crowd import Crowd, crowd_of
from tests.migration.file_state import opened, schema
from tests.migration.seed_files import FILLING, STORES, make, make_newest, rows
from tests.migration.ways_in import REPOSITORIES, host_engine, open_store, qstore_engine

ROUNDS = 4


@pytest.fixture(scope="module")
def crowd() -> Iterator[Crowd]:
    with crowd_of(12) as crowd:
        yield crowd


def open_it(path: Path, store: str) -> None:
    with open_store(path, store) as repository:
        use(repository, store)


def upgrade_it(path: Path, store: str) -> None:
    with qstore_engine(path) as engine:
        migrate.upgrade(engine, stores=[store])
        assert migrate.check(engine) == ()


def host_upgrades_native(path: Path, store: str) -> None:
    with host_engine(path) as engine:
        migrate.upgrade(engine, stores=[store])
        assert migrate.check(engine, stores=[store]) == ()


def host_upgrades(path: Path) -> None:
    with host_engine(path) as engine:
        migrate.upgrade(engine, naming=MOUNTED)
        assert migrate.check(engine, naming=MOUNTED) == ()
        for store in STORES:
            use(REPOSITORIES[store](engine, naming=MOUNTED), store)


def host_upgrades_within_its_transaction(path: Path) -> None:
    with host_engine(path) as engine, engine.connect() as connection:
        migrate.upgrade(connection, naming=MOUNTED)
        connection.commit()


def use(repository: Any, store: str) -> None:
    """A write, to see that the store is whole."""
    if store == "transport":
        repository.claim("w", 1)
    elif store == "localkv":
        repository.put("k", b"v")
    else:
        repository.purge()


def look_and_create(path: Path) -> None:
    """What plain Alembic does: it looks, plans for a while, then creates, and takes the write lock only there."""
    with opened(path) as connection:
        if not connection.execute("SELECT * FROM sqlite_master").fetchall():
            time.sleep(0.05)
            connection.execute("CREATE TABLE t (id INTEGER)")


@pytest.mark.parametrize("deed", [open_it, upgrade_it, host_upgrades_native])
@pytest.mark.parametrize("store", STORES)
def test_twelve_processes_make_one_new_store(
    tmp_path: Path, crowd: Crowd, store: str, deed: Callable[[Path, str], None]
) -> None:
    whole = make_newest(tmp_path / "whole", store)
    for number in range(ROUNDS):
        path = tmp_path / f"{number}.sqlite"
        assert crowd.do((deed, (path, store))) == []
        assert schema(path) == schema(whole)
        with opened(path) as connection:
            assert len(connection.execute("SELECT * FROM qstore_alembic_version").fetchall()) == 1


@pytest.mark.parametrize("store", STORES)
def test_twelve_processes_adopt_one_store_of_the_seeds(tmp_path: Path, crowd: Crowd, store: str) -> None:
    for number, journal_mode in enumerate(["delete", "wal"] * 2):
        path = make(tmp_path / f"{number}.sqlite", store, journal_mode=journal_mode, filled=True)
        before = rows(path, store)
        assert crowd.do((upgrade_it, (path, store)), (host_upgrades_native, (path, store))) == []
        assert rows(path, store) == before


@pytest.mark.parametrize("store", STORES)
def test_twelve_processes_in_a_mix_of_ways_make_one_new_store(tmp_path: Path, crowd: Crowd, store: str) -> None:
    for number in range(ROUNDS):
        path = tmp_path / f"{number}.sqlite"
        deeds = [(deed, (path, store)) for deed in (open_it, upgrade_it, host_upgrades_native)]
        assert crowd.do(*deeds) == []
        assert schema(path) == schema(make_newest(tmp_path / f"whole {number}", store))


def test_twelve_processes_mount_all_stores_in_one_host_database_and_use_them(tmp_path: Path, crowd: Crowd) -> None:
    for number in range(ROUNDS):
        path = tmp_path / f"{number}.db"
        assert crowd.do((host_upgrades, (path,)), (host_upgrades_within_its_transaction, (path,))) == []
        with host_engine(path) as engine:
            assert migrate.check(engine, naming=MOUNTED) == ()
            assert len(migrate.current(engine, naming=MOUNTED)) == 3


def test_a_look_and_a_create_without_the_lock_fail_together(tmp_path: Path, crowd: Crowd) -> None:
    failed = [crowd.do((look_and_create, (tmp_path / f"{number}.db",))) for number in range(3)]
    assert any("already exists" in each for round_ in failed for each in round_)


def test_eight_threads_open_eight_new_stores_and_one_more_together(tmp_path: Path) -> None:
    """Alembic's `op` and `context` are one per process: threads that used them would take them from each other."""
    for number in range(ROUNDS):
        directory = tmp_path / str(number)
        directory.mkdir()
        assert failures_of_threads(directory) == []
        for own in range(8):
            store = STORES[own % 3]
            assert schema(directory / f"own {own}") == schema(make_newest(directory / f"whole {own}", store))
        assert schema(directory / "shared") == schema(make_newest(directory / "whole", "localqueue"))


def failures_of_threads(directory: Path) -> list[BaseException]:
    together = threading.Barrier(8)
    failed: list[BaseException] = []

    def work(own: int) -> None:
        try:
            together.wait(30)
            open_it(directory / f"own {own}", STORES[own % 3])
            together.wait(30)
            open_it(directory / "shared", "localqueue")
        except BaseException as error:  # noqa: BLE001  told by the caller
            failed.append(error)
            together.abort()

    threads = [threading.Thread(target=work, args=(own,)) for own in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return failed


def test_an_upgrade_waits_for_a_writer(tmp_path: Path) -> None:
    path = make(tmp_path / "localkv.sqlite", "localkv", journal_mode="wal")
    with opened(path) as writer, qstore_engine(path) as engine:
        writer.execute("BEGIN IMMEDIATE")
        writer.execute(*FILLING["localkv"][0])
        upgrade = threading.Thread(target=migrate.upgrade, args=(engine,), kwargs={"naming": NATIVE})
        upgrade.start()
        upgrade.join(0.3)
        assert upgrade.is_alive()
        writer.execute("COMMIT")
        upgrade.join(30)
        assert not upgrade.is_alive()
        assert migrate.current(engine) == ("localkv.v1",)
    assert rows(path, "localkv")["kv"] == [("k", b"\x00\xff", None)]
