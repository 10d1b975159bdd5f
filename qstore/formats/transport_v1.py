"""`transport.v1`: the group-exclusive FIFO queue, as its seed defines it. Frozen."""

from qstore.formats import postgresql
from qstore.formats.format import Format

TRANSPORT_V1 = Format(
    store="transport",
    marker="transport.v1",
    tables=("messages", "groups"),
    ddl={
        "sqlite": (
            """\
CREATE TABLE IF NOT EXISTS {messages} (
  seq          INTEGER PRIMARY KEY AUTOINCREMENT,  -- monotonic id: FIFO order + the Lease handle
  group_id     TEXT NOT NULL,                      -- the execution id (the exclusivity group)
  event        TEXT NOT NULL,                      -- the Event JSON (event.model_dump_json())
  locked_by    TEXT,                               -- worker id while leased / "__parked__" / NULL when free
  lock_expiry  REAL                                -- epoch when the lease (or park) ends; NULL when free
)""",
            """\
CREATE TABLE IF NOT EXISTS {groups} (
  group_id       TEXT PRIMARY KEY,    -- one row per group that has messages
  last_claimed_at REAL NOT NULL DEFAULT 0.0,  -- epoch of last claim (0 = never claimed)
  priority        INT  NOT NULL DEFAULT 0     -- set on first publish; 0–4
)""",  # noqa: RUF001  the seed's own dash
        ),
        "postgresql": postgresql.TRANSPORT_V1,
    },
    fill={"postgresql": postgresql.TRANSPORT_V1_FILL},
    faults={"postgresql": postgresql.TRANSPORT_V1_FAULTS},
)
