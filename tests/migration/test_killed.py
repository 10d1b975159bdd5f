"""A process that dies inside a revision leaves the database as before it or as after it, never between. H20."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, event

from qstore import migrate
from tests.backends import MOUNTED
from tests.migration.file_state import dump, schema, table_names
from tests.migration.seed_files import STORES, make, make_newest, rows, run, statements
from tests.migration.ways_in import host_engine, open_store, qstore_engine

Deed = Callable[[Path, str], None]


def host_mounts(path: Path, _store: str) -> None:
    with host_engine(path) as engine:
        migrate.upgrade(engine, naming=MOUNTED)


def host_unmounts(path: Path, _store: str) -> None:
    with host_engine(path) as engine:
        migrate.downgrade(engine, naming=MOUNTED, drop_data=True)


def upgrades(path: Path, store: str) -> None:
    with qstore_engine(path) as engine:
        migrate.upgrade(engine, stores=[store])


def opens(path: Path, store: str) -> None:
    open_store(path, store).close()


def runs_the_seeds_statements_one_by_one(path: Path, store: str) -> None:
    with host_engine(path) as engine, engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        for statement in statements(store):
            connection.exec_driver_sql(statement)


def dying_at_every_statement(deed: Deed, path: Path, store: str, at: str) -> int:
    """Do it on `<path>.<n>` in a process that is killed before or after its n-th statement. How many n there were."""
    queue = get_context("spawn").SimpleQueue()
    process = get_context("spawn").Process(target=_die_at_every_statement, args=(deed, str(path), store, at, queue))
    process.start()
    process.join(100)
    assert process.exitcode == 0
    count: int = queue.get()
    queue.close()
    return count


def _die_at_every_statement(deed: Deed, path: str, store: str, at: str, answer: Any) -> None:
    seen = 0
    dies_at = 0

    def on_statement(*_: object) -> None:
        nonlocal seen
        seen += 1
        if seen == dies_at:
            os.kill(os.getpid(), signal.SIGKILL)

    event.listen(Engine, at, on_statement)
    while True:
        dies_at += 1
        child = os.fork()  # this process has no thread, and no connection
        if child == 0:
            deed(Path(f"{path}.{dies_at}"), store)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        if os.WIFEXITED(status):
            break
    answer.put(dies_at - 1 if os.WEXITSTATUS(status) == 0 else -1)


@pytest.mark.parametrize(("deed", "at"), [(upgrades, "before_cursor_execute"), (opens, "after_cursor_execute")])
@pytest.mark.parametrize("store", STORES)
def test_a_native_store_is_there_whole_or_not_at_all_whenever_its_maker_dies(
    tmp_path: Path, store: str, deed: Deed, at: str
) -> None:
    whole = schema(make_newest(tmp_path / "whole", store))
    count = dying_at_every_statement(deed, tmp_path / "f", store, at)
    assert count > len(whole)
    for number in range(1, count + 1):
        path = tmp_path / f"f.{number}"
        assert table_names(path) == set(), number
        deed(path, store)
        assert schema(path) == whole


@pytest.mark.parametrize("at", ["before_cursor_execute", "after_cursor_execute"])
def test_mounted_stores_are_there_whole_or_not_at_all_whenever_their_maker_dies(tmp_path: Path, at: str) -> None:
    host_mounts(tmp_path / "whole", "")
    count = dying_at_every_statement(host_mounts, tmp_path / "f", "", at)
    assert count > 12
    for number in range(1, count + 1):
        path = tmp_path / f"f.{number}"
        assert table_names(path) == set(), number
        host_mounts(path, "")
        assert dump(path) == dump(tmp_path / "whole")


def test_mounted_stores_are_gone_or_still_whole_whenever_their_downgrade_dies(tmp_path: Path) -> None:
    host_mounts(tmp_path / "whole", "")
    run(tmp_path / "whole", "INSERT INTO qstore_localkv_kv VALUES ('k', x'00', NULL)")
    for number in range(1, 400):
        (tmp_path / f"f.{number}").write_bytes((tmp_path / "whole").read_bytes())
    count = dying_at_every_statement(host_unmounts, tmp_path / "f", "", "after_cursor_execute")
    assert 10 < count < 399
    for number in range(1, count + 1):
        path = tmp_path / f"f.{number}"
        assert dump(path) == dump(tmp_path / "whole"), number
        host_unmounts(path, "")
        assert table_names(path) == {"qstore_alembic_version"}


@pytest.mark.parametrize("store", STORES)
def test_a_store_of_the_seeds_keeps_every_row_whenever_its_adoption_dies(tmp_path: Path, store: str) -> None:
    seed = make(tmp_path / "seed", store, filled=True)
    for number in range(1, 150):
        (tmp_path / f"f.{number}").write_bytes(seed.read_bytes())
    count = dying_at_every_statement(opens, tmp_path / "f", store, "after_cursor_execute")
    assert 3 < count < 149
    for number in range(1, count + 1):
        path = tmp_path / f"f.{number}"
        assert rows(path, store) == rows(seed, store)
        opens(path, store)
        assert rows(path, store) == rows(seed, store)
        assert schema(path) == schema(seed)


@pytest.mark.parametrize("store", STORES)
def test_statements_without_a_transaction_leave_a_part_behind_which_open_completes(tmp_path: Path, store: str) -> None:
    """The trap is real: so do the seeds' own implementations, and plain Alembic on SQLite."""
    count = dying_at_every_statement(
        runs_the_seeds_statements_one_by_one, tmp_path / "f", store, "after_cursor_execute"
    )
    assert count == len(statements(store))
    whole = make(tmp_path / "seed", store)
    assert table_names(tmp_path / "f.1") != set()
    for number in range(1, count + 1):
        path = tmp_path / f"f.{number}"
        opens(path, store)
        assert schema(path) == schema(whole)
        assert rows(path, store) == rows(whole, store)
