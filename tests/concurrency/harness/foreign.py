"""Other programs beside a round's processes: who reads for long, who keeps the write lock, who migrates under way."""

from __future__ import annotations

import sqlite3
import time
from contextlib import closing, suppress
from pathlib import Path

import psycopg
from sqlalchemy import make_url, text
from sqlalchemy.exc import OperationalError

from qstore import NATIVE, StoreBusy, StoreFull, migrate, open_engine, write_session
from qstore.formats import ADDITIONS, FORMATS
from tests import postgres
from tests.backends import MOUNTED
from tests.concurrency.processes import Ready

__all__ = ["lock_on_a_server", "lock_write", "migrate_to_and_fro", "pin", "pin_on_a_server"]


def pin(ready: Ready, path: Path, seconds: float) -> None:
    """Read, and leave the transaction open: the log cannot be written back meanwhile."""
    with closing(sqlite3.connect(path, timeout=5, isolation_level=None)) as connection:
        connection.execute("BEGIN")
        connection.execute("SELECT count(*) FROM sqlite_master").fetchall()
        ready()
        time.sleep(seconds)
        connection.execute("COMMIT")


def lock_write(ready: Ready, path: Path, seconds: float) -> None:
    """Keep the write lock."""
    with closing(sqlite3.connect(path, timeout=5, isolation_level=None)) as connection:
        ready()
        with suppress(sqlite3.OperationalError):  # it was not to be had
            connection.execute("BEGIN IMMEDIATE")
            time.sleep(seconds)
            connection.execute("ROLLBACK")


def migrate_to_and_fro(ready: Ready, path: Path, seconds: float) -> None:
    """Take what a store's newer revisions have added out of it and put it in again, while others use it."""
    engine = open_engine(path)
    ends = time.monotonic() + seconds
    ready()
    while time.monotonic() < ends:
        with suppress(StoreBusy, StoreFull, OperationalError):  # what a session's own commit says of a full disk
            with write_session(engine) as session:
                if addition := ADDITIONS.get(path.stem):
                    for statement in addition.drop(NATIVE.of(path.stem)):
                        session.execute(text(statement))
                session.execute(text(f"UPDATE qstore_alembic_version SET version_num = '{FORMATS[path.stem].marker}'"))
                session.commit()
            migrate.upgrade(engine)
    engine.dispose()


def pin_on_a_server(ready: Ready, url: str, seconds: float) -> None:
    """Keep an old snapshot: dead rows stay."""
    with suppress(psycopg.Error), postgres.connect(make_url(url)) as connection:
        connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        connection.execute("SELECT count(*) FROM pg_class")
        ready()
        time.sleep(seconds)


def lock_on_a_server(ready: Ready, url: str, seconds: float) -> None:
    """Keep everybody from writing messages."""
    with suppress(psycopg.Error), postgres.connect(make_url(url)) as connection:
        connection.execute("BEGIN")
        connection.execute(MOUNTED.of("transport").render("LOCK TABLE {messages} IN EXCLUSIVE MODE").encode())
        ready()
        time.sleep(seconds)
