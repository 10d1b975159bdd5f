"""A host's session that can read, then write, and never find that it came too late."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from typing import TYPE_CHECKING, Any

from sqlalchemy import Engine, delete, table
from sqlalchemy.orm import Session, sessionmaker
from sqlalchemy.util import greenlet_spawn

from qstore.capabilities import capabilities
from qstore.engines import asynchronous_extra, described, translated
from qstore.engines.locking import write_locked
from qstore.errors import InvalidType

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, async_sessionmaker

__all__ = ["async_write_session", "write_session"]


@contextmanager
def write_session(bind: Engine | sessionmaker[Any]) -> Iterator[Session]:
    """A session whose first act is to take the write lock; it commits at the end, or rolls back on any error.

    On SQLite a transaction that has read can no longer write once another connection has written. One that takes the
    lock first never meets that. StoreBusy if the lock is not had in time; the block was not entered then.
    """
    if not isinstance(bind, (Engine, sessionmaker)):
        raise InvalidType.of("bind", bind, "an Engine or a sessionmaker")
    with Session(bind) if isinstance(bind, Engine) else bind() as session, _writing(session):
        yield session


@asynccontextmanager
async def async_write_session(bind: AsyncEngine | async_sessionmaker[Any]) -> AsyncIterator[AsyncSession]:
    """The async twin of `write_session`, for `async with`."""
    with asynchronous_extra():
        from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, async_sessionmaker  # noqa: PLC0415  the extra
    if not isinstance(bind, (AsyncEngine, async_sessionmaker)):
        raise InvalidType.of("bind", bind, "an AsyncEngine or an async_sessionmaker")
    async with AsyncSession(bind) if isinstance(bind, AsyncEngine) else bind() as session:
        writing = _writing(session.sync_session)
        await greenlet_spawn(writing.__enter__)
        try:
            yield session
        except BaseException as error:
            await greenlet_spawn(writing.__exit__, type(error), error, error.__traceback__)
            raise
        await greenlet_spawn(writing.__exit__, None, None, None)


@contextmanager
def _writing(session: Session) -> Iterator[None]:
    with ExitStack() as locked:
        with translated("the session's database"):
            # A session that sends readers to a replica is told of a write.
            connection = session.connection(bind_arguments={"clause": delete(table("qstore"))})
            driver = connection.connection.dbapi_connection
            if capabilities(connection.dialect).one_writer:
                locked.enter_context(write_locked(connection))
        try:
            yield
            session.flush()
            with translated(described(connection.engine)):
                locked.close()  # commits where the driver is in AUTOCOMMIT
                session.commit()
        except BaseException:
            # Where SQLite refuses to commit, SQLAlchemy takes the transaction for ended, and the next one to have the
            # connection would commit it.
            with suppress(Exception):
                driver.rollback()  # type: ignore[union-attr]  # a connection in use has one
            raise
