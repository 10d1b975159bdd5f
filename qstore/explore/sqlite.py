"""What will hurt about a SQLite file, or about a host's engine on it."""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Callable, Iterator

from sqlalchemy import Connection, Engine, inspect
from sqlalchemy.exc import DBAPIError

from qstore.engines import in_one_line, log_size, on_turso
from qstore.engines.files import FLOOR

__all__ = ["IN_MEMORY", "looks"]

Look = Callable[[Connection], Iterator[str]]

IN_MEMORY = (
    "the database is in memory: each connection has another one, or all share one connection, and nothing outlives the"
    " process; use a file, in a temporary directory for tests"
)

NETWORK = {
    "nfs",
    "nfs4",
    "cifs",
    "smb3",
    "smbfs",
    "9p",
    "afs",
    "ceph",
    "glusterfs",
    "lustre",
    "fuse.sshfs",
    "fuse.s3fs",
}

LARGE_LOG = 8 * 1024 * 1024
"""Bytes: four times what a log grows to before SQLite writes it back."""

READ_LOCKS = range(123, 128)
"""The bytes of a file's index (`-shm`) that SQLite locks for as long as a connection reads."""


def looks(engine: Engine, *, own: bool) -> Iterator[tuple[str, Look]]:
    """What is looked at, by kind. `own`: the engine is a host's, and not opened by qstore to look."""
    path = engine.url.database or ""
    yield "old SQLite", lambda _: _version()
    yield "not in WAL", _journal
    yield "network", lambda _: _network(path)
    yield "pinned log", lambda _: _pinned(path, engine)
    if on_turso(engine.url):
        yield "unreadable", _texts
    if own:
        yield "no busy timeout", _busy_timeout
        yield "deferred", lambda _: _deferred(engine)


def _version() -> Iterator[str]:
    if sqlite3.sqlite_version_info < FLOOR:
        floor = ".".join(map(str, FLOOR))
        yield f"SQLite {sqlite3.sqlite_version} is too old: qstore needs {floor}; use a newer Python"


def _journal(connection: Connection) -> Iterator[str]:
    mode = connection.exec_driver_sql("PRAGMA journal_mode").scalar()
    if mode != "wal":
        yield (
            f"the file is not in WAL but in journal mode {mode}: a reader keeps writers waiting, and a writer readers;"
            " PRAGMA journal_mode = WAL changes it for good (qstore does that when it opens a store to write)"
        )


def _network(path: str) -> Iterator[str]:
    kind = _file_system(path)
    if kind in NETWORK:
        yield f"the file is on a network file system ({kind}), where SQLite's log cannot work; move it to a local disk"


def _file_system(path: str) -> str | None:
    """The kind of file system that a path is on, where the system tells (Linux)."""
    found, longest = None, -1
    try:
        with open("/proc/mounts", encoding="utf-8", errors="replace") as mounts:
            for line in mounts:
                _, point, kind, *_ = line.split(" ")
                point = point.replace("\\040", " ")
                inside = os.path.realpath(path).startswith(point.rstrip("/") + "/")
                if inside and len(point) >= longest:
                    found, longest = kind, len(point)
    except OSError:
        return None
    return found


def _texts(connection: Connection) -> Iterator[str]:
    """What turso alone cannot read."""
    for table in inspect(connection).get_table_names():
        for column in inspect(connection).get_columns(table):
            try:
                connection.exec_driver_sql(f'SELECT max(length("{column["name"]}")) FROM "{table}"')
            except DBAPIError as error:
                yield (
                    f"{table}.{column['name']} has a text that turso cannot read ({in_one_line(error)}): a claim"
                    " or receive of its row fails. Open the file with SQLite instead, and mend the text or remove it"
                )


def _pinned(path: str, engine: Engine) -> Iterator[str]:
    size = log_size(engine)
    if size < LARGE_LOG:
        return
    readers = _readers(path)
    for _ in range(5):
        time.sleep(0.1)
        readers &= _readers(path)
    megabytes = f"{size / 1_000_000:,.0f} MB"
    if not readers:
        yield (
            f"the log beside the file has grown to {megabytes}; nobody was seen to hold it, and"
            " qstore.checkpoint(engine) cuts it"
        )
    for process in sorted(readers):
        yield (
            f"the log beside the file has grown to {megabytes}, and process {process}{_name(process)} keeps it from"
            " being written back: it has a read open that does not end; drain its cursor, or end its transaction"
        )


def _readers(path: str) -> set[int]:
    """The processes that have a read open. The system is asked who holds which lock: the file itself is not opened."""
    found = set[int]()
    try:
        inode = os.stat(path + "-shm").st_ino
        with open("/proc/locks", encoding="utf-8") as locks:
            for line in locks:
                _, kind, _, mode, process, file, start, _ = line.replace("-> ", "").split()
                held = kind == "POSIX" and mode == "READ" and file.rpartition(":")[2] == str(inode)
                if held and int(start) in READ_LOCKS:
                    found.add(int(process))
    except (OSError, ValueError):
        return set()
    return found


def _name(process: int) -> str:
    try:
        with open(f"/proc/{process}/cmdline", encoding="utf-8", errors="replace") as command:
            words = command.read().replace("\0", " ").strip()
    except OSError:
        return ""
    return f" ({words if len(words) <= 60 else words[:59] + '…'})" if words else ""


def _busy_timeout(connection: Connection) -> Iterator[str]:
    wait = connection.exec_driver_sql("PRAGMA busy_timeout").scalar() or 0
    if wait < 1000:
        yield (
            f"the engine's connections wait {wait} ms for the write lock, so that two writers at a time fail;"
            ' create_engine(…, connect_args={"timeout": 5})'
        )


def _deferred(engine: Engine) -> Iterator[str]:
    """Look at how a transaction of the engine's begins, on a connection that is thrown away afterwards."""
    with engine.connect() as connection:
        driver = connection.connection.driver_connection
        connection.detach()
        if not isinstance(driver, sqlite3.Connection):
            return
        begun: list[str] = []
        driver.set_trace_callback(begun.append)
        with connection.begin():
            pass
        driver.set_trace_callback(None)
    words = [each.upper().split() for each in begun]
    if any(each[0] == "BEGIN" and each[1:2] != ["IMMEDIATE"] and each[1:2] != ["EXCLUSIVE"] for each in words):
        yield (
            "the engine's transactions begin deferred (BEGIN): one that reads, and then writes after another connection"
            " wrote, fails at once; take the write lock first (qstore.write_session, or BEGIN IMMEDIATE)"
        )
