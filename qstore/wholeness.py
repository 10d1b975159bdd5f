"""What a database has of the stores' formats and additions, and how it is made whole."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sqlalchemy import Connection

from qstore import engines
from qstore.engines import found
from qstore.errors import FormatError
from qstore.formats import ADDITIONS, FORMATS, Addition, Format, Found, newest
from qstore.naming import Names, Naming

__all__ = ["add", "check_complete", "complete", "count", "differing", "make", "refill", "refuse_others"]

Stores = Sequence[str]

_log = logging.getLogger("qstore.migrate")


def check_complete(connection: Connection, naming: Naming, revision: str) -> None:
    """FormatError if a store is not there whole, as the revision makes it."""
    store = revision.partition(".")[0]
    it = found(connection, naming, store)
    if not it.complete or (it.lacking and revision == newest(store)):
        raise FormatError(
            "cannot stamp a store that is not there, or not whole: upgrade makes what is missing",
            found=f"no {', no '.join(sorted(it.missing or it.lacking))}",
            supported=revision,
            target=engines.described(connection.engine),
        )


def complete(connection: Connection, naming: Naming, stores: Stores) -> None:
    """Make again what was lost of stores whose revision is noted: a table, an index, a trigger, the marker."""
    for store in stores:
        it = found(connection, naming, store)
        if not it.complete:
            _restore(connection, naming, store, it, beside=newest(store) in it.revisions)


def _restore(connection: Connection, naming: Naming, store: str, it: Found, *, beside: bool) -> None:
    make(connection, naming, FORMATS[store], it)
    addition = ADDITIONS.get(store)
    if beside and addition and addition.dialect == connection.dialect.name:
        add(connection, naming, addition)


def make(connection: Connection, naming: Naming, fmt: Format, it: Found) -> None:
    """Make what is missing of a format, under the write lock; and fill the state that was missing."""
    names, dialect = naming.of(fmt.store), connection.dialect.name
    for statement in fmt.statements(names, dialect, present=it.tables):
        connection.exec_driver_sql(statement)
    if it.stateless:
        _fill_state(connection, naming, fmt)


def add(connection: Connection, naming: Naming, addition: Addition) -> None:
    """Make what was added, and what was lost of it, under the write lock; then fill it."""
    refuse_others(connection, naming, addition)
    for statement in addition.ddl(naming.of(addition.format.store)):
        connection.exec_driver_sql(statement)
    _fill(connection, naming, addition)


def refill(connection: Connection, naming: Naming, stores: Stores) -> list[str]:
    """Make right anew what stores keep beside the seeds' columns, and make again what they lost.

    Returns what was found and done, a sentence a store. FormatError if a name is taken by something else.
    """
    told = []
    for store in stores:
        it = found(connection, naming, store)
        lost = it.missing | {naming.name(store, part) for part in it.lacking if it.added}
        if it.present and lost:
            _restore(connection, naming, store, it, beside=bool(it.added) or newest(store) in it.revisions)
            told.append(f"{store}: {', '.join(sorted(lost))} missing; made again")
            it = found(connection, naming, store)
        kept = _kept(connection, naming, store, it)
        if kept is None:
            continue
        differs = differing(connection, naming, store, it)
        if differs or not lost:
            kept.fill()
            told.append(f"{store}: {differs or f'{kept.what} did not differ from the messages'}; filled anew")
    return told


def differing(connection: Connection, naming: Naming, store: str, it: Found) -> str | None:
    """In how many places what a store keeps beside the seed's columns is not as those have it. Reads all messages."""
    if (kept := _kept(connection, naming, store, it)) is None:
        return None
    places = connection.exec_driver_sql(f"SELECT count(*) FROM ({kept.faults}) AS f").scalar_one()  # noqa: S608  frozen text
    what = "groups" if store == "transport" else "messages"
    return f"{kept.what} differ from the messages in {places:,} {what}" if places else None


@dataclass(frozen=True, slots=True)
class _Kept:
    """What a store keeps beside the seed's columns."""

    what: str
    faults: str
    fill: Callable[[], None]


def _kept(connection: Connection, naming: Naming, store: str, it: Found) -> _Kept | None:
    fmt, names, dialect = FORMATS[store], naming.of(store), connection.dialect.name
    if dialect in fmt.faults and it.present:
        return _Kept(names["groups"], names.render(fmt.faults[dialect]), lambda: _fill_state(connection, naming, fmt))
    if (addition := ADDITIONS.get(store)) is None or not it.added:
        return None
    [query] = addition.rendered(names, (addition.faults,))
    return _Kept(", ".join(addition.tables), query, lambda: _fill(connection, naming, addition))


def refuse_others(connection: Connection, naming: Naming, addition: Addition) -> None:
    """FormatError if a name that the addition needs is taken by something else."""
    it = found(connection, naming, addition.format.store)
    lacking = {naming.name(addition.format.store, part).lower() for part in it.lacking}
    there = set(connection.exec_driver_sql("SELECT lower(name) FROM sqlite_master").scalars())
    if taken := lacking & there:
        raise FormatError(
            f"{', '.join(sorted(taken))}: not what {addition.revision} makes under this name. Drop or rename it, and"
            " upgrade again",
            found="something else of that name",
            supported=addition.revision,
            target=engines.described(connection.engine),
        )


def count(connection: Connection, names: Names, table: str) -> int:
    """How many rows a table of a store has."""
    return int(connection.exec_driver_sql(f"SELECT count(*) FROM {names[table]}").scalar_one())  # noqa: S608  a quoted name


def _fill_state(connection: Connection, naming: Naming, fmt: Format) -> None:
    for statement in fmt.fill.get(connection.dialect.name, ()):
        connection.exec_driver_sql(naming.of(fmt.store).render(statement))


def _fill(connection: Connection, naming: Naming, addition: Addition) -> None:
    names = naming.of(addition.format.store)
    target = engines.described(connection.engine)
    rows = count(connection, names, "messages")
    _log.info("%s: %s: filling %s from %s messages", target, addition.revision, ", ".join(addition.tables), f"{rows:,}")
    for statement in addition.rendered(names, addition.fill):
        connection.exec_driver_sql(statement)
    filled = ", ".join(f"{count(connection, names, table):,} rows of {table}" for table in addition.tables)
    _log.info("%s: %s: filled %s", target, addition.revision, filled)
