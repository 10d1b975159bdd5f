"""The stores in a host's own database: prefixed copies of their tables on the host's metadata."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING, Any, overload

from pydantic import TypeAdapter
from sqlalchemy import Connection, Integer, MetaData, Table, event, inspect
from sqlalchemy.dialects import sqlite
from sqlalchemy.orm import DeclarativeBase, DeclarativeMeta, registry
from sqlalchemy.schema import DropTable
from sqlalchemy.sql.elements import quoted_name

from qstore import models
from qstore.arguments import several
from qstore.awaited import AsyncBind, is_async
from qstore.binding import Bind
from qstore.clock import Clock
from qstore.errors import InvalidInput, InvalidType, shown
from qstore.formats import ADDITIONS, FORMATS, tables_of
from qstore.localkv import AsyncLocalKvRepository, LocalKvRepository
from qstore.localqueue import AsyncLocalQueueRepository, LocalQueueRepository
from qstore.localqueue.models import REDELIVERIES, REDELIVERY_MARK
from qstore.naming import Naming
from qstore.transport import AsyncTransportRepository, Event, TransportRepository
from qstore.transport.models import TURNS, Int
from qstore.transport.records import EventT

__all__ = ["MountedStores", "mount", "namings_in"]

CLASSES: dict[str, tuple[type[DeclarativeBase], ...]] = {
    "transport": (models.TransportMessage, models.TransportGroup),
    "localkv": (models.KvMeta, models.KvEntry),
    "localqueue": (models.QueueMeta, models.QueueMessage),
}

BESIDE: dict[str, tuple[Table, ...]] = {"transport": (TURNS,), "localqueue": (REDELIVERIES, REDELIVERY_MARK)}
"""Tables that are not mapped: nobody but the stores' own triggers and statements has a use for them."""


class MountedStores:
    """The stores under one prefix in one host's metadata: mapped classes for `select()`, and repositories."""

    if TYPE_CHECKING:
        TransportMessage: type[models.TransportMessage]
        TransportGroup: type[models.TransportGroup]
        KvMeta: type[models.KvMeta]
        KvEntry: type[models.KvEntry]
        QueueMeta: type[models.QueueMeta]
        QueueMessage: type[models.QueueMessage]

    def __init__(self, naming: Naming) -> None:
        self.naming = naming
        self.stores: tuple[str, ...] = ()

    @overload
    def transport(self, bind: Bind, *, clock: Clock | None = None) -> TransportRepository[Event]: ...
    @overload
    def transport(
        self, bind: Bind, *, event_type: type[EventT] | TypeAdapter[EventT], clock: Clock | None = None
    ) -> TransportRepository[EventT]: ...
    @overload
    def transport(self, bind: AsyncBind, *, clock: Clock | None = None) -> AsyncTransportRepository[Event]: ...
    @overload
    def transport(
        self, bind: AsyncBind, *, event_type: type[EventT] | TypeAdapter[EventT], clock: Clock | None = None
    ) -> AsyncTransportRepository[EventT]: ...
    def transport(self, bind: Any, *, event_type: Any = Event, clock: Clock | None = None) -> Any:
        """Bind the transport to an Engine, or to a Connection or Session, whose transaction it joins. Or async ones."""
        twin = self._twin("transport", bind, TransportRepository, AsyncTransportRepository)
        return twin(bind, event_type=event_type, naming=self.naming, clock=clock)

    @overload
    def localkv(self, bind: Bind, *, clock: Clock | None = None, portable: bool = False) -> LocalKvRepository: ...
    @overload
    def localkv(
        self, bind: AsyncBind, *, clock: Clock | None = None, portable: bool = False
    ) -> AsyncLocalKvRepository: ...
    def localkv(self, bind: Any, *, clock: Clock | None = None, portable: bool = False) -> Any:
        """Bind the key-value store likewise."""
        twin = self._twin("localkv", bind, LocalKvRepository, AsyncLocalKvRepository)
        return twin(bind, naming=self.naming, clock=clock, portable=portable)

    @overload
    def localqueue(self, bind: Bind, *, clock: Clock | None = None) -> LocalQueueRepository: ...
    @overload
    def localqueue(self, bind: AsyncBind, *, clock: Clock | None = None) -> AsyncLocalQueueRepository: ...
    def localqueue(self, bind: Any, *, clock: Clock | None = None) -> Any:
        """Bind the queue likewise."""
        twin = self._twin("localqueue", bind, LocalQueueRepository, AsyncLocalQueueRepository)
        return twin(bind, naming=self.naming, clock=clock)

    def __repr__(self) -> str:
        return f"<{', '.join(self.stores)} mounted under {self.naming.prefix!r}>"

    def _twin(self, store: str, bind: Any, sync_one: Any, async_one: Any) -> Any:
        if store not in self.stores:
            raise InvalidInput("stores", f"expected {store} among the mounted stores, found {', '.join(self.stores)}")
        return async_one if is_async(bind) else sync_one

    def _add(self, store: str, metadata: MetaData, classes: registry) -> None:
        for native in CLASSES[store]:
            table = _copied(native.__table__, store, self.naming, metadata)  # type: ignore[arg-type]  # a declarative class's is a Table
            mapped = type(native.__name__, (), {"__doc__": native.__doc__, "__module__": native.__module__})
            classes.map_imperatively(mapped, table)
            setattr(self, native.__name__, mapped)
        for native_table in BESIDE.get(store, ()):
            table = _copied(native_table, store, self.naming, metadata)
            # A server's groups carry their state themselves, and SQLAlchemy makes a table on every dialect.
            event.listen(table, "after_create", DropTable(table).execute_if(dialect="postgresql"))
        self.stores = tuple(name for name in FORMATS if name in (*self.stores, store))


