"""Open a store's file: look at it before anything is created, then make or upgrade it by the revisions."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from sqlalchemy import URL, Engine

from qstore.calls import Call, Lane
from qstore.engines import Companion, Durability, asynchronous_extra, sqlite
from qstore.engines.files import recognise_file
from qstore.errors import FormatError
from qstore.formats import FORMATS
from qstore.naming import NATIVE

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncEngine

__all__ = ["open_async_store", "open_store"]


def open_store(store: str, url: URL, *, create: bool, durability: Durability) -> Engine:
    """An engine on a native file that holds the store. FormatError, and the file as it was, if it cannot.

    A new store is made at its newest revision; one that is there stays at its own, and if that is noted it is only
    looked at: Alembic is imported where there is something for it to do.
    """
    path = url.database or ""
    found = recognise_file(path, FORMATS[store], NATIVE)
    if found is None or not found.complete:
        if not create:
            raise FormatError(
                "the store is not there, and create=False",
                found="no file" if found is None else "no complete store",
                supported=FORMATS[store].marker,
                target=path,
            )
        _make_directory(os.path.dirname(path))
    engine = sqlite.create(path, read_only=False, durability=durability, exists=found is not None)
    try:
        if create and (found is None or not found.complete or not found.revisions):
            from qstore import revisions  # noqa: PLC0415  it imports Alembic, which takes longer than all the rest

            revisions.adopt(engine, NATIVE, store)
    except BaseException:
        engine.dispose()
        raise
    return engine


async def open_async_store(store: str, url: URL, *, create: bool, durability: Durability) -> AsyncEngine:
    """As `open_store`, in a thread."""
    with asynchronous_extra():
        from qstore.engines import asynchronous  # noqa: PLC0415  needs the extra
    lane = Lane(1)
    opened: list[Engine] = []
    call = Call[None](lambda _: opened.append(open_store(store, url, create=create, durability=durability)))
    lane.put(call)
    try:
        await call.outcome()
    except BaseException:
        lane.put(Call(lambda _: _dispose(opened)))
        raise
    [engine] = opened
    return asynchronous.create(engine, Companion(engine, writing=lane))


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
