"""How statements run on PostgreSQL's drivers themselves: with $1 for values, and prepared from the first time on."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any, Protocol

from sqlalchemy.util import await_only

__all__ = ["Driving", "descriptor", "driving"]


class Driving(Protocol):
    """A driver's connection, used in sync code."""

    def rows(self, sql: str, binds: Sequence[Any]) -> Sequence[Any]:
        """Run a statement; all its rows."""

    def change(self, sql: str, binds: Sequence[Any]) -> int:
        """Run a statement that has no rows; how many it changed."""

    @property
    def idle(self) -> bool:
        """Whether it is open, in no transaction, and waits for nothing."""


def driving(connection: Any) -> Driving:
    """How a driver's connection is used."""
    if not hasattr(connection, "pgconn"):
        return _Asyncpg(connection)
    return _AsyncPsycopg(connection) if hasattr(connection, "__aenter__") else _Psycopg(connection)


def descriptor(connection: Any) -> int:
    """The descriptor of a driver's connection's socket; -1 if it has none any more."""
    number = -1
    if hasattr(connection, "pgconn"):
        if not connection.closed:
            number = connection.pgconn.socket
    elif not connection.is_closed() and hasattr(connection, "_transport"):  # asyncpg has no public name for it
        number = connection._transport.get_extra_info("socket").fileno()
    return number


class _Psycopg:
    """psycopg. It prepares nothing where its `prepare_threshold` is None, as behind PgBouncer."""

    KIND = "RawCursor"

    __slots__ = ("_cursor", "_link")

    def __init__(self, connection: Any) -> None:
        psycopg: Any = sys.modules["psycopg"]  # it has made the connection
        self._cursor: Any = getattr(psycopg, self.KIND)(connection, row_factory=psycopg.rows.tuple_row)
        self._link = connection.pgconn

    def rows(self, sql: str, binds: Sequence[Any]) -> Sequence[Any]:
        rows: Sequence[Any] = self._cursor.execute(sql, binds, prepare=True).fetchall()
        return rows

    def change(self, sql: str, binds: Sequence[Any]) -> int:
        changed: int = self._cursor.execute(sql, binds, prepare=True).rowcount
        return changed

    @property
    def idle(self) -> bool:
        idle: bool = self._link.transaction_status == 0  # libpq's PQTRANS_IDLE
        return idle


class _AsyncPsycopg(_Psycopg):
    """psycopg's async half."""

    KIND = "AsyncRawCursor"

    __slots__ = ()

    def rows(self, sql: str, binds: Sequence[Any]) -> Sequence[Any]:
        return await_only(self._rows(sql, binds))

    def change(self, sql: str, binds: Sequence[Any]) -> int:
        changed: int = await_only(self._cursor.execute(sql, binds, prepare=True)).rowcount
        return changed

    async def _rows(self, sql: str, binds: Sequence[Any]) -> Sequence[Any]:
        rows: Sequence[Any] = await (await self._cursor.execute(sql, binds, prepare=True)).fetchall()
        return rows


class _Asyncpg:
    """asyncpg. It prepares as its `statement_cache_size` says."""

    __slots__ = ("_connection",)

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def rows(self, sql: str, binds: Sequence[Any]) -> Sequence[Any]:
        rows: Sequence[Any] = await_only(self._connection.fetch(sql, *binds))
        return rows

    def change(self, sql: str, binds: Sequence[Any]) -> int:
        # "INSERT 0 5", "UPDATE 5"; nothing is counted by "BEGIN".
        counted: str = await_only(self._connection.execute(sql, *binds)).rpartition(" ")[2]
        return int(counted) if counted.isdigit() else 0

    @property
    def idle(self) -> bool:
        return not (self._connection.is_closed() or self._connection.is_in_transaction())
