"""Every way into a store's file: `open`, `qstore.migrate` on both kinds of engines, and the `alembic` command."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import URL, Engine, create_engine

from qstore import LocalKvRepository, LocalQueueRepository, TransportRepository, migrate, open_engine

__all__ = ["REPOSITORIES", "WAYS", "Way", "host_engine", "open_store", "qstore_engine", "url_of"]

REPOSITORIES: dict[str, Any] = {
    "transport": TransportRepository,
    "localkv": LocalKvRepository,
    "localqueue": LocalQueueRepository,
}


def url_of(path: Path) -> URL:
    """The URL of exactly this file."""
    return URL.create("sqlite", database=str(path))


@contextmanager
def host_engine(path: Path) -> Iterator[Engine]:
    """An engine that a host made with SQLAlchemy's defaults."""
    engine = create_engine(url_of(path))
    try:
        yield engine
    finally:
        engine.dispose()


@contextmanager
def qstore_engine(path: Path) -> Iterator[Engine]:
    """An engine of qstore's own."""
    engine = open_engine(path)
    try:
        yield engine
    finally:
        engine.dispose()


def open_store(path: Path, store: str, **arguments: Any) -> Any:
    """The store's repository, by `open`."""
    return REPOSITORIES[store].open(url_of(path), **arguments)


def _open(path: Path, store: str) -> None:
    open_store(path, store).close()


def _open_existing(path: Path, store: str) -> None:
    with closing(open_store(path, store, create=False)):
        pass


def _upgrade(path: Path, store: str) -> None:
    with qstore_engine(path) as engine:
        migrate.upgrade(engine, stores=[store])


def _stamp(path: Path, store: str) -> None:
    with qstore_engine(path) as engine:
        migrate.stamp(engine, stores=[store])


Way = Callable[[Path, str], None]

WAYS: dict[str, Way] = {"open": _open, "open existing": _open_existing, "upgrade": _upgrade, "stamp": _stamp}
"""The ways in that are one call in this process."""
