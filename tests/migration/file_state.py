"""What is on disk: the bytes of a directory, and a database's schema as SQLite describes it."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

__all__ = ["Schema", "bytes_of", "dump", "journal_mode", "opened", "schema", "table_names", "unchanged"]

Schema = dict[str, dict[str, list[tuple[Any, ...]]]]


def bytes_of(directory: Path) -> dict[str, bytes | None]:
    """Every file below a directory with its bytes (a directory: None)."""
    return {
        str(path.relative_to(directory)): path.read_bytes() if path.is_file() else None
        for path in sorted(directory.rglob("*"))
    }


@contextmanager
def unchanged(directory: Path) -> Iterator[None]:
    """Fail if a file below the directory comes, goes or changes a byte."""
    before = bytes_of(directory)
    yield
    after = bytes_of(directory)
    assert list(after) == list(before)
    assert [name for name in before if after[name] != before[name]] == []


@contextmanager
def opened(path: Path) -> Iterator[sqlite3.Connection]:
    """A plain connection that commits each statement."""
    with closing(sqlite3.connect(path, timeout=5, isolation_level=None)) as connection:
        yield connection


def table_names(path: Path) -> set[str]:
    """The names of all tables and views but SQLite's own."""
    with opened(path) as connection:
        found = connection.execute("SELECT name FROM sqlite_master WHERE type IN ('table', 'view')").fetchall()
    return {str(name) for (name,) in found if not name.startswith("sqlite_")}


def journal_mode(path: Path) -> str:
    """The file's journal mode."""
    with opened(path) as connection:
        return str(connection.execute("PRAGMA journal_mode").fetchone()[0])


def schema(path: Path) -> Schema:
    """Each table but a version table: its columns, defaults, keys, indexes and kind, as SQLite reports them."""
    with opened(path) as connection:

        def ask(query: str) -> list[tuple[Any, ...]]:
            return connection.execute(query).fetchall()

        return {
            name: {
                "columns": ask(f'PRAGMA table_xinfo("{name}")'),
                "indexes": sorted(each[1:] for each in ask(f'PRAGMA index_list("{name}")')),
                "index columns": [
                    (index, *column)
                    for index in sorted(each[1] for each in ask(f'PRAGMA index_list("{name}")'))
                    for column in ask(f'PRAGMA index_xinfo("{index}")')
                ],
                "foreign keys": ask(f'PRAGMA foreign_key_list("{name}")'),
                "kind": [each[2:] for each in ask("PRAGMA table_list") if each[:2] == ("main", name)],
                "objects": ask(
                    f"SELECT type, name, tbl_name FROM sqlite_master WHERE tbl_name = '{name}' ORDER BY 1, 2"
                ),
            }
            for (name,) in ask("SELECT name FROM sqlite_master WHERE type IN ('table', 'view') ORDER BY name")
            if not name.endswith("alembic_version")
        }


def dump(path: Path) -> list[str]:
    """All that a database holds, as a script."""
    with opened(path) as connection:
        return list(connection.iterdump())
