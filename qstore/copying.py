"""Move stores between SQLite files and a server's database: every row as it is, in batches, compared at the end."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

from sqlalchemy import (
    URL,
    Column,
    Connection,
    Engine,
    MetaData,
    Row,
    Table,
    Text,
    func,
    insert,
    inspect,
    select,
    text,
)

from qstore import migrate
from qstore.capabilities import capabilities
from qstore.engines import Target, described, found, open_engine, translated
from qstore.engines.target import in_directory, of_file
from qstore.errors import FormatError, InvalidInput
from qstore.formats import FORMATS
from qstore.mounting import CLASSES, mount
from qstore.naming import NATIVE, SERVER, Naming
from qstore.opening import naming_at

__all__ = ["Progress", "copy"]

BATCH = 1000
"""Rows a transaction."""

Progress = Callable[[str, int, int], None]
"""Told of a table's name, the rows that are done, and how many there are."""


@dataclass(frozen=True, slots=True)
class _Place:
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


def copy(source: Target, target: Target, *, progress: Progress = lambda *_: None) -> dict[str, int]:
    """Copy all stores of a place to another one, which has none yet. Returns the number of rows of each store.

    A place is a file, a data directory, or a server's URL. Ids, order, leases, attempts and expiries stay as they are,
    and new ids go on after the highest that was ever given. Stop the source's writers first: it is compared at the end,
    and FormatError tells what differs. A copy that was interrupted goes on where it was when it is started again.
    InvalidInput if the target holds a store with rows that did not come from this source.
    """
    with ExitStack() as closing:
        places = list(_sources(source, closing))
        if not places:
            raise InvalidInput("source", f"expected a place with stores, found none in {_shown(source)}")
        pairs = [(place, _target(target, place.store, closing)) for place in places]
        for pair in pairs:  # all of them are asked before one is written to
            _note(*pair, write=False)
        notes = [_note(*pair, write=True) for pair in pairs]
        rows = {place.store: _copy(place, to, progress) for place, to in pairs}
        for (_, to), note in zip(pairs, notes, strict=True):
            note.drop(to.engine)
        return rows


def _shown(target: Target) -> str:
    """A place without its password."""
    url = of_file(target)
    return url.database or "" if url.get_backend_name() == "sqlite" else url.render_as_string(hide_password=True)


def _sources(source: Target, closing: ExitStack) -> Iterator[_Place]:
    if isinstance(source, (str, os.PathLike)) and os.path.isdir(source):
        for store in FORMATS:
            url = in_directory(source, f"{store}.sqlite")
            if os.path.exists(url.database or ""):
                yield _place(url, NATIVE, store, closing, read_only=True)
        return
    url = of_file(source)
    if url.get_backend_name() == "sqlite":
        held = migrate.store_of(url.database or "")
        if held is not None and os.path.exists(url.database or ""):
            yield _place(url, NATIVE, held, closing, read_only=True)
        return
    for store in FORMATS:
        place = _place(url, SERVER, store, closing, read_only=True)
        with translated(described(place.engine)), place.engine.connect() as connection:
            it = found(connection, SERVER, store)
        if it.present and not it.complete:
            raise FormatError(
                "the store is not there as a whole; upgrade makes what is missing",
                found="a part of the store",
                supported=FORMATS[store].marker,
                target=str(place),
            )
        if it.present:
            yield place


def _target(target: Target, store: str, closing: ExitStack) -> _Place:
    url = of_file(target, f"{store}.sqlite")
    place = _place(url, naming_at(url), store, closing)
    if url.get_backend_name() == "sqlite":
        os.makedirs(os.path.dirname(url.database or "."), exist_ok=True)
    migrate.upgrade(place.engine, naming=place.naming, stores=(store,))
    return place


def _place(url: URL, naming: Naming, store: str, closing: ExitStack, *, read_only: bool = False) -> _Place:
    engine = open_engine(url, read_only=read_only)
    closing.callback(engine.dispose)
    return _Place(engine, naming, store)


def _copy(source: _Place, target: _Place, progress: Progress) -> int:
    rows = 0
    with _snapshot(source) as reading:
        for here, there in zip(source.tables, target.tables, strict=True):
            rows += _copy_table(reading, target.engine, here, there, progress)
        with target.engine.begin() as writing, _snapshot(source) as by_now:
            _settle(reading, writing, source, target)
            _compare(by_now, writing, source, target)
    return rows


@contextmanager
def _snapshot(place: _Place) -> Iterator[Connection]:
    with place.engine.connect() as connection:
        if not capabilities(connection.dialect).one_writer:
            connection.execution_options(isolation_level="REPEATABLE READ")
        with connection.begin():
            yield connection


def _note(source: _Place, target: _Place, *, write: bool) -> Table:
    """A table in the target that says where a copy under way comes from. InvalidInput if rows of another are there."""
    name = target.naming.name(target.store, "copied_from")
    note = Table(name, MetaData(), Column("source", Text, primary_key=True), schema=target.naming.schema)
    with target.engine.begin() as writing:
        if inspect(writing).has_table(name, schema=target.naming.schema):
            came_from = writing.execute(select(note.c.source)).scalar()
            if came_from != described(source.engine):
                raise InvalidInput("target", f"expected {target} empty, found an unfinished copy of {came_from}")
            return note
        for table in target.tables:
            if writing.execute(select(table).limit(1)).first() is not None:
                raise InvalidInput("target", f"expected {target} empty, found rows in {table.name}")
        if write:
            note.create(writing)
            writing.execute(insert(note), {"source": described(source.engine)})
    return note


