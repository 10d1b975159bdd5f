CREATE VIEW qstore_queue_view AS
  SELECT id,
         CASE WHEN visible_at > now THEN CASE WHEN receipt_handle IS NULL THEN 'parked' ELSE 'in flight' END
              WHEN attempt > 0 THEN 'lapsed' ELSE 'ready' END AS state,
         payload_type, payload_data AS payload,
         strftime('%Y-%m-%d %H:%M:%f', min(max(enqueued_at, 0), 253402300799000) / 1000.0, 'unixepoch') AS enqueued_at,
         (now - enqueued_at) / 1000.0 AS age,
         strftime('%Y-%m-%d %H:%M:%f', min(max(visible_at, 0), 253402300799000) / 1000.0, 'unixepoch') AS visible_at,
         CASE WHEN visible_at > now THEN (visible_at - now) / 1000.0 END AS lease_left,
         attempt, receipt_handle
    FROM (SELECT *, CAST((julianday('now') - 2440587.5) * 86400000.0 AS INTEGER) AS now FROM messages);
