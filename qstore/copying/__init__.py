"""Move stores between SQLite files and a server's database: every row as it is, in batches, compared at the end."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager

from sqlalchemy import URL, Connection, Table, func, insert, select, text

from qstore.capabilities import capabilities
from qstore.copying.note import Note, came_from, refuse_others
from qstore.copying.rows import batch, key_of, portable, read_as_stored
from qstore.engines import Target, on_turso
from qstore.engines.target import of_file
from qstore.errors import FormatError, InvalidInput
from qstore.formats import FORMATS
from qstore.opening import naming_at
from qstore.places import Place, place_at, shown, stores_at, urls_at

__all__ = ["Progress", "continue_ids", "copy", "highest_id", "snapshot"]

Progress = Callable[[str, int, int], None]
"""Told of a table's name, the rows that are done, and how many there are."""


def copy(source: Target, target: Target, *, progress: Progress = lambda *_: None) -> dict[str, int]:
    """Copy all stores of a place to another one, which has none yet. Returns the number of rows of each store.

    A place is a file, a data directory, or a server's URL. Ids, order, leases, attempts and expiries stay as they are,
    and new ids go on after the highest that was ever given. Stop the source's writers first: it is compared at the end,
    and FormatError tells what differs. A copy that was interrupted goes on where it was when it is started again; of
    two that are started, the later one goes on, and the other ends in StoreBusy. InvalidInput if the target holds a
    store with rows that did not come from this source, or the source is such a copy.
    """
    _refuse_turso("source", source)
    _refuse_turso("target", target)
    with ExitStack() as closing:
        places = list(stores_at(source, closing, read_only=True))
        if not places:
            raise InvalidInput("source", f"expected a place with stores, found none in {shown(source)}")
        for place in places:
            _refuse_unfinished(place)
        pairs = [(place, _made(url, place.store, closing)) for place, url in _targets(places, target)]
        for place, to in pairs:  # all of them are asked before one is written to
            with to.reading() as connection:
                refuse_others(place, to, connection)
        notes = [Note.take(*pair) for pair in pairs]
        rows = {place.store: _copy(place, note, progress) for (place, _), note in zip(pairs, notes, strict=True)}
        for note in notes:
            note.drop()
        return rows


def _refuse_turso(field: str, target: Target) -> None:
    if any(on_turso(url) for url in urls_at(target)):
        raise InvalidInput(
            field,
            f"expected a file that is opened with SQLite, found {shown(target)} with turso, where a process cannot see"
            " two moments of a file at a time: stop the processes that have it open, and pass its path",
        )


def _refuse_unfinished(source: Place) -> None:
    with source.reading() as connection:
        origin = came_from(source, connection)
    if origin is not None:
        raise InvalidInput(
            "source", f"expected {source} whole, found an unfinished copy of {origin}: copy that again, which goes on"
        )


def _targets(places: Sequence[Place], target: Target) -> list[tuple[Place, URL]]:
    urls = [of_file(target, f"{place.store}.sqlite") for place in places]
    if len(urls) > 1 and len(set(urls)) == 1 and urls[0].get_backend_name() == "sqlite":
        raise InvalidInput(
            "target",
            f"expected a directory for {len(urls)} stores, found the path of one file: {shown(target)}; end it with"
            f" {os.sep} if it is to be a directory",
        )
    return list(zip(places, urls, strict=True))


def _made(url: URL, store: str, closing: ExitStack) -> Place:
    place = place_at(url, naming_at(url), store, closing)
    if url.get_backend_name() == "sqlite":
        os.makedirs(os.path.dirname(url.database or "."), exist_ok=True)
    from qstore import migrate  # noqa: PLC0415  it imports Alembic, which takes longer than all the rest

    migrate.upgrade(place.engine, naming=place.naming, stores=(store,))
    return place


def _copy(source: Place, note: Note, progress: Progress) -> int:
    rows = 0
    with snapshot(source) as reading:
        for here, there in zip(source.tables, note.target.tables, strict=True):
            rows += _copy_table(reading, note, here, there, progress)
        with note.held() as writing, snapshot(source) as by_now:
            read_as_stored(writing)
            _compare(by_now, writing, source, note.target)
            _settle(reading, writing, source, note.target)
    return rows


@contextmanager
def snapshot(place: Place) -> Iterator[Connection]:
    """A connection that sees one moment of a place."""
    with place.reading() as connection:
        if not capabilities(connection.dialect).one_writer:
            connection.execution_options(isolation_level="REPEATABLE READ")
        read_as_stored(connection)
        with connection.begin():
            yield connection


def _copy_table(reading: Connection, note: Note, here: Table, there: Table, progress: Progress) -> int:
    with note.held() as connection:
        last = connection.execute(select(func.max(key_of(there)))).scalar()
        done = connection.execute(select(func.count()).select_from(there)).scalar_one()
    total = reading.execute(select(func.count()).select_from(here)).scalar_one()
    progress(there.name, done, total)
    while rows := batch(reading, here, last):
        with note.held() as writing:
            writing.execute(insert(there), [portable(here, row) for row in rows])
        last = rows[-1]._mapping[key_of(here).name]
        done += len(rows)
        progress(there.name, done, total)
    return int(total)


def _settle(reading: Connection, writing: Connection, source: Place, target: Place) -> None:
    """Let new ids go on after the highest that was ever given, and give a server the state that it decides by.

    There a message whose group row was lost gets one, and a group without a message goes.
    """
    for here, there in zip(source.tables, target.tables, strict=True):
        if key_of(there).type.python_type is int:
            continue_ids(writing, there, highest_id(reading, here))
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


def highest_id(reading: Connection, table: Table) -> int:
    """The highest id that a table ever gave."""
    highest = reading.execute(select(func.coalesce(func.max(key_of(table)), 0))).scalar_one()
    if capabilities(reading.dialect).one_writer:
        given = reading.execute(
            text("SELECT seq FROM sqlite_sequence WHERE name = :name"), {"name": table.name}
        ).scalar()
    else:
        state = f"SELECT CASE WHEN is_called THEN last_value ELSE 0 END FROM {_sequence(reading, table)}"  # noqa: S608  a quoted name
        given = reading.exec_driver_sql(state).scalar()
    return max(int(highest), int(given or 0))


def continue_ids(writing: Connection, table: Table, highest: int) -> None:
    """Let new ids go on after the highest that was ever given."""
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
        text("SELECT pg_get_serial_sequence(:table, :column)"), {"table": quoted, "column": key_of(table).name}
    ).scalar_one()
    return found


def _compare(reading: Connection, writing: Connection, source: Place, target: Place) -> None:
    """FormatError if the two do not have the same rows."""
    for here, there in zip(source.tables, target.tables, strict=True):
        last, differing = None, 0
        while True:
            ours, theirs = batch(reading, here, last), batch(writing, there, last)
            differing += sum(tuple(a) != tuple(b) for a, b in zip(ours, theirs, strict=False)) + abs(
                len(ours) - len(theirs)
            )
            if differing or not ours:
                break
            last = ours[-1]._mapping[key_of(here).name]
        if differing:
            raise FormatError(
                f"the rows of {there.name} are not those of the source, which has changed since the copy began: stop"
                " its writers, empty the target and copy again",
                found=f"{differing:,} or more rows that differ",
                supported="a source that nobody writes to",
                target=str(target),
            )
