"""What the formats are on PostgreSQL: the seeds' tables with 64-bit times, and the state that parallel writers need.

Frozen.
Each statement may run again on a store that has it already. Tables that SQLAlchemy made from the models have the
seeds' columns alone; the statements after them add the rest.
"""

__all__ = ["LOCALKV_V1", "LOCALQUEUE_V1", "TRANSPORT_V1", "TRANSPORT_V1_FAULTS", "TRANSPORT_V1_FILL"]

# A queue's table is small and changes all the time: dead rows are what slows it. So vacuum comes by their number, and
# not by their share, does not pause, and pages keep room for the next version of a row.
HOT = (
    "autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000, autovacuum_vacuum_cost_delay = 0,"
    " autovacuum_vacuum_insert_threshold = 100000, autovacuum_analyze_scale_factor = 0.1,"
    " autovacuum_analyze_threshold = 5000"
)

# The state of a group, on the one row that a claim locks:
#   head           the lowest seq of the group: the only message of it that can be leased, parked or claimed
#   tail           the highest seq of the group; head = tail: one message
#   holder, until  the head's locked_by and lock_expiry
#   ready          false from a claim or park until an ack, a nack, or the lapse is noticed: which index finds it
# A row that somebody inserts without them is invisible to claims.
TRANSPORT_V1 = (
    """\
CREATE TABLE IF NOT EXISTS {messages} (
  seq          BIGSERIAL PRIMARY KEY,
  group_id     TEXT COLLATE "C" NOT NULL,
  event        TEXT NOT NULL,
  locked_by    TEXT,
  lock_expiry  DOUBLE PRECISION
)""",
    f"ALTER TABLE {{messages}} SET (fillfactor = 70, {HOT})",
    "CREATE INDEX IF NOT EXISTS {idx_messages_next} ON {messages} (group_id, seq)",
    """\
CREATE TABLE IF NOT EXISTS {groups} (
  group_id         TEXT COLLATE "C" PRIMARY KEY,
  last_claimed_at  DOUBLE PRECISION NOT NULL DEFAULT 0.0,
  priority         INTEGER NOT NULL DEFAULT 0
)""",
    """\
ALTER TABLE {groups}
  ADD COLUMN IF NOT EXISTS head    BIGINT NOT NULL DEFAULT 0,
  ADD COLUMN IF NOT EXISTS tail    BIGINT NOT NULL DEFAULT 0,
  ADD COLUMN IF NOT EXISTS holder  TEXT,
  ADD COLUMN IF NOT EXISTS until   DOUBLE PRECISION,
  ADD COLUMN IF NOT EXISTS ready   BOOLEAN NOT NULL DEFAULT false""",
    f"ALTER TABLE {{groups}} SET (fillfactor = 70, {HOT})",
    "CREATE INDEX IF NOT EXISTS {idx_groups_ready} ON {groups} (last_claimed_at, head) WHERE ready",
    """\
CREATE INDEX IF NOT EXISTS {idx_groups_floor} ON {groups} (priority, last_claimed_at, head)
  WHERE ready AND priority > 0""",
    "CREATE INDEX IF NOT EXISTS {idx_groups_waiting} ON {groups} (until) WHERE NOT ready",
)

# The state of all groups, from the messages: for whoever wrote to `messages` by another way. Every writer writes to
# `groups`, so that a lock on it alone keeps them all out; a second lock would deadlock with them.
TRANSPORT_V1_FILL = (
    "LOCK TABLE {groups} IN EXCLUSIVE MODE",
    "DELETE FROM {groups} AS g WHERE NOT EXISTS (SELECT FROM {messages} AS m WHERE m.group_id = g.group_id)",
    "INSERT INTO {groups} (group_id) SELECT DISTINCT group_id FROM {messages} ON CONFLICT (group_id) DO NOTHING",
    """\
UPDATE {groups} AS g SET head = n.head, tail = n.tail, holder = m.locked_by, until = m.lock_expiry,
       ready = m.lock_expiry IS NULL
  FROM (SELECT group_id, min(seq) AS head, max(seq) AS tail FROM {messages} GROUP BY group_id) AS n
  JOIN {messages} AS m ON m.seq = n.head
 WHERE n.group_id = g.group_id""",
)

# A lapse makes a group ready, and its messages stay as they are: a ready group has the head's lock, or none.
TRANSPORT_V1_FAULTS = """\
SELECT coalesce(g.group_id, n.group_id)
  FROM (SELECT group_id, min(seq) AS head, max(seq) AS tail FROM {messages} GROUP BY group_id) AS n
  JOIN {messages} AS m ON m.seq = n.head
  FULL JOIN {groups} AS g ON g.group_id = n.group_id
 WHERE (g.head, g.tail, g.holder, g.until) IS DISTINCT FROM (n.head, n.tail, m.locked_by, m.lock_expiry)
    OR NOT g.ready AND g.until IS NULL"""

_META = """\
CREATE TABLE IF NOT EXISTS {meta} (
  key    TEXT COLLATE "C" PRIMARY KEY,
  value  TEXT NOT NULL
)"""

LOCALKV_V1 = (
    _META,
    "INSERT INTO {meta} (key, value) VALUES ('format', 'localkv.v1') ON CONFLICT (key) DO NOTHING",
    """\
CREATE TABLE IF NOT EXISTS {kv} (
  key         TEXT COLLATE "C" PRIMARY KEY,
  value       BYTEA NOT NULL,
  expires_at  BIGINT
)""",
    f"ALTER TABLE {{kv}} SET (fillfactor = 80, {HOT})",
    "CREATE INDEX IF NOT EXISTS {idx_kv_expires} ON {kv} (expires_at) WHERE expires_at IS NOT NULL",
)

# ready: whether the message waits in front (true) or for its visible_at (false). Only a hint: a ready message is still
# asked for its visible_at, so that whoever writes the seed's columns alone does no harm.
LOCALQUEUE_V1 = (
    _META,
    "INSERT INTO {meta} (key, value) VALUES ('format', 'localqueue.v1') ON CONFLICT (key) DO NOTHING",
    """\
CREATE TABLE IF NOT EXISTS {messages} (
  id              BIGSERIAL PRIMARY KEY,
  payload_type    TEXT NOT NULL,
  payload_data    TEXT NOT NULL,
  enqueued_at     BIGINT NOT NULL,
  visible_at      BIGINT NOT NULL,
  attempt         INTEGER NOT NULL DEFAULT 0,
  receipt_handle  TEXT
)""",
    "ALTER TABLE {messages} ADD COLUMN IF NOT EXISTS ready BOOLEAN NOT NULL DEFAULT true",
    f"ALTER TABLE {{messages}} SET (fillfactor = 70, {HOT})",
    "CREATE INDEX IF NOT EXISTS {idx_messages_ready} ON {messages} (enqueued_at, id) WHERE ready",
    "CREATE INDEX IF NOT EXISTS {idx_messages_waiting} ON {messages} (visible_at) WHERE NOT ready",
)
