"""The handle that operations work on: what a transaction can do, on a driver's connection or on SQLAlchemy's."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any, TypeVar, TypeVarTuple
from weakref import WeakKeyDictionary

from sqlalchemy import Connection, Engine
from typing_extensions import override

from qstore.capabilities import capabilities
from qstore.clock import LATEST, Clock
from qstore.engines.holding import Held, Memory
from qstore.engines.postgresql import committed
from qstore.errors import InvalidInput, shown
from qstore.formats import Addition
from qstore.naming import Names
from qstore.parallel import in_parallel
from qstore.statement import Rendered, Statement

__all__ = [
    "MOST_TIDIED",
    "ConnectionTransaction",
    "DriverTransaction",
    "Memory",
    "Row",
    "Seen",
    "Store",
    "Transaction",
    "keeps_snapshot",
    "seen_on",
    "tidied",
]

Ts = TypeVarTuple("Ts")
R = TypeVar("R")

Row = Sequence[Any]

# A number that changes with each change of the schema.
_SCHEMA_VERSION = Statement("PRAGMA schema_version")

_SCHEMA = Statement("SELECT lower(name), lower(tbl_name) FROM sqlite_master")

MOST_TIDIED = 1000
"""Rows that one TIDY of a server's store settles."""


def tidied(tx: Transaction, tidy: Statement) -> bool:
    """Settle what has lapsed, which no claim or receive looks at before. Whether there was any."""
    found = False
    while True:
        [(changed, seen)] = tx.rows(tidy, now=tx.given_now())
        found = found or bool(seen) or changed > 0
        if changed < MOST_TIDIED:
            return found


_KEEPS_SNAPSHOT = Statement("SELECT current_setting('transaction_isolation') IN ('repeatable read', 'serializable')")


def keeps_snapshot(tx: Transaction) -> bool:
    """Whether a transaction on a server sees all the time what was committed when it began: only a caller's may."""
    return not tx.own and bool(tx.rows(_KEEPS_SNAPSHOT)[0][0])


@dataclass(frozen=True, slots=True)
class Store:
    """What every transaction of a store needs."""

    names: Names
    clock: Clock | None
    """None: the host's clock, or the server's where there is one."""
    texts: Rendered = field(init=False, compare=False, repr=False)
    """The statements as SQLite takes them."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "texts", Rendered(self.names))

    def now(self) -> float:
        """What the clock says. InvalidInput if that is no instant."""
        if self.clock is None:
            return time.time()
        now = self.clock()
        if not isinstance(now, (int, float)) or not abs(now) <= LATEST:
            raise InvalidInput("clock", f"expected it to return epoch seconds, found {shown(now)}")
        return now


class Seen:
    """What an engine's database was seen to have of a store's addition, and in which version of its schema."""

    __slots__ = ("version", "whole")

    def __init__(self) -> None:
        self.version: object = None
        self.whole = False


_seen: WeakKeyDictionary[Engine, dict[Names, Seen]] = WeakKeyDictionary()


def seen_on(engine: Engine, names: Names) -> Seen:
    """What all transactions of an engine share of it."""
    return _seen.setdefault(engine, {}).setdefault(names, Seen())


class Transaction(ABC):
    """The handle that operations work on. Every result is read to its end before it is returned."""

    __slots__ = ("_store",)

    def __init__(self, store: Store) -> None:
        self._store = store

    def now(self) -> float:
        """Epoch seconds, read at the call: in a writing operation the write lock is held by then."""
        return self._store.now()

    def given_now(self) -> float | None:
        """What the caller's clock says; None without one, which leaves it to the server."""
        return None if self._store.clock is None else float(self._store.now())

    @property
    def own(self) -> bool:
        """Whether the transaction is none of the caller's: what is done in it is settled with the operation."""
        return True

    @property
    def interruptible(self) -> bool:
        """Whether a statement that is awaited and then cancelled is cancelled at the server too."""
        return False

    def together(self) -> AbstractContextManager[None]:
        """Several statements, all or none, where each would otherwise be a transaction of its own."""
        return nullcontext()

    def row(self, statement: Statement, **binds: Any) -> Row | None:
        """Run a statement; its first row, or None."""
        rows = self.rows(statement, **binds)
        return rows[0] if rows else None

    def rows(self, statement: Statement, **binds: Any) -> Sequence[Row]:
        """Run a statement; all its rows."""
        rows: Sequence[Row] = self._execute(statement, binds).fetchall()
        return rows

    def change(self, statement: Statement, **binds: Any) -> int:
        """Run an INSERT, UPDATE or DELETE without RETURNING; the number of rows it changed."""
        changed: int = self._execute(statement, binds).rowcount
        return changed

    def insert(self, statement: Statement, **binds: Any) -> int:
        """Run an INSERT of one row without RETURNING; the id that it was given."""
        id: int = self._execute(statement, binds).lastrowid
        return id

    def run(self, operation: Callable[[Transaction, *Ts], R], *args: *Ts) -> R:
        """Run an operation in this transaction: the one that its back end has for it."""
        return operation(self, *args)

    def has(self, addition: Addition) -> bool:
        """Whether the store has the whole of an addition, as this transaction sees the database.

        Whoever upgrades or downgrades the store, or drops a trigger, does so between two transactions: so the version
        of the schema is asked for in each, and the schema itself only when that has changed.
        """
        seen = self._seen()
        [version] = self.row(_SCHEMA_VERSION) or (None,)
        if version != seen.version:
            there = {tuple(it) for it in self.rows(_SCHEMA)}
            names = self._store.names
            wanted = {
                tuple(names.naming.name(names.store, it).lower() for it in part) for part in addition.places.items()
            }
            seen.whole = wanted <= there
            seen.version = version
        return seen.whole

    @contextmanager
    def unchanged(self) -> Iterator[Memory | None]:
        """One view of the database, and what was remembered of this very view before.

        None where nothing tells whether the database has changed since, or whether the transaction itself has.
        """
        yield None

    @abstractmethod
    def _seen(self) -> Seen:
        """What the engine's other transactions have seen."""

    @abstractmethod
    def _execute(self, statement: Statement, binds: dict[str, Any]) -> Any:
        """Run a statement; the driver's cursor, or SQLAlchemy's, which read alike."""


