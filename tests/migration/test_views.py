"""transport.v1.2, localqueue.v1.2 and localkv.v1.1: views in a file of one store, and nothing in a host's database."""

from __future__ import annotations

from pathlib import Path

import pytest

from qstore import FormatError, migrate
from tests.backends import MOUNTED
from tests.migration.alembic_command import alembic
from tests.migration.file_state import created_views, schema
from tests.migration.seed_files import NEWEST, VIEWS, make, make_newest, rows, run
from tests.migration.ways_in import host_engine, open_store, qstore_engine

STORES = tuple(VIEWS)
BEFORE = {"transport": "transport.v1.1", "localkv": "localkv.v1", "localqueue": "localqueue.v1.1"}


def before(path: Path, store: str) -> Path:
    """A store that is noted at the revision before, with rows."""
    make(path, store, filled=True)
    with qstore_engine(path) as engine:
        migrate.upgrade(engine, stores=[store])
    assert alembic("-x", f"url={path}", "downgrade", BEFORE[store], cwd=path.parent).returncode == 0
    return path


@pytest.mark.parametrize("store", STORES)
def test_up_and_down_again_and_a_store_at_the_revision_before_is_whole(tmp_path: Path, store: str) -> None:
    path = before(tmp_path / f"{store}.sqlite", store)
    kept = rows(path, store)
    for _ in range(2):
        assert created_views(path) == ()
        with qstore_engine(path) as engine:
            assert migrate.current(engine) == (BEFORE[store],)
            assert migrate.check(engine) == ()
            migrate.stamp(engine)
            assert migrate.current(engine) == (BEFORE[store],), "what it does not have is not noted"
            open_store(path, store).close()
            assert migrate.current(engine) == (BEFORE[store],), "opening leaves a store at its revision"
            migrate.upgrade(engine)
            assert migrate.current(engine) == (NEWEST[store],)
            assert migrate.check(engine) == ()
        assert schema(path) == schema(make_newest(tmp_path / "whole", store))
        assert sorted(created_views(path)) == sorted(VIEWS[store])
        assert rows(path, store) == kept
        assert alembic("-x", f"url={path}", "downgrade", "-1", cwd=tmp_path).returncode == 0
        (tmp_path / "whole").unlink()


@pytest.mark.parametrize("store", STORES)
def test_a_view_that_was_lost_is_told_of_and_made_again(tmp_path: Path, store: str) -> None:
    path = tmp_path / f"{store}.sqlite"
    open_store(path, store).close()
    for again in (migrate.upgrade, migrate.repair):
        run(path, f"DROP VIEW {VIEWS[store][0]}", journal_mode="wal")
        with qstore_engine(path) as engine:
            assert VIEWS[store][0] in " ".join(migrate.check(engine))
            again(engine)
            assert migrate.check(engine) == ()
        assert sorted(created_views(path)) == sorted(VIEWS[store])


@pytest.mark.parametrize("store", STORES)
def test_a_view_of_that_name_that_is_somebody_elses_is_refused(tmp_path: Path, store: str) -> None:
    path = before(tmp_path / f"{store}.sqlite", store)
    run(path, f"CREATE VIEW {VIEWS[store][0]} AS SELECT 1 AS mine", journal_mode="wal")
    described = schema(path)
    with qstore_engine(path) as engine:
        with pytest.raises(FormatError, match=VIEWS[store][0]):
            migrate.upgrade(engine)
        assert migrate.current(engine) == (BEFORE[store],)
    assert schema(path) == described


def test_a_hosts_database_gets_none(tmp_path: Path) -> None:
    with host_engine(tmp_path / "host.sqlite") as engine:
        migrate.upgrade(engine, naming=MOUNTED)
        assert migrate.current(engine, naming=MOUNTED) == tuple(sorted(NEWEST.values()))
        assert migrate.check(engine, naming=MOUNTED) == ()
    assert created_views(tmp_path / "host.sqlite") == ()
    assert "VIEW" not in migrate.sql(naming=MOUNTED)
    assert all(f"VIEW IF NOT EXISTS {view}" in migrate.sql(stores=[store]) for store in STORES for view in VIEWS[store])


def test_the_trap_is_real_a_view_stands_in_the_way_of_a_rebuilt_table(tmp_path: Path) -> None:
    """Why a host's database gets none: Alembic's batch mode drops a table and renames another one to its name."""
    path = tmp_path / "transport.sqlite"
    open_store(path, "transport").close()
    rebuild = ("CREATE TABLE other AS SELECT * FROM groups", "DROP TABLE groups", "ALTER TABLE other RENAME TO groups")
    with pytest.raises(Exception, match="error in view qstore_groups_view"):
        run(path, *rebuild, journal_mode="wal")
