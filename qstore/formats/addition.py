"""What a later revision adds to a format and leaves the format as it is: indexes, tables of qstore's own, triggers."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import chain

from qstore.formats.format import Format
from qstore.naming import Names

__all__ = ["Addition"]


@dataclass(frozen=True, slots=True, eq=False)
class Addition:
    """Tables beside a format's own that triggers keep right, whoever writes. Frozen like the format.

    Names are mapped to their CREATE statements. `fill` makes the tables right from scratch, in the transaction that
    creates them and in a repair. `faults` is a query whose rows are where they are not right.
    """

    format: Format
    revision: str
    dialect: str
    tables: Mapping[str, str]
    indexes: Mapping[str, str]
    triggers: Mapping[str, str]
    fill: tuple[str, ...]
    faults: str

    @property
    def parts(self) -> tuple[str, ...]:
        """The names of all that is added."""
        return (*self.tables, *self.indexes, *self.triggers)

    @property
    def places(self) -> dict[str, str]:
        """The table of each of its parts. A trigger and an index go with a table that is renamed."""
        on = {part: re.findall(r" ON \{(\w+)\}", text)[0] for part, text in {**self.indexes, **self.triggers}.items()}
        return {table: table for table in self.tables} | on

    def ddl(self, names: Names) -> list[str]:
        """The CREATE statements with a naming's names. Each may be run again where it was run."""
        return self.rendered(names, chain(self.tables.values(), self.indexes.values(), self.triggers.values()))

    def drop(self, names: Names) -> Iterator[str]:
        """The DROP statements; the triggers first, since they write to the tables."""
        for kind, parts in (("TRIGGER", self.triggers), ("INDEX", self.indexes), ("TABLE", self.tables)):
            yield from self.rendered(names, (f"DROP {kind} IF EXISTS {{{name}}}" for name in parts))

    def rendered(self, names: Names, statements: Iterator[str] | tuple[str, ...]) -> list[str]:
        """Statements with a naming's names, without its schema: SQLite takes none within a trigger."""
        bare = names if names.naming.schema is None else replace(names, naming=replace(names.naming, schema=None))
        return [bare.render(statement) for statement in statements]
