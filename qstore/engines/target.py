"""What callers name a store by: a path, a SQLAlchemy URL, or a data directory."""

from __future__ import annotations

import os
import re
from typing import Literal

from sqlalchemy import URL, make_url
from sqlalchemy.exc import ArgumentError

from qstore.arguments import one_of, text
from qstore.engines import sqlite
from qstore.engines.files import ASYNC_TURSO, TURSO
from qstore.errors import BackendUnsupported, InvalidInput, InvalidType

__all__ = ["FileEngine", "Target", "in_directory", "of_file"]

Target = str | os.PathLike[str] | URL
"""A path, a SQLAlchemy URL in a string, or a URL object."""

FileEngine = Literal["sqlite", "turso"]
"""What opens files: the standard library's SQLite, or turso (extra `turso`)."""

_OF_TURSO = ("sqlite+turso", TURSO, ASYNC_TURSO)

_URL = re.compile(r"[A-Za-z][A-Za-z0-9_]*(\+[A-Za-z0-9_]+)?://")


def of_file(target: Target, default_name: str | None = None, engine: FileEngine = "sqlite") -> URL:
    """The URL of a target; a SQLite file has its absolute path there, whatever the working directory becomes.

    With `default_name`, an existing directory stands for the file of that name in it. `engine`: what opens a path.
    """
    url = _given_url(target)
    driver = _driver(engine, url)
    if url is None:
        path = _path(target)
        if default_name is not None and (os.path.isdir(path) or str(target).endswith(("/", os.sep))):
            path = os.path.join(path, default_name)
        return URL.create(driver, database=path)
    if url.get_backend_name() == "postgresql":
        return _of_server(url)
    if url.get_backend_name() != "sqlite":
        raise BackendUnsupported(
            f"this version of qstore has stores on sqlite and postgresql, not on {url.get_backend_name()}"
        )
    if url.drivername not in ("sqlite", "sqlite+pysqlite", "sqlite+aiosqlite", *_OF_TURSO):
        raise BackendUnsupported(
            f"this version of qstore opens sqlite:/// and sqlite+turso:///, not {url.drivername}:///"
        )
    sqlite.refuse_memory(url.database)
    if url.query:
        raise InvalidInput(
            "target",
            f"expected a SQLite URL without parameters, found {', '.join(url.query)}: pass a path and arguments",
        )
    return url.set(drivername=driver, database=os.path.abspath(url.database or ""))


def _driver(engine: FileEngine, url: URL | None) -> str:
    """The driver of a file: what its URL says, or else the engine."""
    one_of("engine", engine, ("sqlite", "turso"))
    if url is not None and engine == "turso" and url.get_backend_name() != "sqlite":
        raise InvalidInput("engine", f"expected turso for a file, found it for {url.get_backend_name()}")
    return TURSO if engine == "turso" or (url is not None and url.drivername in _OF_TURSO) else "sqlite"


def _of_server(url: URL) -> URL:
    if url.drivername == "postgresql":
        return url.set(drivername="postgresql+psycopg")
    if url.get_driver_name() not in ("psycopg", "asyncpg"):
        raise BackendUnsupported(f"expected the driver psycopg or asyncpg, found {url.get_driver_name()}")
    return url


def in_directory(target: Target, name: str, engine: FileEngine = "sqlite") -> URL:
    """The URL of a target, where a path is a data directory that holds the file `name`."""
    if _given_url(target) is not None:
        return of_file(target, engine=engine)
    driver = _driver(engine, None)
    path = _path(target)
    if os.path.isfile(path):
        raise InvalidInput(
            "data_dir_or_url",
            f"expected a directory (which holds {name}), found the file {path}: to open a file of another name, pass"
            " URL.create('sqlite', database=path)",
        )
    return URL.create(driver, database=os.path.join(path, name))


def _given_url(target: Target) -> URL | None:
    if isinstance(target, URL):
        return target
    if isinstance(target, str) and _URL.match(target):
        if target.partition("?")[0].count("@") > 1:
            # Whatever comes after the first one would be taken for the host, and told to all by its look-up's error.
            raise InvalidInput("target", "expected %40 in place of an @ in a URL's user, password or database, found @")
        try:
            return make_url(target)
        except (ArgumentError, ValueError) as error:  # a port that is no number is the latter
            raise InvalidInput(
                "target", "expected a SQLAlchemy URL or a path, found a URL that does not parse"
            ) from error
    return None


def _path(target: Target) -> str:
    path = os.fspath(target) if isinstance(target, os.PathLike) else target
    if not isinstance(path, str):
        raise InvalidType.of("target", target, "a path (str or os.PathLike), or a SQLAlchemy URL")
    text("target", path)
    sqlite.refuse_memory(path)
    return os.path.abspath(path)
