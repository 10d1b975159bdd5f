"""What a later revision adds to a format that stays as it is: tables of qstore's own, indexes, triggers, views."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import chain

from qstore.formats.format import Format
from qstore.naming import Names, Naming

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
    native: bool = False
    """Only a file of one store has it."""
    tables: Mapping[str, str] = field(default_factory=dict)
    indexes: Mapping[str, str] = field(default_factory=dict)
    triggers: Mapping[str, str] = field(default_factory=dict)
    views: Mapping[str, str] = field(default_factory=dict)
    fill: tuple[str, ...] = ()
    faults: str = ""

    @property
    def parts(self) -> tuple[str, ...]:
        """The names of all that is added."""
        return (*self.tables, *self.indexes, *self.triggers, *self.views)

    def belongs(self, naming: Naming, dialect: str) -> bool:
        """Whether a store of that naming has it, on that dialect."""
        return dialect == self.dialect and (naming.native or not self.native)

    @property
    def places(self) -> dict[str, str]:
        """The table of each of its parts. A trigger and an index go with a table that is renamed."""
        on = {part: re.findall(r" ON \{(\w+)\}", text)[0] for part, text in {**self.indexes, **self.triggers}.items()}
        return {it: it for it in (*self.tables, *self.views)} | on

    def ddl(self, names: Names) -> list[str]:
        """The CREATE statements with a naming's names. Each may be run again where it was run."""
        kinds = self.tables, self.indexes, self.triggers, self.views
        return self.rendered(names, chain.from_iterable(each.values() for each in kinds))

    def drop(self, names: Names) -> Iterator[str]:
        """The DROP statements; the triggers before the tables, since they write to them."""
        kinds = ("VIEW", self.views), ("TRIGGER", self.triggers), ("INDEX", self.indexes), ("TABLE", self.tables)
        for kind, parts in kinds:
            yield from self.rendered(names, (f"DROP {kind} IF EXISTS {{{name}}}" for name in parts))

    def temporary(self, names: Names) -> tuple[str, ...]:
        """The views as a connection's own: the same names over the tables of any naming."""
        return tuple(
            names.render(view.replace(f"VIEW IF NOT EXISTS {{{name}}}", f"TEMP VIEW {name}"))
            for name, view in self.views.items()
        )

    def rendered(self, names: Names, statements: Iterator[str] | tuple[str, ...]) -> list[str]:
        """Statements with a naming's names, without its schema: SQLite takes none within a trigger."""
        bare = names if names.naming.schema is None else replace(names, naming=replace(names.naming, schema=None))
        return [bare.render(statement) for statement in statements]
