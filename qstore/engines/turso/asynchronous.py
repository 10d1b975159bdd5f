"""The same for async engines, `sqlite+qstore_aioturso`: each connection is used in a thread, as SQLite's are."""

from __future__ import annotations

from functools import partial
from typing import Any

from sqlalchemy import URL
from sqlalchemy.dialects.sqlite.aiosqlite import SQLiteDialect_aiosqlite

from qstore.engines.asynchronous import in_thread
from qstore.engines.turso.dialect import Turso
from qstore.engines.turso.driver import Connection

__all__ = ["AsyncTursoDialect"]


class AsyncTursoDialect(Turso, SQLiteDialect_aiosqlite):  # type: ignore[misc]  # as the other one
    """turso, through qstore's driver and aiosqlite's threads."""

    driver = "qstore_aioturso"
    supports_statement_cache = True

    def create_connect_args(self, url: URL) -> Any:
        """How a connection is made, in place of aiosqlite's own."""
        return [], {"async_creator_fn": partial(in_thread, partial(Connection, url.database or ""))}
