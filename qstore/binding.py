"""How a repository meets its database: transactions opened or joined, on an Engine, a Connection or a Session.

The only file that tells these apart. Operations see a `Transaction` and nothing else.
"""

from __future__ import annotations

import asyncio
import random
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from typing import Any, Concatenate, Never, ParamSpec, TypeVar
from weakref import WeakKeyDictionary

from sqlalchemy import Connection, Delete, Engine, SingletonThreadPool, StaticPool, delete, table
from sqlalchemy.orm import Session, scoped_session
from sqlalchemy.util import await_only
from typing_extensions import override

from qstore import engines
from qstore.capabilities import capabilities
from qstore.clock import Clock
from qstore.engines import Bind, File
from qstore.engines.locking import begun, impatient, in_transaction, savepoint, write_locked
from qstore.errors import FormatError, InvalidInput, InvalidType, QstoreError
from qstore.formats import FORMATS
from qstore.naming import Names, Naming
from qstore.statement import DriverStatement, Statement
from qstore.transaction import ConnectionTransaction, DriverTransaction, Store, Transaction, seen_on

__all__ = ["Bind", "Binding", "ClosedBinding", "bind_to"]

P = ParamSpec("P")
R = TypeVar("R")

CONFLICT_PAUSES = tuple(0.002 * 2 ** min(attempt, 6) for attempt in range(20))
"""Seconds, at most, before each repeat of what a server has refused for a conflict with another transaction."""


