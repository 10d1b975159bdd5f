"""SQLAlchemy's SQLite dialect on turso, `sqlite+qstore_turso`. Errors are sqlite3's: its module stands for turso's."""

from __future__ import annotations

from typing import Any

from sqlalchemy import URL, QueuePool
from sqlalchemy.dialects.sqlite.pysqlite import SQLiteDialect_pysqlite

from qstore.engines.turso.driver import Connection
from qstore.naming import TURSO_INTERNAL

__all__ = ["Turso", "TursoDialect"]


class Turso:
    """What turso has otherwise than sqlite3."""

    supports_native_datetime = False

    def on_connect(self) -> Any:
        """Nothing: turso has no functions of Python's."""

    def get_table_names(self, *args: Any, **named: Any) -> list[str]:
        """The tables, without those that turso makes for itself: Alembic would want to drop them."""
        names: list[str] = super().get_table_names(*args, **named)  # type: ignore[misc]  # of the dialect that it is mixed with
        return [name for name in names if not name.startswith(TURSO_INTERNAL)]

    def set_isolation_level(self, dbapi_connection: Any, level: str) -> None:
        """AUTOCOMMIT, or transactions that SQLAlchemy begins."""
        dbapi_connection.isolation_level = None if level == "AUTOCOMMIT" else ""

    def get_isolation_level(self, dbapi_connection: Any) -> str:
        """There is one level besides AUTOCOMMIT."""
        return "AUTOCOMMIT" if dbapi_connection.isolation_level is None else "SERIALIZABLE"

    def do_begin(self, dbapi_connection: Any) -> None:
        """Begin a transaction, which the driver does not do by itself."""
        driver = getattr(dbapi_connection, "driver_connection", dbapi_connection)
        if driver.isolation_level is not None and not driver.in_transaction:
            cursor = dbapi_connection.cursor()
            cursor.execute("BEGIN")
            cursor.close()


class TursoDialect(Turso, SQLiteDialect_pysqlite):  # type: ignore[misc]  # SQLAlchemy types its levels one by one
    """turso, through qstore's driver."""

    driver = "qstore_turso"
    supports_statement_cache = True

    @classmethod
    def get_pool_class(cls, _url: URL) -> Any:
        """Connections cost nothing here: they share one."""
        return QueuePool

    def create_connect_args(self, url: URL) -> Any:
        """The path alone."""
        return [url.database], {}

    def connect(self, *arguments: Any, **_: Any) -> Any:
        """A connection."""
        return Connection(*arguments)
