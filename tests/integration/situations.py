"""Real situations on real files: locks that are held, hosts of every make, programs of their own."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, create_engine, event

from qstore import LocalKvRepository, LocalQueueRepository, TransportRepository, open_engine

ROOT = Path(__file__).parents[2]

STORES = {"transport": TransportRepository, "localkv": LocalKvRepository, "localqueue": LocalQueueRepository}


def new_store(directory: Path, store: str) -> Path:
    """The file of a new store that nobody has open."""
    path = directory / f"{store}.sqlite"
    kind: Any = STORES[store]
    kind.open(path if store == "transport" else directory).close()
    return path


def plain(path: Path, timeout: float = 0, uri: str = "") -> closing[sqlite3.Connection]:
    """A connection of the standard library's, that begins no transaction by itself."""
    target = f"file:{path}?{uri}" if uri else str(path)
    return closing(sqlite3.connect(target, timeout=timeout, isolation_level=None, uri=bool(uri)))


@contextmanager
def write_lock_held(path: Path) -> Iterator[None]:
    """Another connection holds the write lock."""
    with plain(path) as holder:
        holder.execute("BEGIN IMMEDIATE")
        yield
        holder.execute("ROLLBACK")


@contextmanager
def reader_open(path: Path) -> Iterator[sqlite3.Connection]:
    """Another connection reads, and leaves its transaction open."""
    with plain(path) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM sqlite_master").fetchall()
        yield reader
        reader.execute("ROLLBACK")


def on_each_connection(engine: Engine, act: Callable[[sqlite3.Connection], object]) -> None:
    """Do something to each new connection of the pool. The engine counts as not listened to: it is the pool that is."""
    event.listen(engine, "connect", lambda connection, _record: act(connection))


def waiting_at_most(engine: Engine, milliseconds: int) -> Engine:
    """The engine, with another wait for locks than five seconds."""
    on_each_connection(engine, lambda connection: connection.cursor().execute(f"PRAGMA busy_timeout = {milliseconds}"))
    return engine


def watched_engine(path: Path) -> Engine:
    """An engine of qstore's that somebody listens to."""
    engine = open_engine(path)
    event.listen(engine, "before_cursor_execute", lambda *_: None)
    return engine


def host_engine(path: Path, **arguments: Any) -> Engine:
    """An engine as a host makes it, with SQLAlchemy's defaults."""
    return create_engine(f"sqlite:///{path}", **arguments)


def recipe_engine(path: Path, begin: str = "BEGIN") -> Engine:
    """A host's engine with SQLAlchemy's documented recipe for transactions on SQLite."""
    engine = host_engine(path)
    on_each_connection(engine, lambda connection: setattr(connection, "isolation_level", None))

    def begun(connection: Connection) -> None:
        connection.exec_driver_sql(begin)

    event.listen(engine, "begin", begun)
    return engine


def autocommit_engine(path: Path) -> Engine:
    """A host's engine that commits each statement by itself."""
    return host_engine(path, isolation_level="AUTOCOMMIT")


@contextmanager
def disposed(engine: Engine) -> Iterator[Engine]:
    """The engine, without connections at the end."""
    try:
        yield engine
    finally:
        engine.dispose()


ENGINES: dict[str, Callable[[Path], Engine]] = {
    "opened": open_engine,
    "watched": watched_engine,
    "host": host_engine,
    "recipe": recipe_engine,
    "autocommit": autocommit_engine,
}


@contextmanager
def mounted_disk(directory: Path, size: str) -> Iterator[Path]:
    """A disk of so many bytes, as `mount` writes them, on a new directory. Skips the test where there can be none."""
    directory.mkdir()
    if sys.platform != "linux" or os.geteuid() != 0:
        pytest.skip("only root on Linux can mount a small disk")
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(directory)]
    mounted = subprocess.run(mount, capture_output=True, text=True, timeout=30, check=False)
    if mounted.returncode:
        pytest.skip(f"a small disk cannot be mounted here: {mounted.stderr.strip()}")
    try:
        yield directory
    finally:
        subprocess.run(["umount", "--lazy", str(directory)], timeout=30, check=True)


def run_python(program: str, *arguments: object, timeout: float = 60) -> subprocess.CompletedProcess[str]:
    """Run a program in a Python of its own, with warnings as errors, and wait for it to end."""
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", program, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=timeout,
        cwd=ROOT,
        check=False,
    )


def output_of(program: str, *arguments: object, timeout: float = 60) -> str:
    """What a program prints. It must end well."""
    ended = run_python(program, *arguments, timeout=timeout)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout
