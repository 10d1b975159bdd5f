"""Bound to an Engine: a short transaction of qstore's own for each operation."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from typing import Any, TypeVar, TypeVarTuple

from sqlalchemy import Engine, SingletonThreadPool, StaticPool
from sqlalchemy.util import await_only
from typing_extensions import override

from qstore import engines
from qstore.binding.binding import Binding, Direct, raise_known
from qstore.engines import File
from qstore.engines.holding import Held
from qstore.engines.locking import impatient, write_locked
from qstore.errors import InvalidInput, QstoreError
from qstore.transaction import ConnectionTransaction, DriverTransaction, Store, Transaction, seen_on

__all__ = ["EngineBinding", "OpenedBinding", "ServerBinding"]

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
            with suppress(QstoreError, *engines.ERRORS):
                self.write(operation, *args)

    @contextmanager
    def _transaction(self, *, write: bool) -> Iterator[Transaction]:
        try:
            with (
                self._engine.connect() as connection,
                connection.begin(),
                write_locked(connection) if write else nullcontext(),
            ):
                yield ConnectionTransaction(connection, self._store, own=True)
        except engines.ERRORS as error:
            raise_known(error, self._engine, self._store)


class OpenedBinding(Binding):
    """An engine that qstore opened: statements run on the driver's connection, unless somebody listens to them."""

    def __init__(self, engine: Engine, store: Store) -> None:
        self._listened = EngineBinding(engine, store)
        self._engine = engine
        self._store = store
        self._file: File = engine.get_execution_options()["qstore_file"]
        self._seen = seen_on(engine, store.names)

    def __str__(self) -> str:
        return str(self._listened)

    @override
    def read(self, operation: Callable[[Transaction, *Ts], R], *args: *Ts) -> R:
        if engines.listened_to(self._engine):
            return self._listened.read(operation, *args)
        pool: Any = self._engine.pool
        try:
            if time.monotonic() >= self._file.look_again:
                self._file.look()
            held = pool.take()
            try:
                result = operation(self._on(held), *args)
            except BaseException:
                held.end()
                raise
            pool.give(held)
            return result
        except engines.ERRORS as error:
            raise_known(error, self._engine, self._store)

    @override
    def write(self, operation: Callable[[Transaction, *Ts], R], *args: *Ts) -> R:
        if engines.listened_to(self._engine):
            return self._listened.write(operation, *args)
        return self._write(nullcontext, operation, *args)

    @override
    def tidy(self, operation: Callable[[Transaction, *Ts], R], *args: *Ts) -> None:
        if engines.listened_to(self._engine):
            self._listened.tidy(operation, *args)
        elif not self._file.read_only:
            with suppress(QstoreError, *engines.ERRORS):
                self._write(impatient, operation, *args)

    def _write(
        self,
        waiting: Callable[[Any], AbstractContextManager[None]],
        operation: Callable[[Transaction, *Ts], R],
        *args: *Ts,
    ) -> R:
        pool: Any = self._engine.pool
        try:
            self._file.check()
            held = pool.take()
            driver = held.driver
            try:
                with waiting(driver):
                    driver.execute("BEGIN IMMEDIATE")
                result = operation(self._on(held), *args)
                driver.execute("COMMIT")
            except BaseException:
                held.end()
                raise
            pool.give(held)
            return result
        except engines.ERRORS as error:
            raise_known(error, self._engine, self._store)

    def _on(self, held: Held) -> DriverTransaction:
        """The handle on a connection, which keeps it for as long as it is this store that uses it."""
        handle: DriverTransaction | None = held.handle
        if handle is None or handle._store is not self._store:
            handle = held.handle = DriverTransaction(held, self._store, self._seen)
        return handle


class ServerBinding(Binding):
    """A server's engine: an operation is one statement, or a few that each stand alone, and committed by itself."""

    def __init__(self, engine: Engine, store: Store) -> None:
        engines.check_back_end(engine, store.names.naming)
        _check_pool(engine)
        self._engine = engine
        self._store = store

    def __str__(self) -> str:
        return engines.described(self._engine)

    @override
    def read(self, operation: Callable[[Transaction, *Ts], R], *args: *Ts) -> R:
        for pause in (*CONFLICT_PAUSES, None):
            try:
                with engines.connected(self._engine) as connection, engines.committing(connection):
                    return ConnectionTransaction(connection, self._store, own=True).run(operation, *args)
            except engines.ERRORS as error:
                if pause is None or not engines.conflict(error):
                    raise_known(error, self._engine, self._store)
            _sleep(self._engine, random.uniform(0, pause))  # noqa: S311  to come apart from who it met
        raise AssertionError

    write = read

    @override
    def tidy(self, operation: Callable[[Transaction, *Ts], R], *args: *Ts) -> None:
        with suppress(QstoreError, *engines.ERRORS):
            self.write(operation, *args)


def _check_pool(engine: Engine) -> None:
    """Refuse an engine whose transactions would share a connection, or have a database each."""
    if isinstance(engine.pool, (StaticPool, SingletonThreadPool)) or engines.in_memory(engine):
        where = "on a database in memory" if engine.name == "sqlite" else "on a connection for all of them"
        raise InvalidInput(
            "bind",
            f"expected an engine that gives each transaction a connection of its own to one database, found one {where}"
            f" ({type(engine.pool).__name__}): bind to a Session or a Connection of it, or use a file",
        )


def _sleep(engine: Engine, seconds: float) -> None:
    if engine.dialect.is_async:
        await_only(asyncio.sleep(seconds))
    else:
        time.sleep(seconds)
