"""What runs operations, and how a database's errors are told."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from typing import Never, TypeVar, TypeVarTuple

from sqlalchemy import Connection, Engine
from typing_extensions import override

from qstore import engines
from qstore.errors import BackendUnsupported, FormatError, QstoreError
from qstore.formats import FORMATS
from qstore.naming import Names
from qstore.transaction import Store, Transaction

__all__ = ["Binding", "ClosedBinding", "Direct", "missing", "raise_known"]

Ts = TypeVarTuple("Ts")
R = TypeVar("R")


class Binding(ABC):
    """Runs operations: each one whole or not at all, with the driver's errors told in qstore's."""

    @abstractmethod
    def read(self, operation: Callable[[Transaction, *Ts], R], *args: *Ts) -> R:
        """Run an operation that only reads. It never takes the write lock."""

    @abstractmethod
    def write(self, operation: Callable[[Transaction, *Ts], R], *args: *Ts) -> R:
        """Run an operation with the write lock held from its start."""

    @abstractmethod
    def tidy(self, operation: Callable[[Transaction, *Ts], R], *args: *Ts) -> None:
        """Run a write that nobody asked for, if the transaction is not the caller's. Its failure is nobody's."""


class Direct(Binding):
    """Runs operations where it is called."""

    @override
    def read(self, operation: Callable[[Transaction, *Ts], R], *args: *Ts) -> R:
        with self._transaction(write=False) as transaction:
            return transaction.run(operation, *args)

    @override
    def write(self, operation: Callable[[Transaction, *Ts], R], *args: *Ts) -> R:
        with self._transaction(write=True) as transaction:
            return transaction.run(operation, *args)

    @abstractmethod
    def _transaction(self, *, write: bool) -> AbstractContextManager[Transaction]: ...


class ClosedBinding(Binding):
    """What a closed repository is bound to."""

    def __init__(self, repository: str) -> None:
        self._repository = repository

    def __str__(self) -> str:
        return "nothing: it is closed"

    @override
    def read(self, operation: Callable[[Transaction, *Ts], R], *args: *Ts) -> Never:
        raise QstoreError(f"this {self._repository} is closed: open another one")

    write = read

    @override
    def tidy(self, operation: Callable[[Transaction, *Ts], R], *args: *Ts) -> None:
        """Have nothing to write in."""


def raise_known(error: Exception, engine: Engine, store: Store) -> Never:
    """Raise a database's error in qstore's tree if qstore knows it, and as it is otherwise."""
    known = engines.translate(error, engines.described(engine))
    if known is None and not engines.unsure(error):  # qstore's own say that nothing was changed
        with suppress(QstoreError, *engines.ERRORS), engine.connect() as connection:
            known = missing(connection, store.names)
    if known is None:
        raise error
    if isinstance(known, BackendUnsupported) and engines.opened_path(engine) and not engines.read_only(engine):
        # SQLite keeps a connection read-only for good that it opened while the file was. The next call has another one.
        engine.dispose()
    raise known from error


def missing(connection: Connection, names: Names) -> QstoreError | None:
    """Whether a statement failed for want of the store's tables or of what they need, and if so what to do."""
    try:
        it = engines.found(connection, names.naming, names.store)
    except (BackendUnsupported, FormatError) as error:
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
