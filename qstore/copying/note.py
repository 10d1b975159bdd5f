"""The note in a target that says where a copy under way comes from, and which run of it goes on."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Column, Connection, MetaData, Row, Table, Text, insert, inspect, select, update

from qstore.engines import beginning, described, translated, upgrading
from qstore.errors import InvalidInput, StoreBusy
from qstore.places import Place

__all__ = ["Note", "came_from", "refuse_others"]


@dataclass(frozen=True, slots=True)
class Note:
    """One run's hold on a target. The run that began last has it, so that one which was killed holds up nobody."""

    target: Place
    run: str

    @classmethod
    def take(cls, source: Place, target: Place) -> Note:
        """Note the source, or go on with its copy. InvalidInput if rows of another are there."""
        note, table = cls(target, uuid.uuid4().hex), _table(target)
        with _locked(target) as writing:
            refuse_others(source, target, writing)
            if came_from(target, writing) is None:
                table.create(writing)
                writing.execute(insert(table), {"source": described(source.engine), "run": note.run})
            else:
                writing.execute(update(table).values(run=note.run))
        return note

    @contextmanager
    def held(self) -> Iterator[Connection]:
        """A transaction on the target that no other run writes beside. StoreBusy if another run has begun since."""
        with _locked(self.target) as writing:
            noted = _noted(self.target, writing)
            if noted is None or noted.run != self.run:
                raise StoreBusy(f"{self.target}: another copy to it has begun meanwhile, and this one has ended for it")
            yield writing

    def drop(self) -> None:
        """The copy is whole."""
        with self.held() as writing:
            _table(self.target).drop(writing)


def came_from(target: Place, connection: Connection) -> str | None:
    """Where the unfinished copy comes from that a place holds; None if it holds none."""
    noted = _noted(target, connection)
    return None if noted is None else str(noted.source)


def _noted(target: Place, connection: Connection) -> Row[Any] | None:
    table = _table(target)
    if not inspect(connection).has_table(table.name, schema=table.schema):
        return None
    return connection.execute(select(table)).first()


def refuse_others(source: Place, target: Place, connection: Connection) -> None:
    """InvalidInput if rows are there that did not come from this source."""
    origin = came_from(target, connection)
    if origin is not None:
        if origin != described(source.engine):
            raise InvalidInput("target", f"expected {target} empty, found an unfinished copy of {origin}")
        return
    for table in target.tables:
        if connection.execute(select(table).limit(1)).first() is not None:
            raise InvalidInput("target", f"expected {target} empty, found rows in {table.name}")


@contextmanager
def _locked(target: Place) -> Iterator[Connection]:
    with (
        translated(described(target.engine)),
        target.engine.connect() as connection,
        beginning(connection),
        upgrading(connection),
    ):
        yield connection


def _table(target: Place) -> Table:
    return Table(
        target.naming.name(target.store, "copied_from"),
        MetaData(),
        Column("source", Text, primary_key=True),
        Column("run", Text),
        schema=target.naming.schema,
    )
