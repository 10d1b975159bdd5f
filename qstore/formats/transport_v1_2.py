"""`transport.v1.2`: views that tell each message's and each group's state, for tools that open the file. Frozen.

Only a file of one store has them: in a host's database a view would stand in the way of the host's own migrations.
Times are UTC texts, up to the year 9999; durations are seconds. The states are those of `qstore.open_view`.
"""

from qstore.formats.addition import Addition
from qstore.formats.transport_v1 import TRANSPORT_V1

__all__ = ["TRANSPORT_V1_2"]

_NOW = "(julianday('now') - 2440587.5) * 86400.0"


def _utc(time: str) -> str:
    return f"strftime('%Y-%m-%d %H:%M:%f', min(max({time}, 0), 253402300799), 'unixepoch')"


_STATE = """CASE
         WHEN locked_by IS NULL THEN 'ready'
         WHEN lock_expiry IS NULL THEN 'stuck'
         WHEN locked_by = '__parked__' THEN CASE WHEN lock_expiry >= now THEN 'parked' ELSE 'ready' END
         WHEN lock_expiry >= now THEN 'in flight' ELSE 'lapsed' END"""

_HELD = "state IN ('in flight', 'parked', 'lapsed')"

TRANSPORT_V1_2 = Addition(
    format=TRANSPORT_V1,
    revision="transport.v1.2",
    dialect="sqlite",
    native=True,
    views={
        "qstore_messages_view": f"""\
CREATE VIEW IF NOT EXISTS {{qstore_messages_view}} AS
  SELECT seq, group_id,
         {_STATE} AS state,
         event, locked_by,
         {_utc("lock_expiry")} AS lock_expiry,
         CASE WHEN locked_by IS NOT NULL THEN round(lock_expiry - now, 3) END AS lease_left
    FROM (SELECT *, {_NOW} AS now FROM {{messages}})""",
        "qstore_groups_view": f"""\
CREATE VIEW IF NOT EXISTS {{qstore_groups_view}} AS
  SELECT ids.group_id,
         CASE WHEN g.group_id IS NULL THEN 'orphaned' WHEN m.messages IS NULL THEN 'empty'
              WHEN m.in_flight > 0 THEN 'in flight' WHEN m.parked > 0 THEN 'parked' WHEN m.head IS NULL THEN 'stuck'
              WHEN m.lapsed > 0 THEN 'lapsed' ELSE 'ready' END AS state,
         coalesce(m.messages, 0) AS messages, m.head, g.priority,
         CASE WHEN g.last_claimed_at > 0 THEN {_utc("g.last_claimed_at")} END AS last_claimed_at,
         CASE WHEN g.last_claimed_at > 0 THEN round({_NOW} - g.last_claimed_at, 3) END AS age,
         m.locked_by,
         {_utc("m.lock_expiry")} AS lock_expiry,
         round(m.lock_expiry - {_NOW}, 3) AS lease_left
    FROM (SELECT group_id FROM {{groups}} UNION SELECT group_id FROM {{messages}}) AS ids
    LEFT JOIN {{groups}} AS g ON g.group_id = ids.group_id
    LEFT JOIN (SELECT group_id, count(*) AS messages, min(CASE WHEN state <> 'stuck' THEN seq END) AS head,
                      sum(state = 'in flight') AS in_flight, sum(state = 'parked') AS parked,
                      sum(state = 'lapsed') AS lapsed,
                      max(CASE WHEN {_HELD} THEN locked_by END) AS locked_by,
                      max(CASE WHEN {_HELD} THEN lock_expiry END) AS lock_expiry
                 FROM (SELECT *, {_STATE} AS state FROM (SELECT *, {_NOW} AS now FROM {{messages}}))
                GROUP BY group_id) AS m ON m.group_id = ids.group_id""",
    },
)
