"""Stores as JSON lines, for a backup that people can read, and back again.

The first line says which stores there are. A table begins with the highest id that it ever gave, and has a line for
each row, in order of the keys: `{"store": …, "table": …, "row": {…}}`. What is not text is `{"base64": …}`.
"""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import groupby, islice
from shutil import rmtree
from typing import IO, Any

from sqlalchemy import Connection, Engine, Table, func, insert, select
from sqlalchemy.exc import StatementError

from qstore import copying, engines
from qstore.arguments import integer
from qstore.copying import Progress, continue_ids, highest_id, snapshot
from qstore.copying.rows import batch, key_of, portable
from qstore.engines import Target, open_engine
from qstore.errors import InvalidInput
from qstore.formats import FORMATS
from qstore.naming import NATIVE
from qstore.places import Place, shown, stores_at

__all__ = ["export", "import_"]

VERSION = 1

BATCH = 1000
"""Lines a transaction."""

Line = dict[str, Any]


def export(source: Target, file: str, *, progress: Progress = lambda *_: None) -> dict[str, int]:
    """Write all rows of the stores at a place into a file. Returns the number of rows of each store.

    Each store is as of one moment. A file that an interrupted export of these stores left is gone on with after its
    last whole line, which is right if nobody wrote meanwhile; InvalidInput if it is something else.
    """
    with ExitStack() as closing:
        places = list(stores_at(source, closing, read_only=True))
        if not places:
            raise InvalidInput("source", f"expected a place with stores, found none in {shown(source)}")
        header = {"qstore_export": VERSION, "stores": [place.store for place in places]}
        last = _gone_on_with(file, header)
        with open(file, "a", encoding="utf-8") as lines:
            if last is None:
                _write(lines, header)
            return {place.store: _export_store(place, last, lines, progress) for place in places}


def import_(file: str, target: Target, *, progress: Progress = lambda *_: None) -> dict[str, int]:
    """Make stores from a file that `export` wrote, at a place that has none with rows. Returns each one's rows.

    It is copied by way of `<file>.importing/`, which goes when all is done. One that was interrupted goes on where it
    was when it is started again with the same file and target.
    """
    staged = f"{os.path.abspath(file)}.importing"
    rmtree(staged, ignore_errors=True)
    try:
        _stage(file, staged)
        return copying.copy(staged, target, progress=progress)
    finally:
        rmtree(staged, ignore_errors=True)


def _export_store(place: Place, last: Line | None, lines: IO[str], progress: Progress) -> int:
    """Write a store's rows, without those up to the last line of a file that is gone on with."""
    names = [_bare(place, table) for table in place.tables]
    stores = list(FORMATS)
    reached = stores.index(last["store"]) - stores.index(place.store) if last and "store" in last else -1
    total = 0
    with snapshot(place) as reading:
        for name, table in zip(names, place.tables, strict=True):
            at = names.index(last["table"]) - names.index(name) if last and reached == 0 else reached
            total += _count(reading, table)
            if at <= 0:
                gone_on = last if last and at == 0 and "row" in last else None
                after = _values(table, gone_on["row"], lines.name)[key_of(table).name] if gone_on else None
                _export_table(place, reading, table, after, lines, progress)
    return total


def _export_table(
    place: Place, reading: Connection, table: Table, after: Any, lines: IO[str], progress: Progress
) -> None:
    about = {"store": place.store, "table": _bare(place, table)}
    name = " ".join(about.values())
    total, done = _count(reading, table), 0
    if after is None:
        if key_of(table).type.python_type is int:
            _write(lines, {**about, "highest": highest_id(reading, table)})
    else:
        done = _count(reading, table, up_to=after)
    progress(name, done, total)
    while rows := batch(reading, table, after):
        for row in rows:
            _write(lines, {**about, "row": {column: _shown(value) for column, value in portable(table, row).items()}})
        lines.flush()
        after = rows[-1]._mapping[key_of(table).name]
        done += len(rows)
        progress(name, done, total)


