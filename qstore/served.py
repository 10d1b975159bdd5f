"""The handle that operations work on where a server's connection is lent: statements run on the driver."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any, Never, TypeVar, TypeVarTuple

from sqlalchemy import Dialect
from typing_extensions import override

from qstore.engines.lending import Lent
from qstore.engines.postgresql import committed
from qstore.formats import Addition
from qstore.naming import Names
from qstore.parallel import in_parallel
from qstore.statement import Statement
from qstore.transaction import Row, Store, Transaction

__all__ = ["Served", "ServedTransaction"]

Ts = TypeVarTuple("Ts")
R = TypeVar("R")


@cache
def _dialect() -> Dialect:
    from sqlalchemy.dialects.postgresql.base import PGDialect  # noqa: PLC0415  a program on files has no use for it

    return PGDialect(paramstyle="numeric_dollar")  # type: ignore[no-untyped-call]  # SQLAlchemy does not say


class Served(dict[Statement, tuple[str, tuple[str, ...]]]):
    """The statements of a store in one naming, as drivers take them: with $1, and the names of the binds in order."""

    def __init__(self, names: Names) -> None:
        self._names = names

    def __missing__(self, statement: Statement) -> tuple[str, tuple[str, ...]]:
        clause: Any = statement.clause(self._names).compile(dialect=_dialect())
        served = self[statement] = str(clause), tuple(clause.positiontup or ())
        return served


class ServedTransaction(Transaction):
    """Runs statements on a lent connection: an engine that nobody listens to."""

    __slots__ = ("_lent", "_served")

    def __init__(self, lent: Lent, store: Store, served: Served) -> None:
        self._store = store  # and no more calls than that: it is made for each operation
        self._lent = lent
        self._served = served

    @property
    @override
    def interruptible(self) -> bool:
        return True

    @override
    def run(self, operation: Callable[[Transaction, *Ts], R], *args: *Ts) -> R:
        return in_parallel(operation)(self, *args)

    @override
    @contextmanager
    def together(self) -> Iterator[None]:
        with committed(self._lent, self._lent.change):
            yield

    @override
    def rows(self, statement: Statement, **binds: Any) -> Sequence[Row]:
        sql, order = self._served[statement]
        return self._lent.rows(sql, [binds[name] for name in order])

    @override
    def change(self, statement: Statement, **binds: Any) -> int:
        sql, order = self._served[statement]
        return self._lent.change(sql, [binds[name] for name in order])

    @override
    def has(self, addition: Addition) -> bool:
        return False  # they are all SQLite's

    def _seen(self) -> Never:
        raise NotImplementedError

    def _execute(self, statement: Statement, binds: dict[str, Any]) -> Never:
        raise NotImplementedError
