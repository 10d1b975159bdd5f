"""The transport's statements for PostgreSQL: each one locks the group's row, and decides by the state on that row.

`:now` is the time of a caller's clock, or NULL for the server's. A lock_expiry is read in its 8 bytes: as text it would
be what the session's extra_float_digits leaves of it.
"""

from qstore.statement import SERVER_NOW, Statement
from qstore.transaction import MOST_TIDIED

# The group row is locked first (inserted, or updated by DO UPDATE) and until the commit; a seq for a group that is
# there is drawn after that. So within a group seq is the order of commits, and nobody finds the group empty while
# this is under way.
PUBLISH = Statement("""
    WITH g AS (
      INSERT INTO {groups} AS g (group_id, priority, head, tail, ready)
      SELECT CAST(:group_id AS text), CAST(:priority AS integer), n.seq, n.seq, true
        FROM (SELECT nextval(CAST(pg_get_serial_sequence('{messages}', 'seq') AS regclass)) AS seq) AS n
      ON CONFLICT (group_id) DO UPDATE SET tail = nextval(CAST(pg_get_serial_sequence('{messages}',
        'seq') AS regclass))
      RETURNING group_id, tail)
    INSERT INTO {messages} (seq, group_id, event)
    SELECT g.tail, g.group_id, CAST(:event AS text) FROM g
    RETURNING seq
""")

# publish_many, in one transaction: LOCK_GROUPS, then PUBLISH_ALL. Groups are locked in one order everywhere, and
# all of them before any seq is drawn. That they are there by then is known; ON CONFLICT looks each up by its key.
LOCK_GROUPS = Statement("""
    INSERT INTO {groups} AS g (group_id, priority)
    SELECT DISTINCT ON (i.group_id COLLATE "C") i.group_id, i.priority
      FROM unnest(CAST(:group_ids AS text[]), CAST(:priorities AS integer[])) WITH ORDINALITY AS i (group_id,
        priority, ord)
     ORDER BY i.group_id COLLATE "C", i.ord
    ON CONFLICT (group_id) DO UPDATE SET tail = g.tail WHERE false
""")

PUBLISH_ALL = Statement("""
    WITH i AS MATERIALIZED (
      SELECT nextval(CAST(pg_get_serial_sequence('{messages}', 'seq') AS regclass)) AS seq, o.group_id, o.event,
        o.ord FROM (
        SELECT i.group_id, i.event, i.ord
          FROM unnest(CAST(:group_ids AS text[]), CAST(:events AS text[])) WITH ORDINALITY AS i (group_id, event, ord)
         ORDER BY i.ord) AS o),
    g AS (
      INSERT INTO {groups} AS g (group_id, head, tail, ready)
      SELECT i.group_id, min(i.seq), max(i.seq), true FROM i GROUP BY i.group_id
      ON CONFLICT (group_id) DO UPDATE SET head = CASE WHEN g.tail = 0 THEN excluded.head ELSE g.head END,
        tail = excluded.tail, ready = g.ready OR g.tail = 0),
    m AS (INSERT INTO {messages} (seq, group_id, event) SELECT i.seq, i.group_id, i.event FROM i ORDER BY i.ord)
    SELECT i.seq FROM i ORDER BY i.ord
""")

# min_priority 0. Claims only if no lease or park has lapsed since somebody last ran TIDY and no stamp lies ahead.
# The subquery on messages is the guard of a re-check: when the group changed after this statement's snapshot, its
# present head may be a message that the statement cannot see and so not lease; it is then as good as being claimed
# by somebody else. Two things are written for the planner. Scalar ORDER BY ... LIMIT 1 and not EXISTS, which drops
# them and then reads the table in a row. CASE ... <> 0 because it is taken to hold for nearly every row: so LIMIT 1
# in index order looks cheap, also to a plan made while the table is small and never analyzed; with the bare
# conditions it takes a bitmap and a sort there, and keeps that plan when the table has grown.
CLAIM = Statement(f"""
    WITH g AS (
      UPDATE {{groups}} AS g SET last_claimed_at = t.now, until = t.now + CAST(:visibility AS double precision),
             holder = CAST(:worker_id AS text), ready = false
        FROM (SELECT {SERVER_NOW} AS now) AS t
       WHERE g.group_id = (
         SELECT g.group_id FROM {{groups}} AS g
          WHERE g.ready
            AND CASE WHEN (g.until IS NULL OR g.until < {SERVER_NOW}) AND (SELECT true FROM {{messages}} AS m
              WHERE m.seq = g.head) THEN 1 ELSE 0 END <> 0
            AND coalesce((SELECT w.until FROM {{groups}} AS w WHERE NOT w.ready
              ORDER BY w.until LIMIT 1) >= {SERVER_NOW}, true)
            AND coalesce((SELECT a.last_claimed_at FROM {{groups}} AS a WHERE a.ready
              ORDER BY a.last_claimed_at DESC, a.head DESC LIMIT 1) <= {SERVER_NOW}, true)
          ORDER BY g.last_claimed_at, g.head LIMIT 1 FOR UPDATE SKIP LOCKED)
      RETURNING g.head, g.holder, g.until)
    UPDATE {{messages}} AS m SET locked_by = g.holder, lock_expiry = g.until FROM g WHERE m.seq = g.head
    RETURNING m.seq, m.group_id, m.event, float8send(m.lock_expiry)
""")

