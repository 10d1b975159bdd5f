"""What a caller hands in to say which database is meant."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import Connection, Engine
from sqlalchemy.orm import Session, scoped_session

from qstore.engines.postgresql import connected
from qstore.engines.results import translated
from qstore.errors import InvalidType

__all__ = ["Bind", "engine_of", "reading"]

Bind = Engine | Connection | Session | scoped_session[Any]
"""An Engine: a transaction of qstore's own. A Connection or Session: the caller's transaction is joined."""


def engine_of(bind: Bind) -> Engine:
    """The engine behind a bind."""
    if isinstance(bind, Engine):
        return bind
    if isinstance(bind, Connection):
        return bind.engine
    if isinstance(bind, (Session, scoped_session)):
        with translated("the caller's database"):
            return bind.connection().engine
    raise InvalidType.of("bind", bind, "a SQLAlchemy Engine, Connection or Session")


@contextmanager
def reading(bind: Bind) -> Iterator[Connection]:
    """A connection of an engine's, which is closed in the end, or the caller's own."""
    if isinstance(bind, Engine):
        with connected(bind) as connection:
            yield connection
    else:
        yield bind if isinstance(bind, Connection) else bind.connection()
