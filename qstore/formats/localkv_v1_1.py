"""`localkv.v1.1`: a view that tells which keys are live, for tools that open the file. Frozen.

As in `transport.v1.2`: only in a file of one store; times are UTC texts, durations seconds.
"""

from qstore.formats.addition import Addition
from qstore.formats.localkv_v1 import LOCALKV_V1

__all__ = ["LOCALKV_V1_1"]

_NOW = "CAST((julianday('now') - 2440587.5) * 86400000.0 AS INTEGER)"
_UTC = "strftime('%Y-%m-%d %H:%M:%f', min(max(expires_at, 0), 253402300799000) / 1000.0, 'unixepoch')"

LOCALKV_V1_1 = Addition(
    format=LOCALKV_V1,
    revision="localkv.v1.1",
    dialect="sqlite",
    native=True,
    views={
        "qstore_keys_view": f"""\
CREATE VIEW IF NOT EXISTS {{qstore_keys_view}} AS
  SELECT key, CASE WHEN expires_at <= now THEN 'expired' ELSE 'live' END AS state, length(value) AS size, value,
         {_UTC} AS expires_at,
         (expires_at - now) / 1000.0 AS ttl_left
    FROM (SELECT *, {_NOW} AS now FROM {{kv}})""",
    },
)