_ARMS = " ".join(
    f"""UNION ALL (SELECT a.last_claimed_at AS stamp, a.last_claimed_at, a.head, a.group_id
        FROM {{groups}} AS a WHERE a.ready AND a.priority = {priority}
        AND CAST(:min_priority AS integer) BETWEEN 1 AND {priority}
        ORDER BY a.last_claimed_at, a.head LIMIT (SELECT 100))"""
    for priority in (1, 2, 3, 4)
)

# Any min_priority. One index-ordered arm a priority, merged. With :anyway = true also the groups whose lease or
# park has lapsed (the 1,000 that lapsed first); with false it claims on CLAIM's condition only. The merge is lazy:
# what LIMIT 1 does not need is not read.
CLAIM_FLOOR = Statement(f"""
    WITH t AS MATERIALIZED (SELECT {SERVER_NOW} AS now),
    lapsed AS MATERIALIZED (
      SELECT w.group_id, w.priority, least(w.last_claimed_at, (SELECT now FROM t)) AS stamp, w.last_claimed_at, w.head
        FROM {{groups}} AS w WHERE NOT w.ready AND w.until < (SELECT now FROM t) ORDER BY w.until
       LIMIT (SELECT {MOST_TIDIED})),
    f AS MATERIALIZED (
      (SELECT a.last_claimed_at AS stamp, a.last_claimed_at, a.head, a.group_id FROM {{groups}} AS a WHERE a.ready
        AND CAST(:min_priority AS integer) = 0 ORDER BY a.last_claimed_at, a.head LIMIT (SELECT 100))
      {_ARMS}
      UNION ALL (SELECT l.stamp, l.last_claimed_at, l.head, l.group_id FROM lapsed AS l
        WHERE l.priority >= CAST(:min_priority AS integer)
        ORDER BY l.stamp, l.head)
      ORDER BY stamp, head LIMIT 500),
    c AS MATERIALIZED (
      SELECT g.group_id FROM f CROSS JOIN LATERAL (
        SELECT g.group_id FROM {{groups}} AS g
         WHERE g.group_id = f.group_id AND g.last_claimed_at = f.last_claimed_at AND g.head = f.head
           AND (g.until IS NULL OR g.until < (SELECT now FROM t))
           FOR UPDATE SKIP LOCKED) AS g
       WHERE CAST(:anyway AS boolean) OR (NOT EXISTS (SELECT FROM lapsed) AND coalesce((
             SELECT a.last_claimed_at FROM {{groups}} AS a WHERE a.ready ORDER BY a.last_claimed_at DESC,
               a.head DESC LIMIT 1)
             <= (SELECT now FROM t), true))
       LIMIT 1),
    g AS (
      UPDATE {{groups}} AS g SET last_claimed_at = t.now, until = t.now + CAST(:visibility AS double precision),
             holder = CAST(:worker_id AS text), ready = false
        FROM c, t WHERE g.group_id = c.group_id
      RETURNING g.head, g.holder, g.until)
    UPDATE {{messages}} AS m SET locked_by = g.holder, lock_expiry = g.until FROM g WHERE m.seq = g.head
    RETURNING m.seq, m.group_id, m.event, float8send(m.lock_expiry)
""")

# Stamps that lie ahead, of groups that wait for nothing; the others' are set when the wait is over.
_AHEAD = f"""
      SELECT a.group_id FROM {{groups}} AS a WHERE a.ready AND a.last_claimed_at > (SELECT now FROM t)
       ORDER BY a.last_claimed_at DESC, a.head DESC LIMIT (SELECT {MOST_TIDIED}) FOR UPDATE SKIP LOCKED
"""

