"""What a statement says in a schema, however it is spelled."""

from __future__ import annotations

import re

__all__ = ["without_comments", "words"]


def words(sql: str) -> list[str]:
    """A statement's words and signs. turso keeps one as it would write it, with quotes and spaces of its own."""
    bare = re.sub(r'"(\w+)"', r"\1", sql.replace(" IF NOT EXISTS", "", 1).replace("!=", "<>"))
    return re.findall(r"'(?:[^']|'')*'|\w+|[^\w\s]", bare.replace(" LEFT OUTER JOIN ", " LEFT JOIN "))


def without_comments(sql: str) -> str:
    """A statement without its comments and texts."""
    return re.sub(r"--[^\n]*|/\*.*?\*/|'(?:[^']|'')*'|\"(?:[^\"]|\"\")*\"", " ", sql, flags=re.DOTALL)
