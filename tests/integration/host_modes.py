"""Host applications: a database with a table of its own and the stores mounted, in every way to run transactions."""

from __future__ import annotations

import shutil
import sqlite3
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import Engine, create_engine, event, insert, select
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from qstore import (
    Event,
    Lease,
    LocalKvRepository,
    LocalQueueRepository,
    TransportRepository,
    migrate,
    mount,
    open_engine,
)
from tests.backends import ManualClock
from tests.integration.situations import host_engine, recipe_engine, waiting_at_most


class Base(DeclarativeBase):
    """The host's."""


class Order(Base):
    """The host's own table."""

    __tablename__ = "orders"

    name: Mapped[str] = mapped_column(primary_key=True)


STORES = mount(Base)


def attribute_engine(path: Path) -> Engine:
    """The driver's `autocommit` attribute, set in a listener."""
    engine = host_engine(path)
    event.listen(engine, "connect", lambda driver, _record: setattr(driver, "autocommit", False))
    return engine


@dataclass(frozen=True)
class Mode:
    """A way to run transactions. `snapshots`: what was read first is part of the transaction."""

    create: Callable[[Path], Engine]
    snapshots: bool = False
    commits_at_once: bool = False
    lock_at_begin: bool = False


MODES: dict[str, Mode] = {
    "legacy": Mode(host_engine),
    "recipe": Mode(recipe_engine, snapshots=True),
    "recipe, BEGIN IMMEDIATE": Mode(lambda path: recipe_engine(path, "BEGIN IMMEDIATE"), lock_at_begin=True),
    "isolation_level=IMMEDIATE": Mode(lambda path: host_engine(path, connect_args={"isolation_level": "IMMEDIATE"})),
    "AUTOCOMMIT": Mode(lambda path: host_engine(path, isolation_level="AUTOCOMMIT"), commits_at_once=True),
    "open_engine": Mode(open_engine, snapshots=True),
}
if sys.version_info >= (3, 12):
    MODES |= {
        "autocommit=False": Mode(lambda path: host_engine(path, connect_args={"autocommit": False}), snapshots=True),
        "autocommit=False, listener": Mode(attribute_engine, snapshots=True),
    }
TRANSACTIONAL = [name for name, mode in MODES.items() if not mode.commits_at_once]

BINDS: dict[str, Callable[[Engine], Any]] = {"Session": Session, "Connection": lambda engine: engine.connect()}


@dataclass(frozen=True)
class Template:
    """A host's file with something in the stores for every operation to do."""

    path: Path
    lease: Lease
    receipt_handle: str
    now: float


def make_template(directory: Path) -> Template:
    """Make the file. It has SQLite's own journal mode, as a host's has that did not think of it."""
    path = directory / "template.sqlite"
    clock = ManualClock()
    engine = create_engine(f"sqlite:///{path}")
    Base.metadata.create_all(engine)
    migrate.upgrade(engine, naming=STORES.naming)
    transport = STORES.transport(engine, clock=clock)
    transport.publish("leased", Event(kind="leased"))
    lease = transport.claim("worker", 60)
    assert lease is not None
    transport.publish("free", Event(kind="free"))
    queue = STORES.localqueue(engine, clock=clock)
    queue.send("received")
    [received] = queue.receive(visibility_timeout=60)
    queue.send_many(["due", "due"])
    STORES.localkv(engine, clock=clock).put("taken", b"old")
    engine.dispose()
    return Template(path, lease, received.receipt_handle, clock.now + 1)


class HostDatabase:
    """One host's copy of the template, with its engine and a transaction that repositories join."""

    def __init__(
        self, directory: Path, mode: str, bind: str, made: Template, *, wal: bool = False, patience: int | None = None
    ) -> None:
        self.path = directory / "host.sqlite"
        shutil.copyfile(made.path, self.path)
        if wal:
            self.sql("PRAGMA journal_mode = WAL")
        self.mode = MODES[mode]
        self.made = made
        self.clock = ManualClock(made.now)
        self.engine = self.mode.create(self.path)
        if patience is not None:
            waiting_at_most(self.engine, patience)
        self.bind: Any = BINDS[bind](self.engine)

    def transport(self) -> TransportRepository[Event]:
        repository: TransportRepository[Event] = STORES.transport(self.bind, clock=self.clock)
        return repository

    def localkv(self) -> LocalKvRepository:
        repository: LocalKvRepository = STORES.localkv(self.bind, clock=self.clock)
        return repository

    def localqueue(self) -> LocalQueueRepository:
        repository: LocalQueueRepository = STORES.localqueue(self.bind, clock=self.clock)
        return repository

    def order(self, name: str = "order") -> None:
        """Write in the host's transaction."""
        self.bind.execute(insert(Order).values(name=name))

    def look(self) -> list[str]:
        """Read in the host's transaction."""
        return [name for (name,) in self.bind.execute(select(Order.name)).all()]

    def sql(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        """Run a statement from outside, and commit it."""
        with closing(sqlite3.connect(self.path, timeout=0, isolation_level=None)) as connection:
            return connection.execute(statement, values).fetchall()

    def orders(self) -> list[str]:
        """The orders that are committed."""
        return [name for (name,) in self.sql("SELECT name FROM orders ORDER BY name")]

    def stored(self) -> dict[str, list[tuple[Any, ...]]]:
        """All that is committed beside the orders, with the counters of ids."""
        tables = [name for (name,) in self.sql("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name")]
        return {name: self.sql(f'SELECT * FROM "{name}"') for name in tables if name != "orders"}

    def close(self) -> None:
        if not isinstance(self.bind, Engine):
            self.bind.close()
        self.engine.dispose()


@contextmanager
def host_database(
    directory: Path, mode: str, bind: str, made: Template, *, wal: bool = False, patience: int | None = None
) -> Iterator[HostDatabase]:
    """A host's database, closed and removed at the end. `patience`: milliseconds of waiting for a lock."""
    host = HostDatabase(directory, mode, bind, made, wal=wal, patience=patience)
    try:
        yield host
    finally:
        host.close()
        for path in directory.glob("host.sqlite*"):
            path.unlink()


def _claim(host: HostDatabase) -> None:
    lease = host.transport().claim("another worker", 30)
    assert lease is not None
    assert lease.event.kind == "free"


def _receive(host: HostDatabase) -> str:
    [message] = host.localqueue().receive()
    assert message.payload == "due"
    return message.receipt_handle


OPERATIONS: dict[str, Callable[[HostDatabase], object]] = {
    "publish": lambda host: host.transport().publish("new", Event(kind="new")),
    "claim": _claim,
    "ack a lease": lambda host: host.transport().ack(host.made.lease),
    "put": lambda host: host.localkv().put("taken", b"new"),
    "conditional put": lambda host: host.localkv().put("free", b"new", if_not_exists=True),
    "receive": _receive,
    "receive and ack": lambda host: host.localqueue().ack(_receive(host)),
    "ack a receipt": lambda host: host.localqueue().ack(host.made.receipt_handle),
}
"""What a worker or a request does in the host's transaction. Each one changes the store."""
