CREATE VIEW qstore_keys_view AS
  SELECT key, CASE WHEN expires_at <= now THEN 'expired' ELSE 'live' END AS state, length(value) AS size, value,
         strftime('%Y-%m-%d %H:%M:%f', min(max(expires_at, 0), 253402300799000) / 1000.0, 'unixepoch') AS expires_at,
         (expires_at - now) / 1000.0 AS ttl_left
    FROM (SELECT *, CAST((julianday('now') - 2440587.5) * 86400000.0 AS INTEGER) AS now FROM kv);