def _copy_table(reading: Connection, target: Engine, here: Table, there: Table, progress: Progress) -> int:
    key = _key(there)
    with target.connect() as connection:
        last = connection.execute(select(func.max(key))).scalar()
        done = connection.execute(select(func.count()).select_from(there)).scalar_one()
    total = reading.execute(select(func.count()).select_from(here)).scalar_one()
    progress(there.name, done, total)
    while rows := _batch(reading, here, last):
        with target.begin() as writing:
            writing.execute(insert(there), [_portable(here, row) for row in rows])
        last = rows[-1]._mapping[_key(here).name]
        done += len(rows)
        progress(there.name, done, total)
    return int(total)


def _batch(reading: Connection, table: Table, last: Any) -> Sequence[Row[Any]]:
    key = _key(table)
    query = select(table).order_by(key).limit(BATCH)
    return reading.execute(query if last is None else query.where(key > last)).all()


def _key(table: Table) -> Column[Any]:
    [key] = table.primary_key
    return key


def _portable(table: Table, row: Row[Any]) -> dict[str, Any]:
    """A row that every back end can hold. FormatError for one whose text is none."""
    for name, value in row._mapping.items():
        if (isinstance(value, str) and "\0" in value) or (
            isinstance(table.c[name].type, Text) and isinstance(value, bytes)
        ):
            raise FormatError(
                f"the row {row._mapping[_key(table).name]!r} of {table.name} cannot be copied: {name} is no text that"
                " every back end can hold; remove or mend it",
                found=repr(value)[:80],
                supported="UTF-8 without NUL",
                target=table.name,
            )
    return dict(row._mapping)


def _settle(reading: Connection, writing: Connection, source: _Place, target: _Place) -> None:
    """Let new ids go on after the highest that was ever given, and give a server the state that it decides by."""
    for here, there in zip(source.tables, target.tables, strict=True):
        if _key(there).type.python_type is int:
            _continue_ids(writing, there, _highest(reading, here))
    if capabilities(writing.dialect).one_writer:
        return
    names = target.naming.of(target.store)
    for statement in FORMATS[target.store].fill.get(writing.dialect.name, ()):
        writing.execute(text(names.render(statement)))
    if target.store == "localqueue":
        writing.execute(
            text(
                names.render(
                    "UPDATE {messages} SET ready = false"
                    " WHERE visible_at > date_part('epoch', clock_timestamp()) * 1000"
                )
            )
        )


def _highest(reading: Connection, table: Table) -> int:
    highest = reading.execute(select(func.coalesce(func.max(_key(table)), 0))).scalar_one()
    if capabilities(reading.dialect).one_writer:
        given = reading.execute(
            text("SELECT seq FROM sqlite_sequence WHERE name = :name"), {"name": table.name}
        ).scalar()
    else:
        state = f"SELECT CASE WHEN is_called THEN last_value ELSE 0 END FROM {_sequence(reading, table)}"  # noqa: S608  a quoted name
        given = reading.exec_driver_sql(state).scalar()
    return max(int(highest), int(given or 0))


def _continue_ids(writing: Connection, table: Table, highest: int) -> None:
    if capabilities(writing.dialect).one_writer:
        writing.execute(text("DELETE FROM sqlite_sequence WHERE name = :name"), {"name": table.name})
        writing.execute(
            text("INSERT INTO sqlite_sequence (name, seq) VALUES (:name, :seq)"), {"name": table.name, "seq": highest}
        )
    elif highest:
        writing.execute(
            text("SELECT setval(CAST(:sequence AS regclass), CAST(:seq AS bigint))"),
            {"sequence": _sequence(writing, table), "seq": highest},
        )


def _sequence(connection: Connection, table: Table) -> str:
    quoted = connection.dialect.identifier_preparer.format_table(table)
    found: str = connection.execute(
        text("SELECT pg_get_serial_sequence(:table, :column)"), {"table": quoted, "column": _key(table).name}
    ).scalar_one()
    return found


def _compare(reading: Connection, writing: Connection, source: _Place, target: _Place) -> None:
    """FormatError if the two do not have the same rows."""
    for here, there in zip(source.tables, target.tables, strict=True):
        last, differing = None, 0
        while True:
            ours, theirs = _batch(reading, here, last), _batch(writing, there, last)
            differing += sum(tuple(a) != tuple(b) for a, b in zip(ours, theirs, strict=False)) + abs(
                len(ours) - len(theirs)
            )
            if differing or not ours:
                break
            last = ours[-1]._mapping[_key(here).name]
        if differing:
            raise FormatError(
                f"the rows of {there.name} are not those of the source, which has changed since the copy began: stop"
                " its writers, empty the target and copy again",
                found=f"{differing:,} or more rows that differ",
                supported="a source that nobody writes to",
                target=str(target),
            )
