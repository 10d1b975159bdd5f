"""New files with stores in them, made once: a test takes a copy."""

from __future__ import annotations

import atexit
import sqlite3
from contextlib import closing
from functools import cache
from pathlib import Path
from shutil import copyfile, rmtree
from tempfile import mkdtemp

from sqlalchemy import create_engine

from qstore import NATIVE, Naming, migrate, open_engine
from qstore.formats import ADDITIONS

HOSTS = Naming("qstore_")


@cache
def made(store: str) -> Path:
    """A new file with one store, or with all of them mounted (`host`), at the newest revision."""
    path = _directory() / f"{store}.sqlite"
    engine = create_engine(f"sqlite:///{path}") if store == "host" else open_engine(path)
    migrate.upgrade(engine, naming=HOSTS if store == "host" else NATIVE)
    engine.dispose()
    return path


@cache
def made_v1(store: str) -> Path:
    """A new file with one store at the format's first revision."""
    path = _directory() / f"{store}.sqlite"
    copyfile(made(store), path)
    if addition := ADDITIONS.get(store):
        with closing(sqlite3.connect(path, isolation_level=None)) as connection:
            for statement in addition.drop(NATIVE.of(store)):
                connection.execute(statement)
            connection.execute("UPDATE qstore_alembic_version SET version_num = ?", (addition.format.marker,))
    return path


def _directory() -> Path:
    directory = mkdtemp()
    atexit.register(rmtree, directory, ignore_errors=True)
    return Path(directory)
