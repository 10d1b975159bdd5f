"""Open a store's file: look at it before anything is created, then make or upgrade it by the revisions."""

from __future__ import annotations

import os

from sqlalchemy import URL, Engine

from qstore.engines import Durability, sqlite
from qstore.engines.files import recognise_file
from qstore.errors import FormatError
from qstore.formats import FORMATS
from qstore.naming import NATIVE

__all__ = ["open_store"]


def open_store(store: str, url: URL, *, create: bool, durability: Durability) -> Engine:
    """An engine on a native file that holds the store. FormatError, and the file as it was, if it cannot.

    A store that is up to date is only looked at: Alembic is imported where there is something for it to do.
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

            revisions.upgrade(engine, NATIVE, (store,))
    except BaseException:
        engine.dispose()
        raise
    return engine


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
