"""What qstore makes of turso's driver: one like sqlite3, whose connections share one of turso's."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from qstore.engines.guard import turso_has
from qstore.engines.results import unsure
from qstore.engines.turso.driver import Connection
from qstore.engines.turso.errors import as_sqlite
from tests.concurrency.processes import children
from tests.concurrency.turso_workers import hold_open


@pytest.fixture
def connection(tmp_path: Path) -> Iterator[Connection]:
    """A driver's connection to a new file with a table."""
    with closing(Connection(str(tmp_path / "file.sqlite"))) as connection:
        connection.execute("CREATE TABLE t (id INTEGER PRIMARY KEY AUTOINCREMENT, value)")
        yield connection


def test_what_returns_rows_is_done_without_a_fetch(connection: Connection) -> None:
    connection.execute("INSERT INTO t (value) VALUES (1), (2) RETURNING id")
    connection.execute("UPDATE t SET value = 3 RETURNING id")
    assert connection.execute("SELECT value FROM t").fetchall() == [(3,), (3,)]
    connection.execute("DELETE FROM t WHERE id = 1 RETURNING id")
    assert connection.execute("SELECT id FROM t").fetchall() == [(2,)]


def test_counts_and_ids_are_as_with_sqlite3(connection: Connection, tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "other.sqlite", isolation_level=None)) as other:
        other.execute("CREATE TABLE t (id INTEGER PRIMARY KEY AUTOINCREMENT, value)")
        for sql in (
            "INSERT INTO t (value) VALUES (1)",
            "INSERT INTO t (value) VALUES (1), (2), (3)",
            "UPDATE t SET value = 5 WHERE value = 1",
            "DELETE FROM t WHERE value = 3",
            "INSERT INTO t (id, value) VALUES (1, 1) ON CONFLICT (id) DO NOTHING",
            "INSERT INTO t (id, value) VALUES (1, 1) ON CONFLICT (id) DO UPDATE SET value = 9",
            "SELECT * FROM t ORDER BY id",
            "-- nothing",
        ):
            ours, theirs = connection.execute(sql), other.execute(sql)
            assert (ours.fetchall(), ours.rowcount) == (theirs.fetchall(), theirs.rowcount), sql
            if sql.startswith("INSERT") and ours.rowcount:
                assert ours.lastrowid == theirs.lastrowid


@pytest.mark.parametrize("value", [b"", b"\x00\xff", bytes(range(256)) * 300, bytearray(b"a\0"), memoryview(b"b\0")])
def test_bytes_come_back_as_they_were(connection: Connection, value: Any) -> None:
    connection.execute("INSERT INTO t (value) VALUES (?)", (value,))
    assert connection.execute("SELECT value, typeof(value) FROM t").fetchall() == [(bytes(value), "blob")]


@pytest.mark.parametrize(
    ("sql", "values", "error"),
    [
        ("SELECT :a", {}, sqlite3.ProgrammingError),
        ("SELECT ?", (), sqlite3.ProgrammingError),
        ("SELECT ?", (1, 2), sqlite3.ProgrammingError),
        ("SELECT ?", (2**63,), OverflowError),
        ("SELECT ?", (object(),), sqlite3.ProgrammingError),
        ("SELECT ?", ("\ud800",), UnicodeEncodeError),
        ("SELECT 1; SELECT 2", (), sqlite3.ProgrammingError),
        ("SELECT nothing FROM t", (), sqlite3.OperationalError),
        ("INSERT INTO t (id) VALUES (1), (1)", (), sqlite3.IntegrityError),
    ],
)
def test_what_sqlite3_refuses_is_refused(connection: Connection, sql: str, values: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        connection.execute(sql, values)
    assert connection.execute("SELECT count(*) FROM t").fetchall() == [(0,)]


def test_connections_of_one_process_take_turns(tmp_path: Path, connection: Connection) -> None:
    with closing(Connection(str(tmp_path / "file.sqlite"))) as other:
        other.execute("PRAGMA busy_timeout = 50")
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("INSERT INTO t (value) VALUES (1)")
        assert not other.in_transaction
        with pytest.raises(sqlite3.OperationalError) as busy:
            other.execute("SELECT * FROM t")
        assert busy.value.sqlite_errorcode == sqlite3.SQLITE_BUSY
        threading.Timer(0.2, connection.rollback).start()
        other.execute("PRAGMA busy_timeout = 5000")
        assert other.execute("SELECT * FROM t").fetchall() == []


def test_a_schema_that_another_process_has_changed_is_seen_in_a_transaction(tmp_path: Path) -> None:
    path = tmp_path / "transport.sqlite"
    with closing(Connection(str(path))) as ours, children((hold_open, path, "turso")) as [other]:
        ours.execute("SELECT * FROM sqlite_master")
        other.wait_until_ready()
        ours.execute("BEGIN")
        assert ours.execute("SELECT count(*) FROM messages").fetchall() == [(1,)]
        ours.execute("COMMIT")
        other.go()
        other.result()


def test_a_closed_file_is_let_go_of_while_somebody_keeps_an_error(tmp_path: Path) -> None:
    """turso has the file open for as long as anything refers to its connection, such as an error's traceback."""
    with closing(Connection(str(tmp_path / "localkv.sqlite"))) as connection:
        with pytest.raises(sqlite3.OperationalError) as kept:
            connection.execute("SELECT * FROM nothing")
        connection.execute("CREATE TABLE t (x NOT NULL)")
        with pytest.raises(sqlite3.IntegrityError) as other:
            connection.execute("INSERT INTO t VALUES (NULL)")
    assert not turso_has(str(tmp_path / "localkv.sqlite"))
    assert kept.value.sqlite_errorcode != other.value.sqlite_errorcode


@pytest.mark.parametrize(
    ("said", "code"),
    [
        ("pwrite: ReadOnlyFilesystem", sqlite3.SQLITE_READONLY),
        ("pwritev: StorageFull", sqlite3.SQLITE_FULL),
        ("pread: Uncategorized", sqlite3.SQLITE_IOERR),
        ("sync: ReadOnlyFilesystem", sqlite3.SQLITE_IOERR_FSYNC),
        ("sync: StorageFull", sqlite3.SQLITE_IOERR_FSYNC),
    ],
)
def test_an_error_of_the_disk_has_sqlites_code_and_says_no_more_than_is_known(said: str, code: int) -> None:
    """What could not be synced may be on the disk all the same: it was not refused for want of room, or of leave."""
    error = type("IoError", (Exception,), {"__module__": "turso"})  # turso's own cannot be imported
    with pytest.raises(sqlite3.OperationalError, match=said) as caught, as_sqlite():
        raise error(said)
    assert caught.value.sqlite_errorcode == code
    assert unsure(caught.value) == (code & 0xFF == sqlite3.SQLITE_IOERR)
