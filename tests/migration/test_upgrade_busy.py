"""A host whose BEGIN itself waits for the write lock is told in qstore's errors, as by the repositories."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine, event
from sqlalchemy.orm import Session

from qstore import StoreBusy, migrate
from tests.backends import MOUNTED


@pytest.mark.parametrize("bound", ["Session", "Connection"])
def test_an_upgrade_in_a_transaction_that_cannot_begin_is_store_busy(tmp_path: Path, bound: str) -> None:
    engine = create_engine(f"sqlite:///{tmp_path / 'host.db'}", connect_args={"timeout": 0.05})

    @event.listens_for(engine, "begin")
    def begin(connection: Any) -> None:
        connection.exec_driver_sql("BEGIN IMMEDIATE")

    with closing(sqlite3.connect(tmp_path / "host.db", isolation_level=None)) as holder:
        holder.execute("BEGIN IMMEDIATE")
        with Session(engine) if bound == "Session" else engine.connect() as bind, pytest.raises(StoreBusy):
            migrate.upgrade(bind, naming=MOUNTED)
    engine.dispose()
