"""A statement: SQL text with the store's names left open, rendered once for each naming."""

from __future__ import annotations

from inspect import cleandoc

from sqlalchemy import TextClause, text

from qstore.naming import Names

__all__ = ["SERVER_MILLISECONDS", "SERVER_NOW", "Rendered", "Statement"]

# `:now` is the time of a caller's clock, or NULL: then it is the server's, and not the one frozen when a transaction
# began.
SERVER_NOW = "coalesce(CAST(:now AS double precision), date_part('epoch', clock_timestamp()))"
"""Epoch seconds, in SQL for PostgreSQL."""

SERVER_MILLISECONDS = f"CAST(floor(round({SERVER_NOW} * 1000000) / 1000) AS bigint)"
"""The same in whole epoch milliseconds, rounded down, as `clock.milliseconds` does."""


class Statement:
    """A `text()` constant. Names such as `{kv}` come from `Naming`, values such as `:key` are binds."""

    __slots__ = ("_clauses", "_text")

    def __init__(self, text: str) -> None:
        self._text = cleandoc(text)
        self._clauses: dict[Names, TextClause] = {}

    def __repr__(self) -> str:
        return f"Statement({self._text!r})"

    def clause(self, names: Names) -> TextClause:
        """The statement for a SQLAlchemy connection."""
        clause = self._clauses.get(names)
        if clause is None:
            clause = self._clauses[names] = text(self.rendered(names))
        return clause

    def rendered(self, names: Names) -> str:
        """The statement for sqlite3, which takes binds by these names itself."""
        return names.render(self._text)


class Rendered(dict[Statement, str]):
    """The statements of a store in one naming, each rendered when it is first asked for."""

    __slots__ = ("_names",)

    def __init__(self, names: Names) -> None:
        self._names = names

    def __missing__(self, statement: Statement) -> str:
        text = self[statement] = statement.rendered(self._names)
        return text
