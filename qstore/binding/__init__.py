"""How a repository meets its database: transactions opened or joined, on an Engine, a Connection or a Session.

The only room that tells these apart. Operations see a `Transaction` and nothing else.
"""

from __future__ import annotations

from sqlalchemy import Connection, Delete, Engine, delete, table
from sqlalchemy.orm import Session, scoped_session

from qstore import engines
from qstore.binding.binding import Binding, ClosedBinding
from qstore.binding.engine import EngineBinding, ServerBinding
from qstore.binding.joined import JoinedBinding
from qstore.binding.opened import OpenedBinding
from qstore.capabilities import capabilities
from qstore.clock import Clock
from qstore.engines import Bind
from qstore.errors import InvalidType
from qstore.formats import FORMATS
from qstore.naming import Naming
from qstore.transaction import Store

__all__ = ["Bind", "Binding", "ClosedBinding", "bind_to"]


def bind_to(bind: Bind | Binding, naming: Naming, store: str, clock: Clock | None) -> Binding:
    """The binding for whatever the caller has; an async twin has one already."""
    if isinstance(bind, Binding):
        return bind
    if not isinstance(naming, Naming):
        raise InvalidType.of("naming", naming, "a Naming")
    if clock is not None and not callable(clock):
        raise InvalidType.of("clock", clock, "a callable that returns epoch seconds")
    it = Store(naming.of(store), clock)
    if isinstance(bind, Engine):
        if not capabilities(bind.dialect).one_writer:
            return ServerBinding(bind, it)
        opened = engines.opened_path(bind) is not None and not bind.dialect.is_async
        return OpenedBinding(bind, it) if opened else EngineBinding(bind, it)
    if isinstance(bind, Connection):
        return JoinedBinding(lambda: bind, it)
    if isinstance(bind, (Session, scoped_session)):
        # A Session that sends readers to a replica, or has several engines, is told of a write to the store's table.
        told = {"clause": _write_to(naming, store)}
        return JoinedBinding(lambda: bind.connection(bind_arguments=told), it)
    raise InvalidType.of("bind", bind, "a SQLAlchemy Engine, Connection or Session (for an async one: the Async twin)")


def _write_to(naming: Naming, store: str) -> Delete:
    name = naming.name(store, FORMATS[store].tables[-1])
    key = name if naming.schema is None else f"{naming.schema}.{name}"
    mapped = None if naming.metadata is None else naming.metadata.tables.get(key)
    return delete(table(name) if mapped is None else mapped)