class Binding(ABC):
    """Runs operations: each one whole or not at all, with the driver's errors told in qstore's."""

    @abstractmethod
    def read(self, operation: Callable[Concatenate[Transaction, P], R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Run an operation that only reads. It never takes the write lock."""

    @abstractmethod
    def write(self, operation: Callable[Concatenate[Transaction, P], R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Run an operation with the write lock held from its start."""

    @abstractmethod
    def tidy(self, operation: Callable[Concatenate[Transaction, P], R], *args: P.args, **kwargs: P.kwargs) -> None:
        """Run a write that nobody asked for, if the transaction is not the caller's. Its failure is nobody's."""


class _Direct(Binding):
    """Runs operations where it is called."""

    def read(self, operation: Callable[Concatenate[Transaction, P], R], *args: P.args, **kwargs: P.kwargs) -> R:
        with self._transaction(write=False) as transaction:
            return transaction.run(operation, *args, **kwargs)

    def write(self, operation: Callable[Concatenate[Transaction, P], R], *args: P.args, **kwargs: P.kwargs) -> R:
        with self._transaction(write=True) as transaction:
            return transaction.run(operation, *args, **kwargs)

    @abstractmethod
    def _transaction(self, *, write: bool) -> AbstractContextManager[Transaction]: ...


def bind_to(bind: Bind | Binding, naming: Naming, store: str, clock: Clock | None) -> Binding:
    """The binding for whatever the caller has; an async twin has one already."""
    if isinstance(bind, Binding):
        return bind
    if not isinstance(naming, Naming):
        raise InvalidType.of("naming", naming, "a Naming")
    if clock is not None and not callable(clock):
        raise InvalidType.of("clock", clock, "a callable that returns epoch seconds")
    it = Store(naming.of(store), clock)
    if isinstance(bind, Engine):
        if not capabilities(bind.dialect).one_writer:
            return _ServerBinding(bind, it)
        opened = engines.opened_path(bind) is not None and not bind.dialect.is_async
        return _OpenedBinding(bind, it) if opened else _EngineBinding(bind, it)
    if isinstance(bind, Connection):
        return _JoinedBinding(lambda: bind, it)
    if isinstance(bind, (Session, scoped_session)):
        # A Session that sends readers to a replica, or has several engines, is told of a write to the store's table.
        told = {"clause": _write_to(naming, store)}
        return _JoinedBinding(lambda: bind.connection(bind_arguments=told), it)
    raise InvalidType.of("bind", bind, "a SQLAlchemy Engine, Connection or Session (for an async one: the Async twin)")


class _EngineBinding(_Direct):
    """A short transaction an operation, on a connection of the engine's pool."""

    def __init__(self, engine: Engine, store: Store) -> None:
        engines.check_back_end(engine, store.names.naming)
        if isinstance(engine.pool, (StaticPool, SingletonThreadPool)) or engines.in_memory(engine):
            raise InvalidInput(
                "bind",
                "expected an engine that gives each transaction a connection of its own to one database, found one on a"
                f" database in memory ({type(engine.pool).__name__}): bind to a Session or a Connection of it, or use a"
                " file",
            )
        self._engine = engine
        self._store = store

    def __str__(self) -> str:
        return engines.described(self._engine)

    def tidy(self, operation: Callable[Concatenate[Transaction, P], R], *args: P.args, **kwargs: P.kwargs) -> None:
        if not engines.read_only(self._engine):
            with suppress(QstoreError, *engines.ERRORS):
                self.write(operation, *args, **kwargs)

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
            _raise(error, self._engine, self._store)


class _OpenedBinding(Binding):
    """An engine that qstore opened: statements run on the driver's connection, unless somebody listens to them."""

    def __init__(self, engine: Engine, store: Store) -> None:
        self._listened = _EngineBinding(engine, store)
        self._engine = engine
        self._store = store
        self._file: File = engine.get_execution_options()["qstore_file"]
        self._statements: dict[Statement, DriverStatement] = {}
        self._seen = seen_on(engine, store.names)

    def __str__(self) -> str:
        return str(self._listened)

    def read(self, operation: Callable[Concatenate[Transaction, P], R], *args: P.args, **kwargs: P.kwargs) -> R:
        if engines.listened_to(self._engine):
            return self._listened.read(operation, *args, **kwargs)
        pool: Any = self._engine.pool
        try:
            self._file.glance()
            held = pool.take()
            try:
                transaction = DriverTransaction(held.driver, self._store, self._compiled, self._seen, held)
                return operation(transaction, *args, **kwargs)
            finally:
                pool.give(held)
        except engines.ERRORS as error:
            _raise(error, self._engine, self._store)

    def write(self, operation: Callable[Concatenate[Transaction, P], R], *args: P.args, **kwargs: P.kwargs) -> R:
        if engines.listened_to(self._engine):
            return self._listened.write(operation, *args, **kwargs)
        return self._write(nullcontext, operation, *args, **kwargs)

    def tidy(self, operation: Callable[Concatenate[Transaction, P], R], *args: P.args, **kwargs: P.kwargs) -> None:
        if engines.listened_to(self._engine):
            self._listened.tidy(operation, *args, **kwargs)
        elif not self._file.read_only:
            with suppress(QstoreError, *engines.ERRORS):
                self._write(impatient, operation, *args, **kwargs)

    def _write(
        self,
        waiting: Callable[[Any], AbstractContextManager[None]],
        operation: Callable[Concatenate[Transaction, P], R],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> R:
        pool: Any = self._engine.pool
        try:
            self._file.check()
            held = pool.take()
            driver = held.driver
            try:
                with waiting(driver):
                    driver.execute("BEGIN IMMEDIATE")
                result = operation(DriverTransaction(driver, self._store, self._compiled, self._seen), *args, **kwargs)
                driver.execute("COMMIT")
                return result
            except BaseException:
                if driver.in_transaction:  # SQLite may have rolled back by itself, a full disk for one
                    driver.execute("ROLLBACK")
                raise
            finally:
                pool.give(held)
        except engines.ERRORS as error:
            _raise(error, self._engine, self._store)

    def _compiled(self, statement: Statement) -> DriverStatement:
        compiled = self._statements.get(statement)
        if compiled is None:
            compiled = self._statements[statement] = statement.compiled(self._store.names, self._engine.dialect)
        return compiled


class _ServerBinding(Binding):
    """A server's engine: an operation is one statement, or a few that each stand alone, and committed by itself."""

    def __init__(self, engine: Engine, store: Store) -> None:
        engines.check_back_end(engine, store.names.naming)
        self._engine = engine
        self._store = store
        # It shares the engine's pool and listeners, and changes nothing of them. A statement is one round trip so.
        self._committing = engine.execution_options(isolation_level="AUTOCOMMIT")

    def __str__(self) -> str:
        return engines.described(self._engine)

    def read(self, operation: Callable[Concatenate[Transaction, P], R], *args: P.args, **kwargs: P.kwargs) -> R:
        for pause in (*CONFLICT_PAUSES, None):
            try:
                with self._committing.connect() as connection:
                    return ConnectionTransaction(connection, self._store, own=True).run(operation, *args, **kwargs)
            except engines.ERRORS as error:
                if pause is None or not engines.conflict(error):
                    _raise(error, self._engine, self._store)
            _sleep(self._engine, random.uniform(0, pause))  # noqa: S311  to come apart from who it met
        raise AssertionError

    write = read

    def tidy(self, operation: Callable[Concatenate[Transaction, P], R], *args: P.args, **kwargs: P.kwargs) -> None:
        with suppress(QstoreError, *engines.ERRORS):
            self.write(operation, *args, **kwargs)


class _JoinedBinding(_Direct):
    """The caller's own transaction: it is never begun, committed, rolled back or closed here."""

    def __init__(self, connection: Callable[[], Connection], store: Store) -> None:
        self._connection = connection
        self._store = store

    def __str__(self) -> str:
        return "the caller's transaction"

    def tidy(self, operation: Callable[Concatenate[Transaction, P], R], *args: P.args, **kwargs: P.kwargs) -> None:
        """Leave it to somebody with a transaction of their own."""

    @contextmanager
    def _transaction(self, *, write: bool) -> Iterator[Transaction]:
        with engines.translated("the caller's database"):
            connection = self._connection()
            engines.check_back_end(connection.engine, self._store.names.naming)
            if not connection.in_transaction():
                connection.begin()  # what SQLAlchemy does by itself with the first statement
        try:
            with ExitStack() as stack:
                stack.enter_context(_turn(connection))
                if not capabilities(connection.dialect).one_writer:
                    stack.enter_context(connection.begin_nested() if write else nullcontext())
                elif write:
                    stack.enter_context(write_locked(connection))
                    stack.enter_context(savepoint(connection))
                else:
                    begun(connection)
                yield ConnectionTransaction(connection, self._store, own=False)
        except engines.ERRORS as error:
            known = engines.translate(error, engines.described(connection.engine))
            if known is None:
                with suppress(*engines.ERRORS):
                    known = _missing(connection, self._store.names)
            elif capabilities(connection.dialect).one_writer and not in_transaction(connection):
                known.add_note("SQLite has rolled back the whole transaction, with all that was done in it before.")
            if known is None:
                raise
            raise known from error


class ClosedBinding(Binding):
    """What a closed repository is bound to."""

    def __init__(self, repository: str) -> None:
        self._repository = repository

    def __str__(self) -> str:
        return "nothing: it is closed"

    @override
    def read(self, *_: Any, **__: Any) -> Never:
        raise QstoreError(f"this {self._repository} is closed: open another one")

    write = read

    def tidy(self, *_: Any, **__: Any) -> None:
        """Have nothing to write in."""


def _write_to(naming: Naming, store: str) -> Delete:
    name = naming.name(store, FORMATS[store].tables[-1])
    key = name if naming.schema is None else f"{naming.schema}.{name}"
    mapped = None if naming.metadata is None else naming.metadata.tables.get(key)
    return delete(table(name) if mapped is None else mapped)


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


def _sleep(engine: Engine, seconds: float) -> None:
    if engine.dialect.is_async:
        await_only(asyncio.sleep(seconds))
    else:
        time.sleep(seconds)


def _raise(error: Exception, engine: Engine, store: Store) -> Never:
    """Raise a database's error in qstore's tree if qstore knows it, and as it is otherwise."""
    known = engines.translate(error, engines.described(engine))
    if known is None:
        with suppress(*engines.ERRORS), engine.connect() as connection:
            known = _missing(connection, store.names)
    if known is None:
        raise error
    raise known from error


def _missing(connection: Connection, names: Names) -> FormatError | None:
    """Whether a statement failed for want of the store's tables, and if so what to do."""
    try:
        it = engines.found(connection, names.naming, names.store)
    except FormatError as error:
        return error
    if it.complete:
        return None
    return FormatError(
        f"the database does not have the tables of {names.store}. Make them with qstore.migrate.upgrade() and the same"
        " naming, or pass the naming that they were mounted with",
        found="a part of the store" if it.present else "no store",
        supported=FORMATS[names.store].marker,
        target=engines.described(connection.engine),
    )
