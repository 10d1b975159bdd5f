"""`migrate.sql` prints a script that makes what the revisions make, for a database that others look after."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from qstore import NATIVE, InvalidInput, Naming, migrate
from tests.backends import MOUNTED
from tests.migration.file_state import dump, opened
from tests.migration.seed_files import STORES
from tests.migration.ways_in import host_engine, open_store, qstore_engine


def scripted(path: Path, script: str) -> Path:
    with opened(path) as connection:
        connection.executescript(script)
    return path


def folded(path: Path) -> list[str]:
    """The dump, white space aside: Alembic prints spaces where it creates with tabs."""
    return [" ".join(line.split()) for line in dump(path)]


@pytest.mark.parametrize("store", STORES)
def test_the_script_of_a_native_store_makes_what_upgrade_makes(tmp_path: Path, store: str) -> None:
    path = scripted(tmp_path / f"{store}.sqlite", migrate.sql(stores=[store]))
    with host_engine(tmp_path / "upgraded") as engine:
        migrate.upgrade(engine, stores=[store])
    assert folded(path) == folded(tmp_path / "upgraded")
    with qstore_engine(path) as engine:
        assert migrate.check(engine) == ()
        migrate.upgrade(engine)
    with closing(open_store(path, store, create=False)):
        assert folded(path) == folded(tmp_path / "upgraded")


@pytest.mark.parametrize("naming", [MOUNTED, Naming("Other_1")], ids=str)
def test_the_script_of_mounted_stores_makes_what_upgrade_makes(tmp_path: Path, naming: Naming) -> None:
    path = scripted(tmp_path / "scripted", migrate.sql("sqlite", naming=naming))
    with host_engine(tmp_path / "upgraded") as engine:
        migrate.upgrade(engine, naming=naming)
    assert folded(path) == folded(tmp_path / "upgraded")


def test_the_script_of_chosen_mounted_stores_makes_those(tmp_path: Path) -> None:
    path = scripted(tmp_path / "scripted", migrate.sql(naming=MOUNTED, stores=["localqueue", "transport"]))
    with host_engine(path) as engine:
        assert migrate.current(engine, naming=MOUNTED) == ("localqueue.v1.1", "transport.v1.1")
        assert migrate.check(engine, naming=MOUNTED, stores=["localqueue", "transport"]) == ()


def test_the_script_is_one_transaction() -> None:
    lines = migrate.sql(naming=MOUNTED).split("\n")
    said = [line for line in lines if line in ("BEGIN;", "BEGIN IMMEDIATE;", "COMMIT;")]
    assert said in (["BEGIN;", "COMMIT;"], ["BEGIN IMMEDIATE;", "COMMIT;"])


@pytest.mark.parametrize("stores", [None, ["localkv", "localqueue"], []])
def test_a_native_script_asks_for_one_store(stores: Any) -> None:
    with pytest.raises(InvalidInput, match="one of transport, localkv, localqueue") as refused:
        migrate.sql(naming=NATIVE, stores=stores)
    assert refused.value.field == "stores"


@pytest.mark.parametrize("dialect", ["oracle", "", "SQLite"])
def test_an_unknown_dialect_is_refused_by_name(dialect: str) -> None:
    with pytest.raises(InvalidInput, match="sqlite") as refused:
        migrate.sql(dialect, naming=MOUNTED)
    assert refused.value.field == "dialect"
