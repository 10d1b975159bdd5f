"""`localqueue.v1.2`: a view that tells each message's state, for tools that open the file. Frozen.

As in `transport.v1.2`: only in a file of one store; times are UTC texts, durations seconds.
"""

from qstore.formats.addition import Addition
from qstore.formats.localqueue_v1 import LOCALQUEUE_V1

__all__ = ["LOCALQUEUE_V1_2"]

_NOW = "CAST((julianday('now') - 2440587.5) * 86400000.0 AS INTEGER)"


def _utc(time: str) -> str:
    return f"strftime('%Y-%m-%d %H:%M:%f', min(max({time}, 0), 253402300799000) / 1000.0, 'unixepoch')"


LOCALQUEUE_V1_2 = Addition(
    format=LOCALQUEUE_V1,
    revision="localqueue.v1.2",
    dialect="sqlite",
    native=True,
    views={
        "qstore_queue_view": f"""\
CREATE VIEW IF NOT EXISTS {{qstore_queue_view}} AS
  SELECT id,
         CASE WHEN visible_at > now THEN CASE WHEN receipt_handle IS NULL THEN 'parked' ELSE 'in flight' END
              WHEN attempt > 0 THEN 'lapsed' ELSE 'ready' END AS state,
         payload_type, payload_data AS payload,
         {_utc("enqueued_at")} AS enqueued_at,
         (now - enqueued_at) / 1000.0 AS age,
         {_utc("visible_at")} AS visible_at,
         CASE WHEN visible_at > now THEN (visible_at - now) / 1000.0 END AS lease_left,
         attempt, receipt_handle
    FROM (SELECT *, {_NOW} AS now FROM {{messages}})""",
    },
)