def mount(
    base: type[DeclarativeBase] | DeclarativeMeta | MetaData,
    *,
    prefix: str = "qstore_",
    schema: str | None = None,
    stores: Iterable[str] = ("transport", "localkv", "localqueue"),
) -> MountedStores:
    """Put the stores' tables, under a prefix, on a host's metadata.

    Mounting again under the same prefix returns the same object (with the further stores added); another prefix makes
    another set. The classes are registered apart from the host's own, so that their names cannot clash. The tables are
    made by `qstore.migrate.upgrade(engine, naming=stores.naming)`, or by the host's own migrations or `create_all`.
    """
    declarative = isinstance(base, type) and not hasattr(base, "__table__")
    metadata = base if isinstance(base, MetaData) else getattr(base, "metadata", None) if declarative else None
    if not isinstance(metadata, MetaData):
        raise InvalidType.of("base", base, "a declarative Base or a MetaData")
    if not isinstance(prefix, str):
        raise InvalidType.of("prefix", prefix, "str")
    naming = Naming(prefix, metadata.schema if schema is None else schema, metadata)
    wanted = (stores,) if isinstance(stores, str) else several("stores", stores, f"{', '.join(FORMATS)}")
    if not wanted or not all(isinstance(store, str) and store in FORMATS for store in wanted):
        raise InvalidInput("stores", f"expected some of {', '.join(FORMATS)}, found {shown(stores)}")
    mounts = _mounts(metadata)
    if any(other != naming and str(other.prefix).lower() == prefix.lower() for other in mounts):
        raise InvalidInput("prefix", f"expected one that differs from {prefix!r} by more than case, which SQLite folds")
    mounted = mounts.get(naming, MountedStores(naming))
    new = [store for store in FORMATS if store in wanted and store not in mounted.stores]
    taken = {table.fullname for table in metadata.tables.values()}
    for name in (naming.name(store, table) for store in new for table in tables_of(store)):
        if (name if naming.schema is None else f"{naming.schema}.{name}") in taken:
            raise InvalidInput("prefix", f"expected one that the host's tables leave free, found a table {name}")
    mounts[naming] = mounted
    classes = registry(metadata=metadata)
    for store in new:
        mounted._add(store, metadata, classes)
    return mounted


def namings_in(metadata: MetaData) -> set[Naming]:
    """The mounts on a host's metadata."""
    return set(_mounts(metadata))


def _mounts(metadata: MetaData) -> dict[Naming, MountedStores]:
    mounts: dict[Naming, MountedStores] = metadata.info.setdefault("qstore_mounts", {})
    return mounts


def _copied(native: Table, store: str, naming: Naming, metadata: MetaData) -> Table:
    """A store's table under its mounted name, with its indexes likewise, and with its marker when it is created."""
    name = naming.name(store, native.name)
    table = native.to_metadata(metadata, name=name, schema=naming.schema)  # type: ignore[arg-type]  # its stubs do not know None
    for column in table.columns:
        if isinstance(column.type.dialect_impl(sqlite.dialect()), Int):
            column.type = Integer()  # the same to SQLite, and what a host's revision can spell
    conditions = {index.name: index._ddl_if for index in native.indexes}
    for index in table.indexes:
        index._ddl_if = conditions[index.name]  # which SQLAlchemy leaves behind when it copies
        index.name = quoted_name(naming.name(store, str(index.name)), quote=None)
    event.listen(table, "after_create", partial(_finish, store, native.name, naming))
    event.listen(table, "after_create", lambda _, connection, **__: _add(connection, store, naming))
    return table


def _finish(store: str, name: str, naming: Naming, _table: Table, connection: Connection, **_: Any) -> None:
    """What a table has besides what SQLAlchemy makes of it: its marker, and on a server the state of its rows."""
    for statement in FORMATS[store].beside(naming.of(store), connection.dialect.name, name):
        connection.exec_driver_sql(statement)


def _add(connection: Connection, store: str, naming: Naming) -> None:
    """Make the triggers, and fill the tables that they keep right, once all tables of a store are there."""
    addition = ADDITIONS.get(store)
    if addition is None or connection.dialect.name != addition.dialect or naming.schema is not None:
        return
    there = set(inspect(connection).get_table_names())
    if {naming.name(store, table) for table in tables_of(store)} <= there:
        names = naming.of(store)
        for statement in (*addition.ddl(names), *addition.rendered(names, addition.fill)):
            connection.exec_driver_sql(statement)