def _stage(file: str, directory: str) -> None:
    """Make native stores of a file's lines."""
    os.makedirs(directory)
    with open(file, "rb") as lines, ExitStack() as closing:
        read = _lines(file, lines)
        stores = next(read, {}).get("stores")
        if not isinstance(stores, list) or not all(isinstance(store, str) and store in FORMATS for store in stores):
            raise InvalidInput("file", f"expected a file that export wrote, found another first line in {file}")
        tables: dict[tuple[str, str], tuple[Engine, Table]] = {}
        for store in stores:
            engine = open_engine(os.path.join(directory, f"{store}.sqlite"), durability="normal")
            closing.callback(engine.dispose)
            from qstore import migrate  # noqa: PLC0415  it imports Alembic, which takes longer than all the rest

            migrate.upgrade(engine, stores=(store,))
            place = Place(engine, NATIVE, store)
            tables |= {(store, _bare(place, table)): (engine, table) for table in place.tables}
        highest: dict[tuple[str, str], int] = {}
        while some := list(islice(read, BATCH)):
            for which, group in groupby(some, key=lambda line: (str(line.get("store")), str(line.get("table")))):
                if which not in tables:
                    raise InvalidInput("file", f"expected rows of {', '.join(stores)}, found {which} in {file}")
                engine, table = tables[which]
                rows = []
                for line in group:
                    if "highest" in line:
                        highest[which] = integer("highest", line["highest"], at_least=0)
                    else:
                        rows.append(_values(table, line.get("row"), file))
                if rows:
                    with _as_exported(file, table), engine.begin() as writing:
                        writing.execute(insert(table), rows)
        for which, number in highest.items():
            engine, table = tables[which]
            with _as_exported(file, table), engine.begin() as writing:
                continue_ids(writing, table, number)


def _gone_on_with(file: str, header: Line) -> Line | None:
    """The last whole line of a file that an export left, cut after it; None if there is no file, or nothing in it."""
    try:
        with open(file, "r+b") as found:
            first = found.readline()
            if not first.endswith(b"\n"):
                found.truncate(0)
                return None
            if _parsed(file, 1, first) != header:
                raise InvalidInput(
                    "file", f"expected no file, or an unfinished export of the same stores, found another in {file}"
                )
            place = size = found.seek(0, os.SEEK_END)
            tail = b""
            while tail.count(b"\n") < 2 and place:
                place = max(0, place - 65_536)
                found.seek(place)
                tail = found.read(size - place)
            whole = tail[: tail.rindex(b"\n") + 1]
            found.truncate(place + len(whole))
            return _parsed(file, 0, whole.splitlines()[-1])
    except FileNotFoundError:
        return None


def _lines(file: str, lines: IO[bytes]) -> Iterator[Line]:
    for number, line in enumerate(lines, 1):
        yield _parsed(file, number, line)


def _parsed(file: str, number: int, line: str | bytes) -> Line:
    try:
        found = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise InvalidInput("file", f"expected JSON in line {number} of {file}: {error}") from error
    if not isinstance(found, dict):
        raise InvalidInput("file", f"expected a JSON object in line {number} of {file}")
    return found


def _write(lines: IO[str], line: Line) -> None:
    lines.write(json.dumps(line, ensure_ascii=False) + "\n")


def _bare(place: Place, table: Table) -> str:
    """A table's name in the format, without a mount's prefix."""
    return next(name for name in FORMATS[place.store].tables if place.naming.name(place.store, name) == table.name)


def _count(reading: Connection, table: Table, up_to: Any = None) -> int:
    query = select(func.count()).select_from(table)
    return int(reading.execute(query if up_to is None else query.where(key_of(table) <= up_to)).scalar_one())


def _shown(value: Any) -> Any:
    """A value in JSON, bytes in base64."""
    return {"base64": base64.b64encode(value).decode()} if isinstance(value, (bytes, memoryview)) else value


def _values(table: Table, row: Any, file: str) -> Line:
    columns = {column.name for column in table.columns}
    if not isinstance(row, dict) or row.keys() != columns:
        raise InvalidInput(
            "file", f"expected rows of {table.name} with {', '.join(sorted(columns))}, found another in {file}"
        )
    return {column: _value(value, file) for column, value in row.items()}


def _value(value: Any, file: str) -> Any:
    if not isinstance(value, dict):
        return value
    try:
        return base64.b64decode(value["base64"], validate=True)
    except (KeyError, TypeError, ValueError) as error:
        raise InvalidInput("file", f"expected bytes in base64, found another value in {file}") from error


@contextmanager
def _as_exported(file: str, table: Table) -> Iterator[None]:
    """Tell in qstore's errors of values that no row of the table has."""
    try:
        with engines.translated(file):
            yield
    except (StatementError, OverflowError) as error:
        raise InvalidInput(
            "file", f"expected rows of {table.name} as export wrote them in {file}: {engines.in_one_line(error)}"
        ) from error
