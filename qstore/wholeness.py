"""What a database has of the stores' formats and additions, and how it is made whole."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from sqlalchemy import Connection

from qstore import engines
from qstore.engines import found
from qstore.errors import FormatError
from qstore.formats import ADDITIONS, FORMATS, Addition, newest
from qstore.naming import Names, Naming

__all__ = ["add", "check_complete", "complete", "count", "faults", "refill", "refuse_others"]

Stores = Sequence[str]

_log = logging.getLogger("qstore.migrate")


def check_complete(connection: Connection, naming: Naming, revision: str) -> None:
    """FormatError if a store is not there whole, as the revision makes it."""
    store = revision.partition(".")[0]
    it = found(connection, naming, store)
    if not it.complete or (it.lacking and revision == newest(store)):
        raise FormatError(
            "cannot stamp a store that is not there, or not whole: upgrade makes what is missing",
            found=f"no {', no '.join(sorted(it.lacking))}" if it.complete else "no complete store",
            supported=revision,
            target=engines.described(connection.engine),
        )


def complete(connection: Connection, naming: Naming, stores: Stores) -> None:
    """Make again what was lost of stores whose revision is noted: a table, an index, a trigger, the marker."""
    for store in stores:
        it = found(connection, naming, store)
        if it.complete:
            continue
        for statement in FORMATS[store].statements(naming.of(store), connection.dialect.name):
            connection.exec_driver_sql(statement)
        addition = ADDITIONS.get(store)
        if addition and addition.dialect == connection.dialect.name and newest(store) in it.revisions:
            add(connection, naming, addition)


def add(connection: Connection, naming: Naming, addition: Addition) -> None:
    """Make what was added, and what was lost of it, under the write lock; then fill it."""
    refuse_others(connection, naming, addition)
    for statement in addition.ddl(naming.of(addition.format.store)):
        connection.exec_driver_sql(statement)
    _fill(connection, naming, addition)


def refill(connection: Connection, naming: Naming, stores: Stores) -> None:
    """Fill the tables that were added to stores anew. FormatError where nothing would keep them right."""
    for store in stores:
        it = found(connection, naming, store)
        if store not in ADDITIONS or not it.added:
            continue
        if it.lacking or not it.complete:
            raise FormatError(
                f"{store} is not whole, so that nothing keeps right what would be repaired: upgrade makes what is"
                " missing",
                found=f"no {', no '.join(sorted(it.lacking))}" if it.lacking else "no complete store",
                supported=newest(store),
                target=engines.described(connection.engine),
            )
        _fill(connection, naming, ADDITIONS[store])


def faults(connection: Connection, naming: Naming, addition: Addition) -> int:
    """In how many places the tables that were added are not as the format's own tables have it."""
    [query] = addition.rendered(naming.of(addition.format.store), (addition.faults,))
    return int(connection.exec_driver_sql(f"SELECT count(*) FROM ({query})").scalar_one())  # noqa: S608  frozen text


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


def _fill(connection: Connection, naming: Naming, addition: Addition) -> None:
    names = naming.of(addition.format.store)
    target = engines.described(connection.engine)
    rows = count(connection, names, "messages")
    _log.info("%s: %s: filling %s from %s messages", target, addition.revision, ", ".join(addition.tables), f"{rows:,}")
    for statement in addition.rendered(names, addition.fill):
        connection.exec_driver_sql(statement)
    filled = ", ".join(f"{count(connection, names, table):,} rows of {table}" for table in addition.tables)
    _log.info("%s: %s: filled %s", target, addition.revision, filled)
