"""A host's own transaction, which repositories join."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine, NestedTransaction, create_engine, event, text
from sqlalchemy.orm import Session, SessionTransaction

from qstore import LocalKvRepository, LocalQueueRepository, TransportRepository, open_engine
from tests.backends import MOUNTED, HostBackend


def plain_engine(path: Path) -> Engine:
    return create_engine(f"sqlite:///{path}")


def recipe_engine(path: Path) -> Engine:
    """SQLAlchemy's documented recipe for transactions that begin where SQLAlchemy begins them."""
    engine = create_engine(f"sqlite:///{path}")

    @event.listens_for(engine, "connect")
    def legacy_mode_off(driver: Any, _record: Any) -> None:
        driver.isolation_level = None

    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        connection.exec_driver_sql("BEGIN")

    return engine


ENGINES: dict[str, Callable[[Path], Engine]] = {
    "SQLAlchemy's defaults": plain_engine,
    "BEGIN recipe": recipe_engine,
    "open_engine": open_engine,
}


class Host(HostBackend):
    """A host's database with the stores mounted and a table of its own, and one transaction on it."""

    def __init__(self, directory: Path, engine: str, kind: type[Connection] | type[Session]) -> None:
        super().__init__(directory)
        self.kind = engine
        self.engine = self._engine("host")
        self.sql("transport", "CREATE TABLE orders (name TEXT NOT NULL)")
        self.bind: Connection | Session = self.engine.connect() if kind is Connection else Session(self.engine)
        self._closing.append(self.bind.close)

    def joined(self, store: str, **arguments: Any) -> Any:
        """A store's repository in the host's transaction."""
        kinds: dict[str, Any] = {
            "transport": TransportRepository,
            "localkv": LocalKvRepository,
            "localqueue": LocalQueueRepository,
        }
        return kinds[store](self.bind, naming=MOUNTED, **arguments)

    def order(self, name: str) -> None:
        """Write in the host's transaction."""
        self.bind.execute(text("INSERT INTO orders VALUES (:name)"), {"name": name})

    def look(self) -> None:
        """Read in the host's transaction."""
        self.bind.execute(text("SELECT count(*) FROM orders")).all()

    def nested(self) -> NestedTransaction | SessionTransaction:
        """A savepoint in the host's transaction."""
        return self.bind.begin_nested()

    def orders(self) -> list[str]:
        """The orders that were committed."""
        return [name for (name,) in self.sql("transport", "SELECT name FROM orders ORDER BY name")]

    def _create_engine(self, store: str) -> Engine:
        return ENGINES[self.kind](self.path(store))
