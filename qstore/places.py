"""Where stores are: in a file, in the files of a data directory, on a server, or in a database of a host's."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from sqlalchemy import URL, Connection, Engine, MetaData, Table, inspect

from qstore.engines import Bind, Target, described, engine_of, found, open_engine, reading, translated
from qstore.engines.files import on_turso, store_of
from qstore.engines.results import without_passwords
from qstore.engines.target import in_directory, of_file
from qstore.errors import FormatError, InvalidInput, QstoreError
from qstore.formats import FORMATS, Found
from qstore.mounting import CLASSES, mount
from qstore.naming import NATIVE, PREFIX, SERVER, Naming

__all__ = ["Place", "place_at", "places_in", "shown", "stores_at", "urls_at"]

_LAST_TABLES = {store: fmt.tables[-1] for store, fmt in FORMATS.items()}


@dataclass(frozen=True, slots=True)
class Place:
    """Where one store is."""

    bind: Bind
    naming: Naming
    store: str

    def __str__(self) -> str:
        return f"{self.store} in {described(self.engine)}"

    @property
    def engine(self) -> Engine:
        """The engine that the store is reached by."""
        return engine_of(self.bind)

    @property
    def tables(self) -> list[Table]:
        """The format's tables, besides the marker's."""
        metadata = CLASSES[self.store][0].metadata
        if not self.naming.native:
            metadata = MetaData()
            mount(metadata, prefix=self.naming.prefix or "", schema=self.naming.schema, stores=(self.store,))
        names = {self.naming.name(self.store, table) for table in FORMATS[self.store].tables if table != "meta"}
        return [table for table in metadata.sorted_tables if table.name in names]

    def found(self) -> Found:
        """What there is of the store now."""
        with self.reading() as connection:
            return found(connection, self.naming, self.store)

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """A connection to read on: one for this alone, or the caller's own."""
        with translated(described(self.engine)), reading(self.bind) as connection:
            yield connection


def urls_at(target: Target) -> list[URL]:
    """The databases at a place: the files of a data directory, one file, or a server's. Files that are there."""
    if isinstance(target, (str, os.PathLike)) and os.path.isdir(target):
        urls = [in_directory(target, f"{store}.sqlite") for store in FORMATS]
    else:
        urls = [of_file(target)]
    return [url for url in urls if url.get_backend_name() != "sqlite" or os.path.exists(url.database or "")]


def stores_at(target: Target, closing: ExitStack, *, read_only: bool) -> Iterator[Place]:
    """The stores that are there. FormatError if one is not there as a whole."""
    urls = urls_at(target)
    if all(url.get_backend_name() == "sqlite" for url in urls):
        for url in urls:
            held = store_of(url.database or "", turso=on_turso(url))
            if held is not None:
                yield place_at(url, NATIVE, held, closing, read_only=read_only)
        return
    [url] = urls
    for store in FORMATS:
        place = place_at(url, SERVER, store, closing, read_only=read_only)
        it = place.found()
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
    try:
        url = of_file(target)
    except QstoreError:
        return re.sub(r"//[^?]*@", "//***@", str(target)).partition("?")[0]
    return url.database or "" if url.get_backend_name() == "sqlite" else without_passwords(url)


def places_in(bind: Bind, naming: Naming | None = None) -> list[Place]:
    """The stores in a database. FormatError if it is another application's, and no store is mounted in it.

    Without a naming: the native store that it is, or those that are mounted under any prefix.
    """
    target = described(engine_of(bind))
    refusals: list[FormatError] = []
    with translated(target), reading(bind) as connection:
        mounted = [] if naming is not None else _mounted(connection)
        if len(mounted) > 1:
            raise InvalidInput(
                "naming",
                f"expected the one to look at, found stores under the prefixes"
                f" {', '.join(repr(each.prefix) for each in mounted)} in {target}: pass naming=Naming(prefix)",
            )
        for each in [naming] if naming is not None else [*mounted, NATIVE]:
            places = list(_there(bind, connection, each, refusals))
            if places:
                return places
    raise _absent(naming, refusals, target)


def _there(bind: Bind, connection: Connection, naming: Naming, refusals: list[FormatError]) -> Iterator[Place]:
    for store in FORMATS:
        try:
            it = found(connection, naming, store)
        except FormatError as error:
            if not naming.native:
                raise
            refusals.append(error)  # of the two others that a native file does not hold
        else:
            if it.present and it.tables != {"meta"}:
                yield Place(bind, naming, store)


def _mounted(connection: Connection) -> list[Naming]:
    """The mounts in a database by the names of their tables."""
    names = inspect(connection).get_table_names()
    prefixes = {
        name.removesuffix(f"{store}_{table}"): None
        for name in sorted(names)
        for store, table in _LAST_TABLES.items()
        if name.endswith(f"{store}_{table}")
    }
    return [Naming(prefix) for prefix in prefixes if re.fullmatch(PREFIX, prefix)]


def _absent(naming: Naming | None, refusals: list[FormatError], target: str) -> FormatError:
    stem = os.path.splitext(os.path.basename(target))[0]
    for store, refusal in zip(FORMATS, refusals, strict=False):
        if store == stem and len(refusals) == len(FORMATS):
            return refusal
    if refusals:
        return refusals[0]
    mounted = "" if naming is None or naming.native else f" under the prefix {naming.prefix!r}"
    return FormatError(
        f"there is no store{mounted}",
        found="none of the stores' tables",
        supported=", ".join(fmt.marker for fmt in FORMATS.values()),
        target=target,
    )
