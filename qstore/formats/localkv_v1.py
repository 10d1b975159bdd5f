"""`localkv.v1`: the key-value store, as its seed defines it. Frozen."""

from qstore.formats import postgresql
from qstore.formats.format import Format

LOCALKV_V1 = Format(
    store="localkv",
    marker="localkv.v1",
    tables=("meta", "kv"),
    ddl={
        "sqlite": (
            """\
CREATE TABLE IF NOT EXISTS {meta} (
key TEXT PRIMARY KEY,
value TEXT NOT NULL
)""",
            "INSERT OR IGNORE INTO {meta} (key, value) VALUES ('format', 'localkv.v1')",
            """\
CREATE TABLE IF NOT EXISTS {kv} (
key TEXT PRIMARY KEY,
value BLOB NOT NULL,
expires_at INTEGER -- unix epoch MILLISECONDS, NULL = no expiry
)""",
        ),
        "postgresql": postgresql.LOCALKV_V1,
    },
)
