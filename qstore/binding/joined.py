"""Bound to a Connection or Session: the caller's own transaction, which is joined."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from typing import Never, TypeVar, TypeVarTuple
from weakref import WeakKeyDictionary

from sqlalchemy import Connection
from sqlalchemy.util import await_only
from typing_extensions import override

from qstore import engines
from qstore.binding.binding import Direct, missing
from qstore.capabilities import capabilities
from qstore.engines.locking import begun, in_transaction, savepoint, write_locked
from qstore.transaction import ConnectionTransaction, Store, Transaction

__all__ = ["JoinedBinding"]

Ts = TypeVarTuple("Ts")
R = TypeVar("R")


class JoinedBinding(Direct):
    """The caller's own transaction: it is never begun, committed, rolled back or closed here."""

    def __init__(self, connection: Callable[[], Connection], store: Store) -> None:
        self._connection = connection
        self._store = store

    def __str__(self) -> str:
        return "the caller's transaction"

    @override
    def tidy(self, operation: Callable[[Transaction, *Ts], R], *args: *Ts) -> None:
        """Leave it to somebody with a transaction of their own."""

    @override
    def read(self, operation: Callable[[Transaction, *Ts], R], *args: *Ts) -> R:
        connection = self._joined()
        if connection.dialect.is_async or not capabilities(connection.dialect).one_writer:
            return super().read(operation, *args)
        try:
            begun(connection)
            return operation(ConnectionTransaction(connection, self._store, own=False), *args)
        except engines.ERRORS as error:
            self._raise(error, connection)

    @contextmanager
    def _transaction(self, *, write: bool) -> Iterator[Transaction]:
        connection = self._joined()
        try:
            with ExitStack() as stack:
                stack.enter_context(_turn(connection))
                own = False
                if not capabilities(connection.dialect).one_writer:
                    own = engines.commits_each(connection)
                    stack.enter_context(nullcontext() if own else connection.begin_nested())
                elif write:
                    stack.enter_context(write_locked(connection))
                    stack.enter_context(savepoint(connection))
                else:
                    begun(connection)
                yield ConnectionTransaction(connection, self._store, own=own)
        except engines.ERRORS as error:
            self._raise(error, connection)

    def _joined(self) -> Connection:
        """The caller's connection, in a transaction."""
        try:
            connection = self._connection()
            engines.check_back_end(connection.engine, self._store.names.naming)
            if not connection.in_transaction():
                connection.begin()  # what SQLAlchemy does by itself with the first statement
        except engines.ERRORS as error:
            if (known := engines.translate(error, "the caller's database")) is None:
                raise
            raise known from error
        return connection

    def _raise(self, error: Exception, connection: Connection) -> Never:
        known = engines.translate(error, engines.described(connection.engine))
        if known is None:
            with suppress(*engines.ERRORS):
                known = missing(connection, self._store.names)
        elif capabilities(connection.dialect).one_writer and not in_transaction(connection):
            known.add_note("SQLite has rolled back the whole transaction, with all that was done in it before.")
        if known is None:
            raise error
        raise known from error


_turns: WeakKeyDictionary[Connection, asyncio.Lock] = WeakKeyDictionary()


@contextmanager
def _turn(connection: Connection) -> Iterator[None]:
    """Wait for others in this transaction to end what they do: on an async driver they may come between."""
    if not connection.dialect.is_async:
        yield
        return
    turn = _turns.get(connection) or _turns.setdefault(connection, asyncio.Lock())
    await_only(turn.acquire())
    try:
        yield
    finally:
        turn.release()