class DriverTransaction(Transaction):
    """Runs statements on the driver's connection: an engine that qstore opened, and nobody listens to."""

    __slots__ = ("_connection", "_cursor", "_held", "_shared", "_texts")

    def __init__(self, held: Held, store: Store, shared: Seen) -> None:
        super().__init__(store)
        self._held = held
        self._connection = held.driver
        self._cursor = held.driver.cursor()
        self._texts = store.texts
        self._shared = shared

    @override
    @contextmanager
    def unchanged(self) -> Iterator[Memory | None]:
        """Where it is only read."""
        if self._connection.in_transaction:
            yield None
            return
        self._connection.execute("BEGIN")
        try:
            # The first look at the file: the snapshot begins with it. data_version tells of all that other connections
            # have committed, total_changes of all that this one has changed, be it undone since.
            [version] = self._connection.execute("PRAGMA data_version").fetchone()
            yield self._held.remembered((version, self._connection.total_changes, self._store.names))
        finally:
            if self._connection.in_transaction:
                self._connection.execute("COMMIT")

    @override
    def row(self, statement: Statement, **binds: Any) -> Row | None:
        row: Row | None = self._cursor.execute(self._texts[statement], binds).fetchone()
        return row

    def close(self) -> None:
        """Let go of the last statement."""
        self._cursor.close()

    def _seen(self) -> Seen:
        return self._shared

    def _execute(self, statement: Statement, binds: dict[str, Any]) -> Any:
        return self._cursor.execute(self._texts[statement], binds)


class ConnectionTransaction(Transaction):
    """Runs statements through SQLAlchemy, so that a host's listeners see every one."""

    __slots__ = ("_connection", "_own")

    def __init__(self, connection: Connection, store: Store, *, own: bool) -> None:
        super().__init__(store)
        self._connection = connection
        self._own = own

    @property
    @override
    def own(self) -> bool:
        return self._own

    @property
    @override
    def interruptible(self) -> bool:
        return not capabilities(self._connection.dialect).one_writer

    @override
    def run(self, operation: Callable[[Transaction, *Ts], R], *args: *Ts) -> R:
        if not capabilities(self._connection.dialect).one_writer:
            return in_parallel(operation)(self, *args)
        return operation(self, *args)

    @override
    @contextmanager
    def together(self) -> Iterator[None]:
        with committed(self._connection, self._connection.exec_driver_sql) if self._own else nullcontext():
            yield

    @override
    def has(self, addition: Addition) -> bool:
        return self._connection.dialect.name == addition.dialect and super().has(addition)

    def _seen(self) -> Seen:
        return seen_on(self._connection.engine, self._store.names)

    def _execute(self, statement: Statement, binds: dict[str, Any]) -> Any:
        connection, names = self._connection, self._store.names
        if connection.dialect.name != "sqlite" or connection._has_events or connection.engine._has_events:
            return connection.execute(statement.clause(names), binds)
        # Where nobody listens: the same in half the time.
        return connection.exec_driver_sql(self._store.texts[statement], binds)
