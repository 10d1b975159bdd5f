"""A statement: SQL text with the store's names left open, rendered and compiled once for each naming."""

from __future__ import annotations

from inspect import cleandoc

from sqlalchemy import TextClause, text
from sqlalchemy.engine import Dialect

from qstore.naming import Names

__all__ = ["SERVER_MILLISECONDS", "SERVER_NOW", "DriverStatement", "Statement"]

# `:now` is the time of a caller's clock, or NULL: then it is the server's, and not the one frozen when a transaction
# began.
SERVER_NOW = "coalesce(CAST(:now AS double precision), date_part('epoch', clock_timestamp()))"
"""Epoch seconds, in SQL for PostgreSQL."""

SERVER_MILLISECONDS = f"CAST(floor(round({SERVER_NOW} * 1000000) / 1000) AS bigint)"
"""The same in whole epoch milliseconds, rounded down, as `clock.milliseconds` does."""

DriverStatement = tuple[str, tuple[str, ...]]
"""What a driver takes: the compiled text, and the names of its positional binds in order."""


class Statement:
    """A `text()` constant. Names such as `{kv}` come from `Naming`, values such as `:key` are binds."""

    __slots__ = ("_clauses", "_compiled", "_text")

    def __init__(self, text: str) -> None:
        self._text = cleandoc(text)
        self._clauses: dict[Names, TextClause] = {}
        self._compiled: dict[tuple[Names, str], DriverStatement] = {}

    def __repr__(self) -> str:
        return f"Statement({self._text!r})"

    def clause(self, names: Names) -> TextClause:
        """The statement for a SQLAlchemy connection."""
        clause = self._clauses.get(names)
        if clause is None:
            clause = self._clauses[names] = text(names.render(self._text))
        return clause

    def compiled(self, names: Names, dialect: Dialect) -> DriverStatement:
        """The statement for the dialect's driver, with positional binds."""
        key = (names, dialect.name)
        compiled = self._compiled.get(key)
        if compiled is None:
            clause = self.clause(names).compile(dialect=dialect)
            compiled = self._compiled[key] = (str(clause), tuple(clause.positiontup or ()))
        return compiled
