"""The handle that operations work on: what a transaction can do, on a driver's connection or on SQLAlchemy's."""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, Concatenate, ParamSpec, TypeVar

from sqlalchemy import Connection
from typing_extensions import override

from qstore.capabilities import capabilities
from qstore.clock import Clock
from qstore.errors import InvalidInput, shown
from qstore.naming import Names
from qstore.statement import DriverStatement, Statement

__all__ = ["ConnectionTransaction", "DriverTransaction", "Store", "Transaction", "parallel"]

P = ParamSpec("P")
R = TypeVar("R")

Row = Sequence[Any]

_PARALLEL: dict[Callable[..., Any], Callable[..., Any]] = {}


def parallel(operation: Callable[P, R]) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Mark a function as what an operation is on a back end where writers work in parallel."""

    def mark(function: Callable[P, R]) -> Callable[P, R]:
        _PARALLEL[operation] = function
        return function

    return mark


@dataclass(frozen=True, slots=True)
class Store:
    """What every transaction of a store needs."""

    names: Names
    clock: Clock | None
    """None: the host's clock, or the server's where there is one."""

    def now(self) -> float:
        """What the clock says. InvalidInput if that is no instant."""
        now = time.time() if self.clock is None else self.clock()
        if not isinstance(now, (int, float)) or not math.isfinite(now):
            raise InvalidInput("clock", f"expected it to return epoch seconds, found {shown(now)}")
        return now


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

    def run(self, operation: Callable[Concatenate[Transaction, P], R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Run an operation in this transaction: the one that its back end has for it."""
        return operation(self, *args, **kwargs)

    @abstractmethod
    def _execute(self, statement: Statement, binds: dict[str, Any]) -> Any:
        """Run a statement; the driver's cursor, or SQLAlchemy's, which read alike."""


class DriverTransaction(Transaction):
    """Runs statements on the driver's connection: an engine that qstore opened, and nobody listens to."""

    __slots__ = ("_compiled", "_connection")

    def __init__(self, connection: Any, store: Store, compiled: Callable[[Statement], DriverStatement]) -> None:
        self._store = store  # and no more calls than that: it is made for each operation
        self._connection = connection
        self._compiled = compiled

    def _execute(self, statement: Statement, binds: dict[str, Any]) -> Any:
        sql, order = self._compiled(statement)
        return self._connection.execute(sql, [binds[name] for name in order])


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

    @override
    def run(self, operation: Callable[Concatenate[Transaction, P], R], *args: P.args, **kwargs: P.kwargs) -> R:
        if not capabilities(self._connection.dialect).one_writer:
            operation = _PARALLEL.get(operation, operation)
        return operation(self, *args, **kwargs)

    @override
    @contextmanager
    def together(self) -> Iterator[None]:
        if not self._own:
            yield
            return
        self._connection.exec_driver_sql("BEGIN ISOLATION LEVEL READ COMMITTED")
        try:
            yield
        except BaseException:
            self._connection.exec_driver_sql("ROLLBACK")
            raise
        self._connection.exec_driver_sql("COMMIT")

    def _execute(self, statement: Statement, binds: dict[str, Any]) -> Any:
        return self._connection.execute(statement.clause(self._store.names), binds)
