"""The transport's statements. `messages` and `groups` are the seed's tables; all times are epoch seconds."""

from qstore.formats.transport_v1_1 import derived, first_deliverable
from qstore.statement import Statement

PUBLISH = Statement("INSERT INTO {messages} (group_id, event) VALUES (:group_id, :event)")

# The seed writes INSERT OR IGNORE. This is the same for a group that is there, and standard.
PUBLISH_GROUP = Statement("""
    INSERT INTO {groups} (group_id, priority) VALUES (:group_id, :priority) ON CONFLICT (group_id) DO NOTHING
""")

# A stamp that lies in the future, left by a clock that was set right again, counts as now from the first claim that
# meets it on. Otherwise its group would wait behind all others until that time comes.
SETTLE_STAMPS = Statement("UPDATE {groups} SET last_claimed_at = :now WHERE last_claimed_at > :now")

# The seed's text. The event is read as bytes, so that one that is not UTF-8 fails when it is decoded and not here.
CLAIM = Statement("""
    SELECT m.seq, m.group_id, CAST(m.event AS BLOB)
      FROM {messages} m JOIN {groups} g ON g.group_id = m.group_id
      WHERE (m.locked_by IS NULL OR m.lock_expiry < :now)
        AND m.group_id NOT IN (
          SELECT group_id FROM {messages} WHERE locked_by IS NOT NULL AND lock_expiry >= :now)
        AND g.priority >= :min_priority
      ORDER BY g.last_claimed_at ASC, m.seq ASC LIMIT 1
""")

# The same row from `turns`, where the store has it (transport.v1.1), and none as long as something is to be settled
# first. Each arm is in the order of idx_turns, and they are merged until the first row: no temporary b-tree. INDEXED
# BY, so that the statistics of an ANALYZE change nothing.
_ARMS = "\n        UNION ALL ".join(
    "SELECT at, head FROM {turns} INDEXED BY {idx_turns}"
    f" WHERE slot = {priority} AND :min_priority <= {priority} AND until < :now"
    for priority in range(5)
)
CLAIM_FLAT = Statement(f"""
    SELECT seq, group_id, CAST(event AS BLOB) FROM {{messages}}
      WHERE seq = (SELECT head FROM (
        {_ARMS}
        ORDER BY at, head LIMIT 1))
      AND NOT EXISTS (SELECT 1 FROM {{turns}} WHERE id = 0 AND until > :now)
      AND NOT EXISTS (SELECT 1 FROM {{turns}} INDEXED BY {{idx_turns}} WHERE slot = -1 AND at < :now)
""")

# Is there a stamp that lies in the future; has a lock lapsed, or a row to be derived again?
UNSETTLED = Statement("""
    SELECT EXISTS (SELECT 1 FROM {turns} WHERE id = 0 AND until > :now),
           EXISTS (SELECT 1 FROM {turns} INDEXED BY {idx_turns} WHERE slot = -1 AND at < :now)
""")

# What SETTLE_STAMPS is, and a look at the locks of those whose turn might come by an earlier clock than the last one.
SETTLE_CLOCK = (
    SETTLE_STAMPS,
    Statement("UPDATE {turns} INDEXED BY {idx_turns} SET slot = -1, at = until WHERE slot >= 0 AND until >= :now"),
    Statement("UPDATE {turns} SET until = :now WHERE id = 0"),
)

SETTLE_LAPSED = (
    Statement(f"""
        DELETE FROM {{turns}} INDEXED BY {{idx_turns}} WHERE slot = -1 AND at = -9e999
          AND lane IS NULL AND {first_deliverable("{turns}.group_id")} IS NULL
    """),
    Statement(f"""
        UPDATE {{turns}} INDEXED BY {{idx_turns}} SET (head, slot, at, until, held) = ({derived("{turns}.group_id")})
          WHERE slot = -1 AND at = -9e999
    """),
    Statement("UPDATE {turns} INDEXED BY {idx_turns} SET slot = lane, at = stamp WHERE slot = -1 AND at < :now"),
    Statement("UPDATE {turns} SET until = :now WHERE id = 0 AND until < :now"),
)

CLAIM_STAMP = Statement("UPDATE {groups} SET last_claimed_at = :now WHERE group_id = :group_id")

CLAIM_LEASE = Statement("UPDATE {messages} SET locked_by = :worker_id, lock_expiry = :lock_expiry WHERE seq = :seq")

# From here on the row must still carry that very lease. The seed asks for `seq` alone.
ACK = Statement("DELETE FROM {messages} WHERE seq = :seq AND locked_by = :worker_id AND lock_expiry = :lock_expiry")

ACK_GROUP = Statement("""
    DELETE FROM {groups} WHERE group_id = :group_id
      AND NOT EXISTS (SELECT 1 FROM {messages} WHERE group_id = :group_id)
""")

# nack and extend.
RELOCK = Statement("""
    UPDATE {messages} SET locked_by = :new_locked_by, lock_expiry = :new_lock_expiry
      WHERE seq = :seq AND locked_by = :worker_id AND lock_expiry = :lock_expiry
""")

HOLDER = Statement("SELECT locked_by, lock_expiry FROM {messages} WHERE seq = :seq")
