"""A host's session that can read, then write, and never find that it came too late."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

from sqlalchemy import Engine, delete, table
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
        with translated("the session's database"):
            # A session that sends readers to a replica is told of a write.
            connection = session.connection(bind_arguments={"clause": delete(table("qstore"))})
            driver = connection.connection.driver_connection
            if capabilities(connection.dialect).one_writer:
                locked.enter_context(write_locked(connection))
        try:
            yield session
            session.flush()
            with translated(described(connection.engine)):
                locked.close()  # commits where the driver is in AUTOCOMMIT
                session.commit()
        except BaseException:
            # Where SQLite refuses to commit, SQLAlchemy takes the transaction for ended, and the next one to have the
            # connection would commit it.
            with suppress(Exception):
                driver.rollback()  # type: ignore[union-attr]
            raise
