"""Engines for callers who have none yet, and what a back end's own errors mean."""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass

from sqlalchemy import Engine

from qstore.engines import sqlite
from qstore.engines.results import ERRORS, translate, translated
from qstore.engines.sqlite import Durability
from qstore.engines.target import Target, of_file
from qstore.errors import BackendUnsupported

__all__ = [
    "ERRORS",
    "Checkpoint",
    "Durability",
    "Target",
    "checkpoint",
    "described",
    "driver_reachable",
    "open_engine",
    "opened_path",
    "read_only",
    "translate",
    "translated",
]


def open_engine(target: Target, *, read_only: bool = False, durability: Durability = "full") -> Engine:
    """Open an engine on a database, with the settings that the stores are made for.

    A path opens exactly that file. SQLite: write-ahead log, a wait of up to 5 s for the write lock, foreign keys on,
    and `synchronous=FULL` (a commit outlives a power cut) or, with `durability="normal"`, NORMAL (it outlives a crash
    of the process, and a power cut may take back the newest). `read_only` never creates or changes the file. The
    file is opened with the first connection; FormatError there if it is no database, and nothing is changed then.
    """
    url = of_file(target)
    return sqlite.create(url.database or "", read_only=read_only, durability=durability)


def opened_path(engine: Engine) -> str | None:
    """The path of the file, if the engine is one that `open_engine` made."""
    path: str | None = engine.get_execution_options().get("qstore_path")
    return path


def described(engine: Engine) -> str:
    """The database's name for messages: the file, or the URL without its password."""
    return opened_path(engine) or engine.url.render_as_string(hide_password=True)


def driver_reachable(engine: Engine) -> bool:
    """Whether statements may run on the driver's connection itself.

    They may on an engine that `open_engine` made. Where somebody listens (tracing, a log of statements) they go through
    SQLAlchemy, which tells them of each one.
    """
    return opened_path(engine) is not None and not engine._has_events and not engine._should_log_info()


def read_only(engine: Engine) -> bool:
    """Whether the engine was opened with `read_only=True`."""
    return bool(engine.get_execution_options().get("qstore_read_only", False))


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """What a checkpoint came to. `busy`: a reader held it up, so that some of the log remains."""

    busy: bool
    log_pages: int
    done_pages: int


def checkpoint(engine: Engine) -> Checkpoint:
    """Write SQLite's log back into the file and cut it to nothing, as far as readers let it."""
    with engine.connect() as connection:
        driver = connection.connection.driver_connection
        if not isinstance(driver, sqlite3.Connection):
            raise BackendUnsupported(f"expected a SQLite engine, which has a log to write back, found {engine.name}")
        with translated(described(engine)):
            busy, log_pages, done_pages = driver.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    return Checkpoint(bool(busy), int(log_pages), int(done_pages))
