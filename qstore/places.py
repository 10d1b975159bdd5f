"""Places that hold stores: a file, a data directory, or a server's database."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass

from sqlalchemy import URL, Engine, MetaData, Table

from qstore import migrate
from qstore.engines import Target, described, found, open_engine, translated
from qstore.engines.target import in_directory, of_file
from qstore.errors import FormatError
from qstore.formats import FORMATS
from qstore.mounting import CLASSES, mount
from qstore.naming import NATIVE, SERVER, Naming

__all__ = ["Place", "place_at", "shown", "stores_at"]


@dataclass(frozen=True, slots=True)
class Place:
    """Where a store is, or is to be."""

    engine: Engine
    naming: Naming
    store: str

    def __str__(self) -> str:
        return f"{self.store} in {described(self.engine)}"

    @property
    def tables(self) -> list[Table]:
        """The format's tables, besides the marker's."""
        metadata = CLASSES[self.store][0].metadata
        if not self.naming.native:
            metadata = MetaData()
            mount(metadata, prefix=self.naming.prefix or "", schema=self.naming.schema, stores=(self.store,))
        names = {self.naming.name(self.store, table) for table in FORMATS[self.store].tables if table != "meta"}
        return [table for table in metadata.sorted_tables if table.name in names]


def stores_at(target: Target, closing: ExitStack, *, read_only: bool) -> Iterator[Place]:
    """The stores that are there. FormatError if one is not there as a whole."""
    if isinstance(target, (str, os.PathLike)) and os.path.isdir(target):
        for store in FORMATS:
            url = in_directory(target, f"{store}.sqlite")
            if os.path.exists(url.database or ""):
                yield place_at(url, NATIVE, store, closing, read_only=read_only)
        return
    url = of_file(target)
    if url.get_backend_name() == "sqlite":
        held = migrate.store_of(url.database or "")
        if held is not None and os.path.exists(url.database or ""):
            yield place_at(url, NATIVE, held, closing, read_only=read_only)
        return
    for store in FORMATS:
        place = place_at(url, SERVER, store, closing, read_only=read_only)
        with translated(described(place.engine)), place.engine.connect() as connection:
            it = found(connection, SERVER, store)
        if it.present and not it.complete:
            raise FormatError(
                "the store is not there as a whole; upgrade makes what is missing",
                found=f"no {', no '.join(sorted(it.missing))}",
                supported=FORMATS[store].marker,
                target=str(place),
            )
        if it.present:
            yield place


def place_at(url: URL, naming: Naming, store: str, closing: ExitStack, *, read_only: bool = False) -> Place:
    """A place whose engine is disposed of at the end."""
    engine = open_engine(url, read_only=read_only)
    closing.callback(engine.dispose)
    return Place(engine, naming, store)


def shown(target: Target) -> str:
    """What was given for a place, without its password."""
    url = of_file(target)
    return url.database or "" if url.get_backend_name() == "sqlite" else url.render_as_string(hide_password=True)