# When a claim found nothing, in qstore's own transactions only: makes groups whose lease or park lapsed ready, at
# most 1,000 a call, and stamps that lie ahead now. `seen`: there was something of that kind, ours to change or just
# being changed by somebody else. For the planner, here and elsewhere: LIMIT (SELECT ...) is a limit that it does not
# know, so that it takes it for a part of the rows and reads them in the order of the index; = ANY (ARRAY ...) is a few
# look-ups by the key, where a join of as many rows as it fears would read the table.
TIDY = Statement(f"""
    WITH t AS MATERIALIZED (SELECT {SERVER_NOW} AS now),
    p AS MATERIALIZED (
      SELECT w.group_id FROM {{groups}} AS w WHERE NOT w.ready AND w.until < (SELECT now FROM t)
       ORDER BY w.until LIMIT (SELECT {MOST_TIDIED}) FOR UPDATE SKIP LOCKED),
    s AS MATERIALIZED ({_AHEAD}),
    g AS (
      UPDATE {{groups}} AS g SET ready = g.ready OR coalesce(g.until < (SELECT now FROM t), false),
        last_claimed_at = least(g.last_claimed_at, (SELECT now FROM t))
       WHERE g.group_id = ANY (ARRAY(SELECT group_id FROM p UNION ALL SELECT group_id FROM s))
      RETURNING 1)
    SELECT (SELECT count(*) FROM g) AS changed,
           coalesce((SELECT a.last_claimed_at FROM {{groups}} AS a WHERE a.ready
             ORDER BY a.last_claimed_at DESC, a.head DESC LIMIT 1) > (SELECT now FROM t), false)
           OR coalesce((SELECT w.until FROM {{groups}} AS w WHERE NOT w.ready
             ORDER BY w.until LIMIT 1) < (SELECT now FROM t), false) AS seen
""")

# The half of it for callers' transactions: a stamp that nobody sets keeps its group waiting for as long as the clock
# was ahead. Those groups are locked until the caller commits, once. What lapsed CLAIM_FLOOR finds without.
SETTLE_STAMPS = Statement(f"""
    WITH t AS MATERIALIZED (SELECT {SERVER_NOW} AS now),
    s AS MATERIALIZED ({_AHEAD})
    UPDATE {{groups}} AS g SET last_claimed_at = least(g.last_claimed_at, (SELECT now FROM t))
     WHERE g.group_id = ANY (ARRAY(SELECT group_id FROM s))
""")

# d for the group's last message, u for any other. Both can miss, when a publish to the group committed between this
# statement's snapshot and its lock: by the snapshot the message was the last, by the locked row it is not. Then
# nothing is changed, HOLDER shows this very lease, and the repeat is right. If u finds the group, the snapshot has
# tail > seq, so it sees a next message, and that is still there: only the head can be acked.
ACK = Statement(f"""
    WITH d AS (
      DELETE FROM {{groups}} AS g
       WHERE g.group_id = CAST(:group_id AS text) AND g.head = CAST(:seq AS bigint)
         AND g.holder = CAST(:worker_id AS text)
         AND g.until = CAST(:lock_expiry AS double precision) AND g.tail = CAST(:seq AS bigint)
      RETURNING g.tail AS seq),
    u AS (
      UPDATE {{groups}} AS g SET holder = NULL, until = NULL, ready = true,
        last_claimed_at = least(g.last_claimed_at, {SERVER_NOW}),
             head = (SELECT n.seq FROM {{messages}} AS n WHERE n.group_id = CAST(:group_id AS text)
               AND n.seq > CAST(:seq AS bigint)
                      ORDER BY n.seq LIMIT 1)
       WHERE g.group_id = CAST(:group_id AS text) AND g.head = CAST(:seq AS bigint)
         AND g.holder = CAST(:worker_id AS text)
         AND g.until = CAST(:lock_expiry AS double precision) AND g.tail > CAST(:seq AS bigint)
      RETURNING CAST(:seq AS bigint) AS seq)
    DELETE FROM {{messages}} AS m WHERE m.seq = (SELECT d.seq FROM d UNION ALL SELECT u.seq FROM u)
    RETURNING m.seq
""")

# nack: new_holder and hold NULL. nack with delay: '__parked__' and the delay. extend: the worker and the
# visibility.
RELOCK = Statement(f"""
    WITH g AS (
      UPDATE {{groups}} AS g SET holder = CAST(:new_holder AS text), until = t.now + CAST(:hold AS double precision),
             ready = CAST(:hold AS double precision) IS NULL, last_claimed_at = least(g.last_claimed_at, t.now)
        FROM (SELECT {SERVER_NOW} AS now) AS t
       WHERE g.group_id = CAST(:group_id AS text) AND g.head = CAST(:seq AS bigint)
         AND g.holder = CAST(:worker_id AS text)
         AND g.until = CAST(:lock_expiry AS double precision)
      RETURNING g.head, g.holder, g.until)
    UPDATE {{messages}} AS m SET locked_by = g.holder, lock_expiry = g.until FROM g WHERE m.seq = g.head
    RETURNING float8send(m.lock_expiry)
""")

HOLDER = Statement("SELECT locked_by, float8send(lock_expiry) FROM {messages} WHERE seq = :seq")

# LOCK_GROUPS makes a group that is not there. This takes it away again.
UNLOCK_GROUP = Statement("DELETE FROM {groups} WHERE group_id = CAST(:group_id AS text) AND tail = 0")
