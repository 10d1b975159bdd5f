"""Bound to an Engine: a short transaction of qstore's own for each operation."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from typing import TypeVar, TypeVarTuple

from sqlalchemy import Engine, SingletonThreadPool, StaticPool
from typing_extensions import override

from qstore import engines
from qstore.binding.binding import Binding, Direct, raise_known
from qstore.engines.locking import unwaiting, write_locked
from qstore.errors import InvalidInput, QstoreError
from qstore.served import Served, ServedTransaction
from qstore.suspending import sleep
from qstore.transaction import ConnectionTransaction, Store, Transaction

__all__ = ["EngineBinding", "ServerBinding"]

Ts = TypeVarTuple("Ts")
R = TypeVar("R")

CONFLICT_PAUSES = tuple(0.002 * 2 ** min(attempt, 6) for attempt in range(20))
"""Seconds, at most, before each repeat of what a server has refused for a conflict with another transaction."""


class EngineBinding(Direct):
    """A short transaction an operation, on a connection of the engine's pool."""

    def __init__(self, engine: Engine, store: Store) -> None:
        engines.check_back_end(engine, store.names.naming)
        _check_pool(engine)
        self._engine = engine
        self._store = store

    def __str__(self) -> str:
        return engines.described(self._engine)

    @override
    def tidy(self, operation: Callable[[Transaction, *Ts], R], *args: *Ts) -> None:
        if not engines.read_only(self._engine):
            with suppress(QstoreError, *engines.ERRORS), self._transaction(write=True, waits=False) as transaction:
                transaction.run(operation, *args)

    @contextmanager
    def _transaction(self, *, write: bool, waits: bool = True) -> Iterator[Transaction]:
        try:
            with (
                self._engine.connect() as connection,
                nullcontext() if waits else unwaiting(connection),
                connection.begin(),
                write_locked(connection) if write else nullcontext(),
            ):
                yield ConnectionTransaction(connection, self._store, own=True)
        except engines.ERRORS as error:
            raise_known(error, self._engine, self._store)


class ServerBinding(Binding):
    """A server's engine: an operation is one statement, or a few that each stand alone, and committed by itself."""

    def __init__(self, engine: Engine, store: Store) -> None:
        engines.check_back_end(engine, store.names.naming)
        _check_pool(engine)
        self._engine = engine
        self._store = store
        self._served = Served(store.names)

    def __str__(self) -> str:
        return engines.described(self._engine)

    @override
    def read(self, operation: Callable[[Transaction, *Ts], R], *args: *Ts) -> R:
        once = self._heard if engines.listened_to(self._engine) else self._unheard
        for pause in (*CONFLICT_PAUSES, None):
            try:
                return once(operation, *args)
            except engines.ERRORS as error:
                if pause is None or not engines.conflict(error):
                    raise_known(error, self._engine, self._store)
            sleep(self._engine.dialect, random.uniform(0, pause))  # noqa: S311  to come apart from who it met
        raise AssertionError

    write = read

    @override
    def tidy(self, operation: Callable[[Transaction, *Ts], R], *args: *Ts) -> None:
        with suppress(QstoreError, *engines.ERRORS):
            self.write(operation, *args)

    def _heard(self, operation: Callable[[Transaction, *Ts], R], *args: *Ts) -> R:
        with engines.connected(self._engine) as connection, engines.committing(connection):
            return ConnectionTransaction(connection, self._store, own=True).run(operation, *args)

    def _unheard(self, operation: Callable[[Transaction, *Ts], R], *args: *Ts) -> R:
        lent = engines.lent(self._engine)
        try:
            return ServedTransaction(lent, self._store, self._served).run(operation, *args)
        finally:
            lent.give()


def _check_pool(engine: Engine) -> None:
    """Refuse an engine whose transactions would share a connection, or have a database each."""
    if isinstance(engine.pool, (StaticPool, SingletonThreadPool)) or engines.in_memory(engine):
        where = "on a database in memory" if engine.name == "sqlite" else "on a connection for all of them"
        raise InvalidInput(
            "bind",
            f"expected an engine that gives each transaction a connection of its own to one database, found one {where}"
            f" ({type(engine.pool).__name__}): bind to a Session or a Connection of it, or use a file",
        )
