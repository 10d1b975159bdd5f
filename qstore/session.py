"""A host's session that can read, then write, and never find that it came too late."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from sqlalchemy import Engine
from sqlalchemy.orm import Session, sessionmaker

from qstore.capabilities import capabilities
from qstore.engines import described, translated
from qstore.engines.locking import write_locked
from qstore.errors import InvalidType

__all__ = ["write_session"]


@contextmanager
def write_session(bind: Engine | sessionmaker[Any]) -> Iterator[Session]:
    """A session whose first act is to take the write lock; it commits at the end, or rolls back on any error.

    On SQLite a transaction that has read can no longer write once another connection has written. One that takes the
    lock first never meets that. StoreBusy if the lock is not had in time; the block was not entered then.
    """
    if not isinstance(bind, (Engine, sessionmaker)):
        raise InvalidType.of("bind", bind, "an Engine or a sessionmaker")
    with Session(bind) if isinstance(bind, Engine) else bind() as session, ExitStack() as locked:
        connection = session.connection()
        capabilities(connection.dialect)
        with translated(described(connection.engine)):
            locked.enter_context(write_locked(connection))
        yield session
        session.flush()
        locked.close()  # commits where the driver is in AUTOCOMMIT
        session.commit()
