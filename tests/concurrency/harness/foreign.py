"""Other programs beside a round's processes: who reads for long, who keeps the write lock, who migrates under way.

And who comes after one of them that was killed, and looks at what it has left.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable
from contextlib import closing, suppress
from functools import partial
from pathlib import Path

import psycopg
from sqlalchemy import Engine, event, make_url, text
from sqlalchemy.exc import OperationalError

from qstore import NATIVE, BackendUnsupported, FormatError, StoreBusy, StoreFull, migrate, write_session
from qstore.formats import ADDITIONS, FORMATS
from tests import postgres
from tests.backends import MOUNTED
from tests.concurrency.harness import broken
from tests.concurrency.harness.points import dying_at
from tests.concurrency.processes import Ready
from tests.migration.ways_in import qstore_engine

__all__ = ["lock_on_a_server", "lock_write", "look_after", "migrate_to_and_fro", "pin", "pin_on_a_server", "write_back"]

NOT_NOW = (StoreBusy, StoreFull, FormatError, BackendUnsupported, OperationalError)
"""Errors of a file that is locked, on a disk that is full, or on one that is read-only: whoever is told so goes."""

Point = tuple[str, int]


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


def write_back(ready: Ready, path: Path, how: str) -> None:
    """Write the log back into the database."""
    ready()
    with (
        suppress(sqlite3.OperationalError),  # others are at it
        closing(sqlite3.connect(path, timeout=5, isolation_level=None)) as connection,
    ):
        connection.execute(f"PRAGMA wal_checkpoint({how})").fetchall()


def migrate_to_and_fro(
    ready: Ready, path: Path, seconds: float, point: Point | None = None, variant: str | None = None
) -> None:
    """Take what a store's newer revisions have added out of it and put it in again, while others use it.

    With a point, until it comes there, and is killed.
    """
    if variant is not None:
        broken.VARIANTS[variant].apply(True)
    ready()
    ends = time.monotonic() + seconds
    trace = None if point is None else dying_at(*point)
    while time.monotonic() < ends:
        with suppress(*NOT_NOW), qstore_engine(path) as engine:
            if trace is not None:
                event.listen(engine, "connect", partial(_trace, trace))
            _to_and_fro(engine, path.stem, ends)


def _trace(callback: Callable[[str], None], driver: sqlite3.Connection, _: object) -> None:
    driver.set_trace_callback(callback)


def _to_and_fro(engine: Engine, store: str, ends: float) -> None:
    while time.monotonic() < ends:
        with write_session(engine) as session:
            if addition := ADDITIONS.get(store):
                for statement in addition.drop(NATIVE.of(store)):
                    session.execute(text(statement))
            session.execute(text(f"UPDATE qstore_alembic_version SET version_num = '{FORMATS[store].marker}'"))
            session.commit()
        migrate.upgrade(engine)


def look_after(ready: Ready, path: Path) -> list[str] | None:
    """Open a store that somebody was killed in, and bring it up to its newest revision. What is wrong before and after.

    None where the store cannot be had now.
    """
    ready()
    with suppress(*NOT_NOW), qstore_engine(path) as engine:
        with engine.connect() as connection:
            [whole] = connection.exec_driver_sql("PRAGMA integrity_check(1)").scalars()
        wrong = [*([] if whole == "ok" else [whole]), *migrate.check(engine)]
        migrate.upgrade(engine)
        return [f"left in the middle: {path.name}, {what}" for what in (*wrong, *migrate.check(engine))]
    return None


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
