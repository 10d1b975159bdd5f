"""`localqueue.v1`: the visibility-timeout queue, as its seed defines it. Frozen."""

from qstore.formats import postgresql
from qstore.formats.format import Format

LOCALQUEUE_V1 = Format(
    store="localqueue",
    marker="localqueue.v1",
    tables=("meta", "messages"),
    ddl={
        "sqlite": (
            """\
CREATE TABLE IF NOT EXISTS {meta} (
key TEXT PRIMARY KEY,
value TEXT NOT NULL
)""",
            "INSERT OR IGNORE INTO {meta} (key, value) VALUES ('format', 'localqueue.v1')",
            """\
CREATE TABLE IF NOT EXISTS {messages} (
id INTEGER PRIMARY KEY AUTOINCREMENT,
payload_type TEXT NOT NULL, -- "json" | "text"
payload_data TEXT NOT NULL, -- serialized JSON for "json", raw string for "text"
enqueued_at INTEGER NOT NULL, -- unix epoch MILLISECONDS
visible_at INTEGER NOT NULL, -- unix epoch MILLISECONDS; due when <= now
attempt INTEGER NOT NULL DEFAULT 0, -- delivery count, incremented per receive
receipt_handle TEXT -- UUID of the CURRENT delivery, NULL if never delivered
)""",
            "CREATE INDEX IF NOT EXISTS {idx_messages_visible} ON {messages} (visible_at, enqueued_at, id)",
        ),
        "postgresql": postgresql.LOCALQUEUE_V1,
    },
)
