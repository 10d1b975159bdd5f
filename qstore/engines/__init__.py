"""Engines for callers who have none yet, and what a back end's own errors mean."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from logging import INFO
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from sqlalchemy import URL, Engine

from qstore.capabilities import capabilities
from qstore.engines import postgresql, sqlite, turso
from qstore.engines.binds import Bind, engine_of, reading
from qstore.engines.companion import Companion, companion
from qstore.engines.files import TURSO, check_version, on_turso
from qstore.engines.looking import found
from qstore.engines.postgresql import beginning, commits_each, committing, connected, lent, upgrading
from qstore.engines.results import (
    ERRORS,
    conflict,
    described,
    in_one_line,
    opened_path,
    translate,
    translated,
    unsure,
)
from qstore.engines.sqlite import Durability, File
from qstore.engines.target import FileEngine, Target, of_file
from qstore.errors import BackendUnsupported, InvalidType
from qstore.naming import Naming

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncEngine

__all__ = [
    "ERRORS",
    "Bind",
    "Checkpoint",
    "Companion",
    "Durability",
    "File",
    "FileEngine",
    "Target",
    "asynchronous_extra",
    "beginning",
    "check_back_end",
    "checkpoint",
    "commits_each",
    "committing",
    "companion",
    "conflict",
    "connected",
    "described",
    "engine_of",
    "found",
    "in_memory",
    "in_one_line",
    "lent",
    "listened_to",
    "log_size",
    "on_turso",
    "open_async_engine",
    "open_engine",
    "open_file",
    "opened_path",
    "read_only",
    "reading",
    "translate",
    "translated",
    "unsure",
    "upgrading",
]


def open_engine(
    target: Target, *, read_only: bool = False, durability: Durability = "full", fair: bool = True
) -> Engine:
    """Open an engine on a database, with the settings that the stores are made for.

    A path opens exactly that file. SQLite: write-ahead log, a wait of up to 5 s for the write lock, foreign keys on,
    and `synchronous=FULL` (a commit outlives a power cut) or, with `durability="normal"`, NORMAL (it outlives a crash
    of the process, and a power cut may take back the newest). `read_only` never creates or changes the file. The
    file is opened with the first connection; FormatError there if it is no database, and nothing is changed then.
    `sqlite+turso:///`: with turso (extra `turso`), for files that other programs use with it. One connection a process
    and file, whose users take turns; never in a process that was forked with it; `fair` as for SQLite.
    `fair`: processes that have to wait for the write lock take turns, by way of a small file beside the database
    (its name and `-turns`) that the first to wait makes; False, or where it cannot be made: as it comes.
    """
    url = of_file(target)
    if url.get_backend_name() == "postgresql":
        return postgresql.create(url, read_only=read_only)
    return open_file(url, read_only=read_only, durability=durability, fair=fair)


def open_file(
    url: URL, *, read_only: bool = False, durability: Durability = "full", fair: bool = True, exists: bool = False
) -> Engine:
    """An engine on a file, with SQLite or turso as its URL says. `exists`: it is the file that is there now."""
    create = turso.create if on_turso(url) else sqlite.create
    return create(url.database or "", read_only=read_only, durability=durability, fair=fair, exists=exists)


def open_async_engine(
    target: Target, *, read_only: bool = False, durability: Durability = "full", fair: bool = True
) -> AsyncEngine:
    """Open an async engine, otherwise as `open_engine`. BackendUnsupported without the extra `async`.

    Repositories on it run each operation as a whole in a thread of their own connections, and not through the engine's
    async driver, unless somebody listens to its statements.
    """
    with asynchronous_extra():
        from qstore.engines import asynchronous  # noqa: PLC0415  needs the extra
    url = of_file(target)
    if url.get_backend_name() == "postgresql":
        return postgresql.create_async(url, read_only=read_only)
    engine = open_file(url, read_only=read_only, durability=durability, fair=fair)
    return asynchronous.create(engine, Companion(engine))


@contextmanager
def asynchronous_extra() -> Iterator[None]:
    """Import what the async half needs."""
    try:
        import_module("greenlet")  # which SQLAlchemy asks for only when it is used
        yield
    except ImportError as error:
        raise BackendUnsupported(
            f"expected the packages of the extra `async` (aiosqlite, greenlet), found no {error.name or 'greenlet'}:"
            " pip install 'qstore[async]'"
        ) from error


def check_back_end(engine: Engine, naming: Naming) -> None:
    """Refuse a back end that cannot do what the stores need."""
    if capabilities(engine.dialect).one_writer:
        check_version(lambda: described(engine))
        if engine.dialect.driver in ("turso", "aioturso", "turso_sync"):
            raise BackendUnsupported(
                "expected qstore's own dialect on turso, found pyturso's, with which processes lose others' writes:"
                f" create_engine('{TURSO}:///…'), or qstore.open_engine('sqlite+turso:///…')"
            )
        if naming.schema is not None:
            raise BackendUnsupported(
                f"expected no schema on {engine.name}, where it is another file and a transaction over two files is not"
                f" kept whole, found schema={naming.schema!r}"
            )


def in_memory(engine: Engine) -> bool:
    """Whether each connection of the engine has a SQLite database of its own, in memory."""
    name = f"{engine.url.database or ''}?{urlencode(engine.url.query)}"
    private = name.startswith(("?", ":memory:")) or ":memory:" in name or "mode=memory" in name
    return engine.name == "sqlite" and private and "cache=shared" not in name


def listened_to(engine: Engine) -> bool:
    """Whether somebody wants to be told of each statement (tracing, a log), as only SQLAlchemy tells them."""
    return engine._has_events or engine.dialect._has_events or engine.logger.isEnabledFor(INFO)


def read_only(engine: Engine) -> bool:
    """Whether the engine was opened with `read_only=True`."""
    file: sqlite.File | None = engine.get_execution_options().get("qstore_file")
    return file is not None and file.read_only


def log_size(engine: Engine) -> int:
    """Bytes of SQLite's log beside the file: what writers have added and no checkpoint has cut away yet."""
    _check_engine(engine)
    path = opened_path(engine) or engine.url.database or ""
    try:
        return os.stat(path + "-wal").st_size
    except FileNotFoundError:
        return 0


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """What a checkpoint came to. `busy`: a reader held it up, so that some of the log remains."""

    busy: bool
    log_pages: int
    done_pages: int


def checkpoint(engine: Engine) -> Checkpoint:
    """Write SQLite's log back into the file and cut it to nothing, after a wait of up to 5 s for its readers to end."""
    _check_engine(engine)
    with engine.connect() as connection:
        driver: Any = connection.connection.driver_connection
        if not capabilities(engine.dialect).one_writer:
            raise BackendUnsupported(f"expected a SQLite engine, which has a log to write back, found {engine.name}")
        if read_only(engine):
            raise BackendUnsupported(f"{described(engine)}: expected a writable engine, found one that only reads")
        with translated(described(engine)):
            busy, log_pages, done_pages = driver.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    return Checkpoint(bool(busy), int(log_pages), int(done_pages))


def _check_engine(engine: Engine) -> None:
    if not isinstance(engine, Engine):
        raise InvalidType.of("engine", engine, "a SQLAlchemy Engine")
