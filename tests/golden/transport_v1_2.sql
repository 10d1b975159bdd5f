CREATE VIEW qstore_messages_view AS
  SELECT seq, group_id,
         CASE
         WHEN locked_by IS NULL THEN 'ready'
         WHEN lock_expiry IS NULL THEN 'stuck'
         WHEN locked_by = '__parked__' THEN CASE WHEN lock_expiry >= now THEN 'parked' ELSE 'ready' END
         WHEN lock_expiry >= now THEN 'in flight' ELSE 'lapsed' END AS state,
         event, locked_by,
         strftime('%Y-%m-%d %H:%M:%f', min(max(lock_expiry, 0), 253402300799), 'unixepoch') AS lock_expiry,
         CASE WHEN locked_by IS NOT NULL THEN round(lock_expiry - now, 3) END AS lease_left
    FROM (SELECT *, (julianday('now') - 2440587.5) * 86400.0 AS now FROM messages);

CREATE VIEW qstore_groups_view AS
  SELECT ids.group_id,
         CASE WHEN g.group_id IS NULL THEN 'orphaned' WHEN m.messages IS NULL THEN 'empty'
              WHEN m.in_flight > 0 THEN 'in flight' WHEN m.parked > 0 THEN 'parked' WHEN m.head IS NULL THEN 'stuck'
              WHEN m.lapsed > 0 THEN 'lapsed' ELSE 'ready' END AS state,
         coalesce(m.messages, 0) AS messages, m.head, g.priority,
         CASE WHEN g.last_claimed_at > 0 THEN strftime('%Y-%m-%d %H:%M:%f', min(max(g.last_claimed_at, 0), 253402300799), 'unixepoch') END AS last_claimed_at,
         CASE WHEN g.last_claimed_at > 0 THEN round((julianday('now') - 2440587.5) * 86400.0 - g.last_claimed_at, 3) END AS age,
         m.locked_by,
         strftime('%Y-%m-%d %H:%M:%f', min(max(m.lock_expiry, 0), 253402300799), 'unixepoch') AS lock_expiry,
         round(m.lock_expiry - (julianday('now') - 2440587.5) * 86400.0, 3) AS lease_left
    FROM (SELECT group_id FROM groups UNION SELECT group_id FROM messages) AS ids
    LEFT JOIN groups AS g ON g.group_id = ids.group_id
    LEFT JOIN (SELECT group_id, count(*) AS messages, min(CASE WHEN state <> 'stuck' THEN seq END) AS head,
                      sum(state = 'in flight') AS in_flight, sum(state = 'parked') AS parked,
                      sum(state = 'lapsed') AS lapsed,
                      max(CASE WHEN state IN ('in flight', 'parked', 'lapsed') THEN locked_by END) AS locked_by,
                      max(CASE WHEN state IN ('in flight', 'parked', 'lapsed') THEN lock_expiry END) AS lock_expiry
                 FROM (SELECT *, CASE
         WHEN locked_by IS NULL THEN 'ready'
         WHEN lock_expiry IS NULL THEN 'stuck'
         WHEN locked_by = '__parked__' THEN CASE WHEN lock_expiry >= now THEN 'parked' ELSE 'ready' END
         WHEN lock_expiry >= now THEN 'in flight' ELSE 'lapsed' END AS state FROM (SELECT *, (julianday('now') - 2440587.5) * 86400.0 AS now FROM messages))
                GROUP BY group_id) AS m ON m.group_id = ids.group_id;
