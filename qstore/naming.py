"""Names of tables and indexes: the seeds' own in a native file, prefixed ones in a host's database."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from sqlalchemy import MetaData

from qstore.errors import InvalidInput, InvalidType, shown

__all__ = ["NATIVE", "SERVER", "TURSO_INTERNAL", "Names", "Naming"]

TURSO_INTERNAL = "__turso_internal_"
"""How the tables begin that turso makes for itself, one for each AUTOINCREMENT, in a file that it has written to."""

# The longest name is prefix + "localqueue_idx_messages_visible" (31), and PostgreSQL cuts names at 63 bytes.
PREFIX = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,29}")
_SCHEMA = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,62}")


@dataclass(frozen=True, slots=True)
class Naming:
    """How a database names a store's tables.

    Without a prefix the names are the seeds' (`messages`, `kv`, …), and a file holds one store. With one, a table is
    `<prefix><store>_<table>`, an index likewise, and all stores fit into one database. Every name is quoted.
    """

    prefix: str | None = None
    schema: str | None = None
    metadata: MetaData | None = field(default=None, compare=False, repr=False)
    """Where the tables are mapped (`mount`), for a Session that asks them which engine to use."""

    def __post_init__(self) -> None:
        for name, value, pattern in (("prefix", self.prefix, PREFIX), ("schema", self.schema, _SCHEMA)):
            if value is None:
                continue
            if not isinstance(value, str):
                raise InvalidType.of(name, value, "str")
            if not pattern.fullmatch(value):
                raise InvalidInput(
                    name, f"expected ASCII letters, digits and underscores ({pattern.pattern}), found {shown(value)}"
                )

    @property
    def native(self) -> bool:
        """Whether the names are the seeds' own."""
        return self.prefix is None

    @property
    def version_table(self) -> str:
        """Where Alembic keeps the revisions: never its default name, which would be the host's."""
        return f"{'qstore_' if self.prefix is None else self.prefix}alembic_version"

    def name(self, store: str, name: str) -> str:
        """The name of a store's table or index, unquoted."""
        return name if self.prefix is None else f"{self.prefix}{store}_{name}"

    def of(self, store: str) -> Names:
        """The names of one store, to be rendered into its statements."""
        return Names(self, store)


@dataclass(frozen=True, slots=True)
class Names:
    """One store's names, quoted: `{kv}` in a statement stands for the table, `{idx_…}` for an index."""

    naming: Naming
    store: str

    def render(self, statement: str) -> str:
        """The statement with its names filled in. Values are never rendered: they are binds."""
        return statement.format_map(self)

    def __getitem__(self, name: str) -> str:
        bare = self.naming.name(self.store, name)
        quoted = bare if self.naming.native else f'"{bare}"'
        if self.naming.schema is None or name.startswith("idx_"):
            return quoted  # an index lives in its table's schema, and must be named without it
        return f'"{self.naming.schema}".{quoted}'


NATIVE = Naming()
"""The names of the seeds' own files."""

SERVER = Naming("qstore_")
"""The names in a server's database that `open` was given the URL of: it may hold all stores, and others' tables."""
