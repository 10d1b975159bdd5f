"""What a format is: a marker, and the frozen DDL that makes it on each dialect."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from qstore.naming import Names

__all__ = ["Format"]


@dataclass(frozen=True, slots=True, eq=False)
class Format:
    """One version of a store's layout. After a release its text is never edited, only added to."""

    store: str
    marker: str
    tables: tuple[str, ...]
    ddl: Mapping[str, tuple[str, ...]]
    fill: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Where a dialect's tables keep state besides the seed's columns: what makes it right from those, from scratch."""
    faults: Mapping[str, str] = field(default_factory=dict)
    """A query whose rows are where that state is not right."""

    @property
    def marked(self) -> bool:
        """Whether the format writes its marker into a `meta` table. The transport's seed has none."""
        return "meta" in self.tables

    def beside(self, names: Names, dialect: str, table: str) -> list[str]:
        """Those of the statements that concern a table and do not create it."""
        about = re.compile(rf"(?:INTO|ON|ALTER TABLE) \{{{table}\}}")
        return [
            names.render(statement)
            for statement in self.ddl[dialect]
            if about.search(statement) and not statement.startswith("CREATE TABLE")
        ]

    def statements(self, names: Names, dialect: str, present: Collection[str] = ()) -> list[str]:
        """The DDL with a naming's names. Each statement may be run again on a store that has it already.

        Without those that create the tables which are present: they may be in another schema than a new one would.
        """
        made = tuple(f"CREATE TABLE IF NOT EXISTS {{{table}}}" for table in present)
        return [names.render(statement) for statement in self.ddl[dialect] if not statement.startswith(made)]
