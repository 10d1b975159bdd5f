"""A server's connections, lent to one operation at a time: statements run on the driver, and each commits by itself."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Any, NoReturn, cast

from sqlalchemy import AsyncAdaptedQueuePool, Engine, Pool
from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlalchemy.pool import PoolProxiedConnection
from typing_extensions import override

from qstore.engines.driving import Driving, driving
from qstore.engines.holding import HoldingPool

__all__ = ["AsyncLendingPool", "LendingPool", "Lent", "lend"]


class Lent:
    """A connection that nobody else uses until it is given back. It runs statements on the driver itself."""

    __slots__ = ("_autocommit", "_connection", "_driving", "_engine", "_pool", "_proxy")

    def __init__(self, engine: Engine, pool: Pool, proxy: PoolProxiedConnection) -> None:
        self._engine = engine
        self._pool = pool
        self._proxy = proxy
        connection: Any = proxy.dbapi_connection
        self._connection = connection
        self._driving: Driving = driving(proxy.driver_connection)
        self._autocommit: bool = connection.autocommit
        try:
            # On the driver's own attribute: SQLAlchemy's AUTOCOMMIT sets the isolation level too, and later not to what
            # it was.
            if not self._autocommit:
                if not self._driving.idle:
                    connection.commit()  # what a listener has begun on it
                connection.autocommit = True
        except BaseException:
            proxy.invalidate()
            raise

    def rows(self, sql: str, binds: Sequence[Any]) -> Sequence[Any]:
        """Run a statement; all its rows. The driver's errors come in SQLAlchemy's, as from its own connections."""
        try:
            return self._driving.rows(sql, binds)
        except BaseException as error:  # noqa: BLE001  it is raised again
            self._fail(error, sql, binds)

    def change(self, sql: str, binds: Sequence[Any] = ()) -> int:
        """Run a statement that has no rows; how many it changed."""
        try:
            return self._driving.change(sql, binds)
        except BaseException as error:  # noqa: BLE001  it is raised again
            self._fail(error, sql, binds)

    @property
    def invalidated(self) -> bool:
        """Whether it was lost, or interrupted in what it did: it is closed."""
        return not self._proxy.is_valid

    @property
    def in_transaction(self) -> bool:
        """Whether it is in a state in which nobody else could use it."""
        return self.invalidated or not self._driving.idle

    def give(self) -> None:
        """Give it back."""
        self.end()

    def end(self) -> None:
        """Check it in as it was found, or close it where that cannot be."""
        if not self._autocommit and not self.in_transaction:
            with suppress(self._engine.dialect.loaded_dbapi.Error):
                self._connection.autocommit = False
        if self.invalidated:
            return
        if self.in_transaction or self._connection.autocommit != self._autocommit:
            self._proxy.invalidate()
        else:
            self._proxy.close()

    def _fail(self, error: BaseException, sql: str, binds: Sequence[Any]) -> NoReturn:
        if not isinstance(error, Exception):
            self._proxy.invalidate(error)
            raise error
        told = _told(self._connection, error)
        dialect = self._engine.dialect
        if not isinstance(told, dialect.loaded_dbapi.Error):
            raise error
        lost = dialect.is_disconnect(told, self._connection, None)
        if lost:  # and with it, for all one knows, all that were opened before
            cast(Any, self._pool)._invalidate(self._proxy, error)
        raise _raised(self._engine, told, sql, binds, lost=lost) from error


_PLANS = ("enable_seqscan", "jit")
"""What is off while a connection is lent. A plan is kept for as long as a session lasts; one that was made while a
queue was nearly empty would read the whole table, also when that has grown, or has many dead rows.
"""


_SEQUENCE = re.compile(r"pg_get_serial_sequence\('[^']*',\s+'\w+'\)")


class Kept(Lent):
    """A connection that stays lent between operations. Plans are made for tables that grow."""

    __slots__ = ("_known",)

    def __init__(self, engine: Engine, pool: Pool, proxy: PoolProxiedConnection) -> None:
        super().__init__(engine, pool, proxy)
        self._known: dict[str, str] = {}
        try:
            for name in _PLANS:
                self.change(f"SET {name} = off")
        except BaseException:
            self.end()
            raise

    @override
    def rows(self, sql: str, binds: Sequence[Any]) -> Sequence[Any]:
        return super().rows(self._known.get(sql) or self._with_sequences(sql), binds)

    def _with_sequences(self, sql: str) -> str:
        """A statement that need not ask which sequence is a table's: the session's search path stays what it is."""
        known = sql
        for asked in set(_SEQUENCE.findall(sql)):
            [(name,)] = super().rows(f"SELECT {asked}", ())
            if name is not None:
                known = known.replace(asked, "'" + name.replace("'", "''") + "'")
        self._known[sql] = known
        return known

    @override
    def give(self) -> None:
        if self.in_transaction:
            self.end()
        else:
            cast(LendingPool, self._pool).give(self)

    @override
    def end(self) -> None:
        with suppress(SQLAlchemyError):
            for name in () if self.in_transaction else _PLANS:
                self.change(f"RESET {name}")
        super().end()


class LendingPool(HoldingPool):
    """A pool whose connections stay lent until somebody asks the pool for one."""

    def lend_on(self, engine: Engine) -> Kept:
        """A connection, until it is given back."""
        kept: Kept = self.take(partial(Kept, engine, self))
        return kept

    @override
    def _invalidate(self, *args: Any, **kwargs: Any) -> None:
        super()._invalidate(*args, **kwargs)
        self._let_go()


class AsyncLendingPool(LendingPool, AsyncAdaptedQueuePool):
    """The same on an async driver."""


def lend(engine: Engine) -> Lent:
    """A connection of the engine's pool."""
    try:
        pool = engine.pool
        return pool.lend_on(engine) if isinstance(pool, LendingPool) else Lent(engine, pool, pool.connect())
    except engine.dialect.loaded_dbapi.Error as error:
        raise _raised(engine, error, None, None, lost=False) from error


def _told(connection: Any, error: Exception) -> Exception:
    """What SQLAlchemy's adapter makes of an async driver's error."""
    adapted = getattr(connection, "_handle_exception", None)
    if adapted is not None:
        try:
            adapted(error)
        except Exception as told:  # noqa: BLE001  that is how it tells
            return told
    return error


def _raised(
    engine: Engine, error: BaseException, sql: str | None, binds: Sequence[Any] | None, *, lost: bool
) -> BaseException:
    raised: BaseException = DBAPIError.instance(
        sql,
        cast(Any, binds),
        cast(Any, error),
        engine.dialect.loaded_dbapi.Error,
        hide_parameters=engine.hide_parameters,
        connection_invalidated=lost,
        dialect=engine.dialect,
    )
    return raised
