"""Open a store's file: look at it before anything is created, then make or upgrade it by the revisions."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from sqlalchemy import URL, Engine
from sqlalchemy.util import greenlet_spawn

from qstore.calls import Call, Lane
from qstore.engines import (
    Companion,
    Durability,
    asynchronous_extra,
    connected,
    described,
    found,
    on_turso,
    open_file,
    postgresql,
    translated,
)
from qstore.engines.files import recognise_file
from qstore.errors import FormatError
from qstore.formats import FORMATS
from qstore.naming import NATIVE, SERVER, Naming

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncEngine

__all__ = ["naming_at", "open_async_store", "open_store"]


def open_store(store: str, url: URL, *, create: bool, durability: Durability, fair: bool) -> Engine:
    """An engine on a native file that holds the store. FormatError, and the file as it was, if it cannot.

    A new store is made at its newest revision; one that is there stays at its own, and if that is noted it is only
    looked at: Alembic is imported where there is something for it to do.
    """
    if url.get_backend_name() == "postgresql":
        return _open_on_server(store, url, create=create)
    path = url.database or ""
    there = recognise_file(path, FORMATS[store], NATIVE, turso=on_turso(url))
    if there is None or not there.complete:
        if not create:
            raise _absent("no file" if there is None else "no complete store", store, path)
        _make_directory(os.path.dirname(path))
    engine = open_file(url, durability=durability, fair=fair, exists=there is not None)
    try:
        if on_turso(url):
            engine.connect().close()  # which has the file open until the engine is disposed of, or is refused here
        if create and (there is None or not there.complete or not there.revisions):
            from qstore import revisions  # noqa: PLC0415  it imports Alembic, which takes longer than all the rest

            revisions.adopt(engine, NATIVE, store)
    except BaseException:
        engine.dispose()
        raise
    return engine


def naming_at(url: URL) -> Naming:
    """What the tables are called where a URL points: in a file of their own as in the seeds, on a server prefixed."""
    return NATIVE if url.get_backend_name() == "sqlite" else SERVER


def _open_on_server(store: str, url: URL, *, create: bool) -> Engine:
    engine = postgresql.create(url, read_only=False)
    try:
        _make_on_server(store, engine, create=create)
    except BaseException:
        engine.dispose()
        raise
    return engine


def _make_on_server(store: str, engine: Engine, *, create: bool) -> None:
    with translated(described(engine)), connected(engine) as connection:
        it = found(connection, SERVER, store)
    if not it.complete and not create:
        raise _absent("a part of the store" if it.present else "no store", store, described(engine))
    if create and not (it.complete and it.revisions):
        from qstore import revisions  # noqa: PLC0415  as above

        revisions.upgrade(engine, SERVER, (store,))


async def open_async_store(store: str, url: URL, *, create: bool, durability: Durability, fair: bool) -> AsyncEngine:
    """As `open_store`, in a thread."""
    with asynchronous_extra():
        from qstore.engines import asynchronous  # noqa: PLC0415  needs the extra
    if url.get_backend_name() == "postgresql":
        return await _open_async_on_server(store, url, create=create)
    lane = Lane(1)
    opened: list[Engine] = []
    call = Call[None](lambda _: opened.append(open_store(store, url, create=create, durability=durability, fair=fair)))
    lane.put(call)
    try:
        await call.outcome()
    except BaseException:
        lane.put(Call(lambda _: _dispose(opened), withdrawable=False))
        lane.end()
        raise
    [engine] = opened
    return asynchronous.create(engine, Companion(engine, writing=lane))


async def _open_async_on_server(store: str, url: URL, *, create: bool) -> AsyncEngine:
    engine = postgresql.create_async(url, read_only=False)
    try:
        await greenlet_spawn(_make_on_server, store, engine.sync_engine, create=create)
    except BaseException:
        await engine.dispose()
        raise
    return engine


def _absent(instead: str, store: str, target: str) -> FormatError:
    return FormatError(
        "the store is not there, and create=False", found=instead, supported=FORMATS[store].marker, target=target
    )


def _dispose(engines: list[Engine]) -> None:
    for engine in engines:
        engine.dispose()


def _make_directory(directory: str) -> None:
    try:
        os.makedirs(directory, exist_ok=True)
    except OSError as error:
        raise FormatError(
            "the directory of the store is not there and cannot be made",
            found=str(error),
            supported="a directory, or a place where one may be made",
            target=directory,
        ) from error
