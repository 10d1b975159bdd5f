"""What a PostgreSQL database says of itself: its tables as the catalog has them, and connections to ask it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

from sqlalchemy import URL, Engine, create_engine

from qstore import revisions
from tests import postgres

__all__ = ["ALL", "BARE", "TABLES", "Schema", "catalog", "engine_on", "execute", "tables"]

Schema = dict[str, list[tuple[Any, ...]]]

ALL = tuple(sorted(revisions.script_directory().get_heads()))
"""The newest revision of each store."""

TABLES = {
    *("qstore_transport_messages", "qstore_transport_groups"),
    *("qstore_localkv_meta", "qstore_localkv_kv"),
    *("qstore_localqueue_meta", "qstore_localqueue_messages"),
}
"""The tables that are made on a server, besides the version table."""

BARE = {
    "transport": """
        CREATE TABLE qstore_transport_messages (seq BIGSERIAL PRIMARY KEY, group_id TEXT COLLATE "C" NOT NULL,
            event TEXT NOT NULL, locked_by TEXT, lock_expiry DOUBLE PRECISION);
        CREATE TABLE qstore_transport_groups (group_id TEXT COLLATE "C" PRIMARY KEY,
            last_claimed_at DOUBLE PRECISION NOT NULL DEFAULT 0.0, priority INTEGER NOT NULL DEFAULT 0);""",
    "localkv": """
        CREATE TABLE qstore_localkv_meta (key TEXT COLLATE "C" PRIMARY KEY, value TEXT NOT NULL);
        CREATE TABLE qstore_localkv_kv (key TEXT COLLATE "C" PRIMARY KEY, value BYTEA NOT NULL, expires_at BIGINT);""",
    "localqueue": """
        CREATE TABLE qstore_localqueue_meta (key TEXT COLLATE "C" PRIMARY KEY, value TEXT NOT NULL);
        CREATE TABLE qstore_localqueue_messages (id BIGSERIAL PRIMARY KEY, payload_type TEXT NOT NULL,
            payload_data TEXT NOT NULL, enqueued_at BIGINT NOT NULL, visible_at BIGINT NOT NULL,
            attempt INTEGER NOT NULL DEFAULT 0, receipt_handle TEXT);""",
}
"""The seeds' columns alone, as a hand that knows nothing of the rest would make them."""

# A table's name comes last in each row, so that a prefix or a schema of another name can be told apart.
_CATALOG = {
    "columns": """
        SELECT c.relname, a.attname, format_type(a.atttypid, a.atttypmod), a.attnotnull, l.collname,
               replace(pg_get_expr(d.adbin, d.adrelid), n.nspname || '.', '')
          FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
          JOIN pg_attribute AS a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
          LEFT JOIN pg_attrdef AS d ON d.adrelid = c.oid AND d.adnum = a.attnum
          LEFT JOIN pg_collation AS l ON l.oid = a.attcollation
         WHERE n.nspname = %s AND c.relkind = 'r' ORDER BY 1, 2""",
    "options": """
        SELECT c.relname, coalesce((SELECT array_agg(o ORDER BY o) FROM unnest(c.reloptions) AS o), '{}')
          FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
         WHERE n.nspname = %s AND c.relkind = 'r' ORDER BY 1""",
    "indexes": """
        SELECT tablename, indexname, replace(indexdef, schemaname || '.', '')
          FROM pg_indexes WHERE schemaname = %s ORDER BY 1, 2""",
    "constraints": """
        SELECT c.relname, o.conname, pg_get_constraintdef(o.oid)
          FROM pg_constraint AS o JOIN pg_class AS c ON c.oid = o.conrelid
          JOIN pg_namespace AS n ON n.oid = c.relnamespace
         WHERE n.nspname = %s AND o.contype <> 'n' ORDER BY 1, 2""",
    "sequences": """
        SELECT s.relname, t.relname, a.attname
          FROM pg_class AS s JOIN pg_namespace AS n ON n.oid = s.relnamespace
          LEFT JOIN pg_depend AS d ON d.objid = s.oid AND d.deptype = 'a'
          LEFT JOIN pg_class AS t ON t.oid = d.refobjid
          LEFT JOIN pg_attribute AS a ON a.attrelid = d.refobjid AND a.attnum = d.refobjsubid
         WHERE n.nspname = %s AND s.relkind = 'S' ORDER BY 1""",
}


def catalog(url: URL, schema: str = "public") -> Schema:
    """Columns with types, collations and defaults, options, indexes, constraints and sequences of a schema's tables."""
    with closing(postgres.connect(url)) as connection:
        return {about: connection.execute(query, [schema]).fetchall() for about, query in _CATALOG.items()}


def tables(url: URL, schema: str = "public") -> set[str]:
    """The names of a schema's tables."""
    rows = execute(url, f"SELECT tablename FROM pg_tables WHERE schemaname = '{schema}'")
    return {name for (name,) in rows}


def execute(url: URL, statements: str) -> list[tuple[Any, ...]]:
    """Run a script as psql does, each statement committed by itself. The rows of the first, if it has any."""
    with closing(postgres.connect(url)) as connection:
        cursor = connection.execute(statements.encode())
        return cursor.fetchall() if cursor.description else []


@contextmanager
def engine_on(url: URL, **arguments: Any) -> Iterator[Engine]:
    """An engine as a host makes it, without connections at the end."""
    engine = create_engine(url, **arguments)
    try:
        yield engine
    finally:
        engine.dispose()
