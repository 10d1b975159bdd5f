"""The shop's one database: the SQLite file that SHOP_DATABASE names, or shop.sqlite."""

from __future__ import annotations

import os
import sqlite3

from sqlalchemy import URL, create_engine, event
from sqlalchemy.orm import Session as OrmSession
from sqlalchemy.orm import sessionmaker

__all__ = ["Session", "engine"]

engine = create_engine(URL.create("sqlite", database=os.environ.get("SHOP_DATABASE", "shop.sqlite")))
Session = sessionmaker[OrmSession](engine)


@event.listens_for(engine, "connect")
def _set(connection: sqlite3.Connection, _record: object) -> None:
    """The shop's own settings: readers and the writer do not wait for each other, and references hold."""
    connection.execute("PRAGMA journal_mode = WAL").close()
    connection.execute("PRAGMA foreign_keys = ON").close()
