"""The shop's one database: the SQLite file that SHOP_DATABASE names, or shop.sqlite."""

from __future__ import annotations

import os
from typing import Any

from sqlalchemy import URL, create_engine, event
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine
from sqlalchemy.orm import Session as OrmSession
from sqlalchemy.orm import sessionmaker

__all__ = ["AsyncSession", "Session", "async_engine", "engine"]

url = URL.create("sqlite", database=os.environ.get("SHOP_DATABASE", "shop.sqlite"))
engine = create_engine(url)
async_engine = create_async_engine(url.set(drivername="sqlite+aiosqlite"))
Session = sessionmaker[OrmSession](engine)
AsyncSession = async_sessionmaker(async_engine)


@event.listens_for(engine, "connect")
@event.listens_for(async_engine.sync_engine, "connect")
def _set(connection: Any, _record: object) -> None:
    """The shop's own settings: readers and the writer do not wait for each other, and references hold."""
    connection.execute("PRAGMA journal_mode = WAL").close()
    connection.execute("PRAGMA foreign_keys = ON").close()
