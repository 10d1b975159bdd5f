"""Bindings for the async twins. An operation runs in a thread or a task of its own, and is awaited from a greenlet.

A twin calls the sync repository's method as one that may `suspend` itself, so that all its logic is the sync one's:
arguments are checked and records made in the caller's task, and only the operation goes elsewhere.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar, TypeVarTuple
from weakref import WeakKeyDictionary

from sqlalchemy import Connection, Engine, QueuePool
from sqlalchemy.orm import Session
from typing_extensions import override

from qstore.binding import Bind, Binding, bind_to
from qstore.calls import Call, Lane, Tasks
from qstore.clock import Clock
from qstore.engines import asynchronous_extra, companion, listened_to
from qstore.errors import InvalidInput, InvalidType
from qstore.naming import Naming
from qstore.suspending import suspend
from qstore.transaction import Transaction

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, AsyncSession, async_scoped_session

    AsyncBind = AsyncEngine | AsyncConnection | AsyncSession | async_scoped_session[Any]
    """An AsyncEngine: a transaction of qstore's own. An AsyncConnection or AsyncSession: the caller's is joined."""
else:
    AsyncBind = Any  # their module cannot be imported without the extra

__all__ = ["AsyncBind", "AwaitedBinding", "await_to", "awaited", "is_async"]

Ts = TypeVarTuple("Ts")
R = TypeVar("R")


def await_to(bind: AsyncBind, naming: Naming, store: str, clock: Clock | None) -> Any:
    """The binding for whatever the caller has: what a sync repository takes in place of a bind of its own."""

    def joined() -> _Way:
        it = sync_of(bind)
        tasks = _tasks_on(it, 1)  # neither a connection nor a session takes two calls at the same time
        return _Way(bind_to(it, naming, store, clock), tasks.put, tasks.put, at_once=False)

    it = sync_of(bind)
    if isinstance(it, Engine):
        return _engine_binding(it, lambda engine: bind_to(engine, naming, store, clock))
    return AwaitedBinding(joined) if callable(bind) else _always(joined())


async def awaited(bind: AsyncBind | Engine, work: Callable[[Bind], R]) -> R:
    """Do a larger work with what the caller has, in a thread or through its async driver. Cancelled, it ends first."""
    it = bind if isinstance(bind, Engine) else sync_of(bind)
    behind = companion(it) if isinstance(it, Engine) else None
    if behind is not None:
        it, put = behind.engine, behind.writing.put
    else:
        put = Lane(1).put if it is bind else _tasks_on(it, 1).put
    call = Call[R](lambda _: work(it))
    put(call)
    return await call.outcome(at_once=False)


def is_async(bind: object) -> bool:
    """Whether a bind is one that is awaited."""
    # SQLAlchemy's module for these may be absent, and takes its time; without it there are none.
    kinds = sys.modules.get("sqlalchemy.ext.asyncio")
    return kinds is not None and isinstance(
        bind, (kinds.AsyncEngine, kinds.AsyncConnection, kinds.AsyncSession, kinds.async_scoped_session)
    )


def sync_of(bind: AsyncBind) -> Engine | Connection | Session:
    """The sync engine, connection or session within an async one."""
    with asynchronous_extra():
        from sqlalchemy.ext.asyncio import (  # noqa: PLC0415  needs the extra
            AsyncConnection,
            AsyncEngine,
            AsyncSession,
            async_scoped_session,
        )
    if isinstance(bind, AsyncEngine):
        return bind.sync_engine
    if isinstance(bind, AsyncConnection):
        if bind.sync_connection is None:
            raise InvalidInput("bind", "expected an AsyncConnection that is begun: await it, or use `async with`")
        return bind.sync_connection
    if isinstance(bind, async_scoped_session):
        session: Session = bind().sync_session
        return session
    if isinstance(bind, AsyncSession):
        return bind.sync_session
    raise InvalidType.of("bind", bind, "a SQLAlchemy AsyncEngine, AsyncConnection or AsyncSession")


_tasks: WeakKeyDictionary[object, Tasks] = WeakKeyDictionary()
"""Of each pool, connection and session that calls are done on."""


def _tasks_on(it: object, most: int | None) -> Tasks:
    return _tasks.get(it) or _tasks.setdefault(it, Tasks(most))


def _room(pool: object) -> int | None:
    """How many connections a pool gives at the same time."""
    if not isinstance(pool, QueuePool) or pool._max_overflow < 0:
        return None
    return pool.size() + pool._max_overflow


@dataclass(frozen=True, slots=True)
class _Way:
    """A sync binding, and where its operations are done. `at_once`: on no connection of the caller's."""

    binding: Binding
    reading: Callable[[Call[Any]], None]
    writing: Callable[[Call[Any]], None]
    at_once: bool


class AwaitedBinding(Binding):
    """Awaits what a sync binding does elsewhere. It is called in a greenlet of the caller's task."""

    def __init__(self, way: Callable[[], _Way]) -> None:
        self._way = way

    def __str__(self) -> str:
        return str(self._way().binding)

    @override
    def read(self, operation: Callable[[Transaction, *Ts], R], *args: *Ts) -> R:
        way = self._way()
        call: Call[R] = Call(lambda _: way.binding.read(operation, *args))
        way.reading(call)
        return suspend(call.outcome(at_once=way.at_once))

    @override
    def write(self, operation: Callable[[Transaction, *Ts], R], *args: *Ts) -> R:
        way = self._way()
        call: Call[R] = Call(lambda call: way.binding.write(call.guarded(operation), *args))
        way.writing(call)
        return suspend(call.outcome(at_once=way.at_once))

    @override
    def tidy(self, operation: Callable[[Transaction, *Ts], R], *args: *Ts) -> None:
        way = self._way()
        call: Call[None] = Call(lambda _: way.binding.tidy(operation, *args))
        way.reading(call)  # which nobody can hold up, and neither does this: it waits for no lock
        suspend(call.outcome(at_once=way.at_once))


def _always(way: _Way) -> Binding:
    return AwaitedBinding(lambda: way)


def _engine_binding(engine: Engine, bound: Callable[[Engine], Binding]) -> Binding:
    """On an engine that qstore opened: a hop an operation, unless somebody wants to be told of each statement."""
    through = bound(engine)

    def listened() -> _Way:
        put = (behind.tasks if behind is not None else _tasks_on(engine.pool, _room(engine.pool))).put
        return _Way(through, put, put, at_once=True)

    behind = companion(engine)
    if behind is None:
        return AwaitedBinding(listened)
    direct = _Way(bound(behind.engine), behind.reading.put, behind.writing.put, at_once=True)
    return AwaitedBinding(lambda: listened() if listened_to(engine) else direct)
