"""A host application on PostgreSQL: a table of its own, the stores mounted, and something in them to work on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Any

from sqlalchemy import URL, Engine, create_engine, insert, select
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from qstore import Event, Lease, mount
from tests import postgres

__all__ = ["BINDS", "OPERATIONS", "STORES", "Order", "PostgresHost", "host_on", "postgres_host"]


class Base(DeclarativeBase):
    """The host's."""


class Order(Base):
    """The host's own table."""

    __tablename__ = "orders"

    name: Mapped[str] = mapped_column(primary_key=True)


STORES = mount(Base)

TABLES = (
    *("qstore_transport_messages", "qstore_transport_groups", "qstore_localkv_meta", "qstore_localkv_kv"),
    *("qstore_localqueue_meta", "qstore_localqueue_messages"),
)

BINDS: dict[str, Callable[[Engine], Any]] = {"Session": Session, "Connection": lambda engine: engine.connect()}


@dataclass(frozen=True)
class PostgresHost:
    """The database, with a message that is leased, one that is free, a key, and queue messages received and due."""

    url: URL
    engine: Engine
    lease: Lease
    receipt_handle: str

    def sql(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        """Run a statement from outside, and commit it."""
        with closing(postgres.connect(self.url)) as connection:
            cursor = connection.execute(statement.encode(), values)
            return cursor.fetchall() if cursor.description else []

    def orders(self) -> list[str]:
        """The orders that are committed."""
        return [name for (name,) in self.sql("SELECT name FROM orders ORDER BY name")]

    def stored(self) -> dict[str, list[tuple[Any, ...]]]:
        """All rows of the stores that are committed."""
        with closing(postgres.connect(self.url)) as connection:
            return {name: sorted(connection.execute(f"SELECT * FROM {name}".encode()), key=repr) for name in TABLES}


@contextmanager
def postgres_host(**arguments: Any) -> Iterator[PostgresHost]:
    """A host's database, and its engine with these arguments."""
    url = postgres.database()
    engine = create_engine(url, **arguments)
    try:
        yield host_on(url, engine)
    finally:
        engine.dispose()


def host_on(url: URL, engine: Engine) -> PostgresHost:
    """Make the host's table, and fill the stores."""
    making = create_engine(url)
    try:
        Base.metadata.create_all(making, tables=[Base.metadata.tables["orders"]])
        transport, queue = STORES.transport(making), STORES.localqueue(making)
        transport.publish("leased", Event(kind="leased"))
        lease = transport.claim("worker", 3600)
        assert lease is not None
        transport.publish("free", Event(kind="free"))
        queue.send("received")
        [received] = queue.receive(visibility_timeout=3600)
        queue.send_many(["due", "due"])
        STORES.localkv(making).put("taken", b"old")
    finally:
        making.dispose()
    return PostgresHost(url, engine, lease, received.receipt_handle)


def _claim(host: PostgresHost, bind: Any) -> Lease:
    lease: Lease | None = STORES.transport(bind).claim("another worker", 30)
    assert lease is not None
    assert lease.event.kind == "free"
    return lease


def _receive(host: PostgresHost, bind: Any) -> str:
    [message] = STORES.localqueue(bind).receive()
    assert message.payload == "due"
    handle: str = message.receipt_handle
    return handle


def order(bind: Any, name: str = "order") -> None:
    """Write in the host's transaction."""
    bind.execute(insert(Order).values(name=name))


def look(bind: Any) -> list[str]:
    """Read in the host's transaction."""
    return [name for (name,) in bind.execute(select(Order.name)).all()]


OPERATIONS: dict[str, Callable[[PostgresHost, Any], object]] = {
    "publish": lambda host, bind: STORES.transport(bind).publish("new", Event(kind="new")),
    "publish_many": lambda host, bind: STORES.transport(bind).publish_many([("x", Event(kind="1"))]),
    "claim": _claim,
    "claim and ack": lambda host, bind: STORES.transport(bind).ack(_claim(host, bind)),
    "ack a lease": lambda host, bind: STORES.transport(bind).ack(host.lease),
    "park": lambda host, bind: STORES.transport(bind).nack(host.lease, delay=60),
    "extend": lambda host, bind: STORES.transport(bind).extend(host.lease, 7200),
    "put": lambda host, bind: STORES.localkv(bind).put("taken", b"new"),
    "conditional put": lambda host, bind: STORES.localkv(bind).put("free", b"new", if_not_exists=True),
    "delete": lambda host, bind: STORES.localkv(bind).delete("taken"),
    "send": lambda host, bind: STORES.localqueue(bind).send("new"),
    "receive": _receive,
    "receive and ack": lambda host, bind: STORES.localqueue(bind).ack(_receive(host, bind)),
    "ack a receipt": lambda host, bind: STORES.localqueue(bind).ack(host.receipt_handle),
    "purge": lambda host, bind: STORES.localqueue(bind).purge(),
}
"""What a worker or a request does in the host's transaction. Each one changes the store."""
