"""`transport.v1.1`: whose turn it is, a row a group, so that a claim need not look at the messages. Frozen.

`turns` has a row for each group that has a deliverable message, or a row in `groups`. Deliverable:
`locked_by IS NULL OR lock_expiry IS NOT NULL`; the other messages can neither be claimed nor do they block.

From the messages:
head   the lowest deliverable seq; NULL where none is
held   how many of its deliverable messages are held (`locked_by IS NOT NULL`): 0 or 1, unless others wrote more
until  their highest lock_expiry; -infinity (which SQL spells -9e999) where none is held
From the row in `groups`, NULL where none is:
lane   its priority, 0 to 4. -2: a negative one
stamp  its last_claimed_at
And from those:
slot   -1: the group waits, and `at` is `until`; or `at` is -infinity: the next claim looks at the messages again
       its lane: its turn may come, and `at` is its stamp. NULL: it has no head, or no lane
Row 0 is the clock: its `until` is never below any last_claimed_at.

A trigger names its own table and `turns`, and never the other of the two tables: while a host rebuilds that one (a new
table, the rows copied, the old one dropped, the new one renamed), SQLite would refuse to rename it. The triggers of the
table that was rebuilt are gone then, which a claim sees, and goes the way of transport.v1 until an upgrade makes them.

`at`, `until` and `stamp` are BLOBs to SQLite, which means that it keeps any number as it is. REAL would store 0.0 in
fewer bytes than other numbers, and a row that grows splits a full page.
"""

from qstore.formats.addition import Addition
from qstore.formats.transport_v1 import TRANSPORT_V1

__all__ = ["TRANSPORT_V1_1", "derived", "first_deliverable"]


def first_deliverable(group: str) -> str:
    """The lowest deliverable seq of a group, or NULL.

    `idx_messages_group` covers what is looked for, so that no statistics can lure the planner elsewhere. Each message
    is looked at in a scalar subquery: for a join, an ANALYZE would have SQLite build a Bloom filter of the whole table.
    """
    return f"""(SELECT f.seq FROM {{messages}} AS f WHERE f.group_id = {group}
          AND (SELECT m.locked_by IS NULL OR m.lock_expiry IS NOT NULL FROM {{messages}} AS m WHERE m.seq = f.seq)
        ORDER BY f.seq LIMIT 1)"""


def derived(group: str) -> str:
    """(head, slot, at, until, held) of a group that has a row, from its messages.

    With an OFFSET the inner SELECT is not merged into the outer one, which would look for `until` four times.
    """
    return f"""SELECT head, {_SLOT}, {_AT}, until, held
      FROM (SELECT {first_deliverable(group)} AS head, {_until(group)} AS until, {_held("count", group)} AS held
            LIMIT 1 OFFSET 0)"""


_SLOT = "CASE WHEN head IS NULL OR lane IS NULL THEN NULL WHEN until = -9e999 THEN lane ELSE -1 END"
_AT = "CASE WHEN until = -9e999 THEN stamp ELSE until END"


def _lane(priority: str) -> str:
    return f"CASE WHEN {priority} >= 4 THEN 4 WHEN {priority} >= 0 THEN CAST({priority} AS INTEGER) ELSE -2 END"


def _held(aggregate: str, group: str) -> str:
    """All messages of a group are looked at: only where several are held, or there was no row."""
    return f"""(SELECT {aggregate}((SELECT m.lock_expiry FROM {{messages}} AS m
          WHERE m.seq = f.seq AND m.locked_by IS NOT NULL)) FROM {{messages}} AS f WHERE f.group_id = {group})"""


def _until(group: str) -> str:
    return f"coalesce({_held('max', group)}, -9e999)"


# Steps of triggers on one group's row. They meet no conflict, since an outer OR IGNORE or OR REPLACE would settle it,
# and they fail in no state. A row that is to be looked at again is left to that.

_SPOILED = "(slot IS -1 AND at IS -9e999)"


def _change(group: str, head: str, *, old: bool, new: bool) -> str:
    """A deliverable message went out of a group (OLD), came to it (NEW), or changed its lock (both)."""
    was, now = "(OLD.locked_by IS NOT NULL)" if old else "0", "(NEW.locked_by IS NOT NULL)" if new else "0"
    cases = ["WHEN held = 0 THEN -9e999"]
    if new:
        cases.append(f"WHEN held = {now} THEN NEW.lock_expiry")
        cases.append(f"WHEN {now} AND NEW.lock_expiry >= {{turns}}.until THEN NEW.lock_expiry")
    if old:
        cases.append(f"WHEN NOT {was} OR OLD.lock_expiry < {{turns}}.until THEN {{turns}}.until")
    cases.append(f"ELSE {_until(group)}" if old else "ELSE {turns}.until")
    case = "\n          ".join(cases)
    held = "{turns}.held" + f" - {was}" * old + f" + {now}" * new
    return f"""
  UPDATE {{turns}} SET (head, slot, at, until, held) = (
      SELECT head, {_SLOT}, {_AT}, until, held
      FROM (SELECT {head} AS head, held, CASE
          {case} END AS until
        FROM (SELECT {held} AS held)))
    WHERE group_id = {group} AND NOT {_SPOILED};"""


def _went(group: str) -> str:
    return f"""{_change(group, first_deliverable(group), old=True, new=False)}
  DELETE FROM {{turns}} WHERE group_id = {group} AND head IS NULL AND lane IS NULL AND NOT {_SPOILED};"""


# Where a group has no row, the message that comes is the first of it that is deliverable.
_CAME = f"""{_change("NEW.group_id", "min(coalesce({turns}.head, NEW.seq), NEW.seq)", old=False, new=True)}
  INSERT INTO {{turns}} (group_id, head, at, until, held)
    SELECT NEW.group_id, NEW.seq, 0.0, CASE WHEN NEW.locked_by IS NULL THEN -9e999 ELSE NEW.lock_expiry END,
           NEW.locked_by IS NOT NULL
    WHERE NOT EXISTS (SELECT 1 FROM {{turns}} WHERE group_id = NEW.group_id);"""

_CLOCK = """
  UPDATE {turns} SET until = NEW.last_claimed_at WHERE id = 0 AND until < NEW.last_claimed_at;"""

# In two steps: the stamp of a claim comes while the group waits, and is not entered into the index.
_STAMP = f"""
  UPDATE {{turns}} SET lane = {_lane("NEW.priority")}, stamp = NEW.last_claimed_at WHERE group_id = NEW.group_id;
  UPDATE {{turns}} SET slot = {_SLOT}, at = {_AT} WHERE group_id = NEW.group_id AND slot IS NOT -1;"""

_ENTER = f"""{_STAMP}
  INSERT INTO {{turns}} (group_id, at, until, held, lane, stamp)
    SELECT NEW.group_id, 0.0, -9e999, 0, {_lane("NEW.priority")}, NEW.last_claimed_at
    WHERE NEW.group_id IS NOT NULL AND NOT EXISTS (SELECT 1 FROM {{turns}} WHERE group_id = NEW.group_id);{_CLOCK}"""

_FORGET = f"""
  DELETE FROM {{turns}} WHERE group_id = OLD.group_id AND head IS NULL AND NOT {_SPOILED};
  UPDATE {{turns}} SET lane = NULL, stamp = NULL, slot = CASE WHEN {_SPOILED} THEN slot END
    WHERE group_id = OLD.group_id;"""

# A REPLACE deletes without a trigger, unless recursive_triggers is on. Who loses a row is known only before; whether it
# does, is not (OR IGNORE). So the next claim looks at that group's messages again.
_SPOIL = """
  UPDATE {turns} SET slot = -1, at = -9e999
    WHERE group_id = (SELECT group_id FROM {messages} WHERE seq = NEW.seq);"""

_TAKEN = "EXISTS (SELECT 1 FROM {messages} WHERE seq = NEW.seq)"
_NEW = "(NEW.locked_by IS NULL OR NEW.lock_expiry IS NOT NULL)"
_OLD = "(OLD.locked_by IS NULL OR OLD.lock_expiry IS NOT NULL)"
_SAME = "NEW.group_id IS OLD.group_id AND NEW.seq IS OLD.seq"

# Name, event, condition, steps.
_TRIGGERS = (
    ("turns_message_replace", "BEFORE INSERT ON {messages}", _TAKEN, _SPOIL),
    ("turns_message_move", "BEFORE UPDATE OF seq ON {messages}", f"NEW.seq IS NOT OLD.seq AND {_TAKEN}", _SPOIL),
    (  # A free message behind the head changes nothing.
        "turns_message_insert",
        "AFTER INSERT ON {messages}",
        f"""{_NEW} AND (NEW.locked_by IS NOT NULL
    OR NOT EXISTS (SELECT 1 FROM {{turns}} WHERE group_id = NEW.group_id AND head < NEW.seq))""",
        _CAME,
    ),
    (  # Claim, nack, extend: the deliverable messages stay the same.
        "turns_message_lock",
        "AFTER UPDATE ON {messages}",
        f"{_SAME} AND {_NEW} AND {_OLD}",
        _change("NEW.group_id", "{turns}.head", old=True, new=True),
    ),
    (
        "turns_message_leave",
        "AFTER UPDATE ON {messages}",
        f"{_OLD} AND NOT ({_SAME} AND {_NEW})",
        _went("OLD.group_id"),
    ),
    (
        "turns_message_join",
        "AFTER UPDATE ON {messages}",
        f"{_NEW} AND NOT ({_SAME} AND {_OLD})",
        _CAME,
    ),
    (
        "turns_message_delete",
        "AFTER DELETE ON {messages}",
        f"""{_OLD} AND (OLD.locked_by IS NOT NULL
    OR EXISTS (SELECT 1 FROM {{turns}} WHERE group_id = OLD.group_id AND head >= OLD.seq))""",
        _went("OLD.group_id"),
    ),
    ("turns_group_insert", "AFTER INSERT ON {groups}", "", _ENTER),
    ("turns_group_update", "AFTER UPDATE ON {groups}", "NEW.group_id IS OLD.group_id", _STAMP + _CLOCK),
    ("turns_group_rename", "AFTER UPDATE ON {groups}", "NEW.group_id IS NOT OLD.group_id", _FORGET + _ENTER),
    ("turns_group_delete", "AFTER DELETE ON {groups}", "", _FORGET),
)

# What the messages have of each group. `+group_id`: one pass over the table and a sort, not a look-up a message.
_HEADS = """SELECT group_id, min(CASE WHEN locked_by IS NULL OR lock_expiry IS NOT NULL THEN seq END) AS head,
                 coalesce(max(CASE WHEN locked_by IS NOT NULL THEN lock_expiry END), -9e999) AS until,
                 sum(locked_by IS NOT NULL AND lock_expiry IS NOT NULL) AS held
          FROM {messages} GROUP BY +group_id"""

TRANSPORT_V1_1 = Addition(
    format=TRANSPORT_V1,
    revision="transport.v1.1",
    dialect="sqlite",
    tables={
        "turns": """\
CREATE TABLE IF NOT EXISTS {turns} (
  id       INTEGER PRIMARY KEY,
  group_id TEXT UNIQUE,
  head     INTEGER,
  slot     INTEGER,
  at       BLOB,
  until    BLOB,
  held     INTEGER,
  lane     INTEGER,
  stamp    BLOB
)"""
    },
    indexes={
        "idx_turns": "CREATE INDEX IF NOT EXISTS {idx_turns} ON {turns} (slot, at, head)",
        "idx_messages_group": "CREATE INDEX IF NOT EXISTS {idx_messages_group} ON {messages} (group_id)",
    },
    triggers={
        name: f"CREATE TRIGGER IF NOT EXISTS {{{name}}} {event}{condition and f'{chr(10)}  WHEN {condition}'}\n"
        f"BEGIN{steps}\nEND"
        for name, event, condition, steps in _TRIGGERS
    },
    fill=(
        "DELETE FROM {turns}",
        """\
INSERT INTO {turns} (id, group_id, head, slot, at, until, held)
    SELECT 0, NULL, 0, -3, 0.0, coalesce(max(last_claimed_at), 0.0), 0 FROM {groups}""",
        # In the order of the heads, so that neighbours in time are neighbours on a page.
        f"""\
INSERT INTO {{turns}} (group_id, head, slot, at, until, held, lane, stamp)
    SELECT group_id, head, {_SLOT}, coalesce({_AT}, 0.0), until, held, lane, stamp
    FROM (SELECT m.group_id AS group_id, head, until, held,
                 CASE WHEN g.group_id IS NOT NULL THEN {_lane("g.priority")} END AS lane, g.last_claimed_at AS stamp
          FROM ({_HEADS}) AS m LEFT JOIN {{groups}} AS g ON g.group_id = m.group_id
          WHERE head IS NOT NULL)
    ORDER BY head""",
        f"""\
INSERT INTO {{turns}} (group_id, at, until, held, lane, stamp)
    SELECT group_id, 0.0, -9e999, 0, {_lane("priority")}, last_claimed_at FROM {{groups}} AS g
    WHERE group_id IS NOT NULL AND NOT EXISTS (SELECT 1 FROM {{turns}} AS s WHERE s.group_id = g.group_id)""",
    ),
    faults=f"""\
SELECT m.group_id
      FROM ({_HEADS}) AS m LEFT JOIN {{turns}} AS s ON s.group_id = m.group_id
      WHERE m.head IS NOT NULL AND (s.id IS NULL OR NOT {_SPOILED} AND NOT (
        s.head IS m.head AND s.until IS m.until AND s.held IS m.held))
    UNION
    SELECT g.group_id FROM {{groups}} AS g LEFT JOIN {{turns}} AS s ON s.group_id = g.group_id
      WHERE g.group_id IS NOT NULL AND (s.lane IS NOT {_lane("g.priority")} OR s.stamp IS NOT g.last_claimed_at)
    UNION
    SELECT s.group_id FROM {{turns}} AS s
      WHERE s.id <> 0 AND (
        s.lane IS NOT NULL AND NOT EXISTS (SELECT 1 FROM {{groups}} AS g WHERE g.group_id = s.group_id)
        OR NOT {_SPOILED} AND (
          CASE WHEN s.head IS NULL THEN s.lane IS NULL ELSE {first_deliverable("s.group_id")} IS NULL END
          OR NOT (s.slot IS CASE WHEN s.head IS NOT NULL THEN s.lane END AND (s.slot IS NULL OR s.at IS s.stamp)
            OR s.slot IS -1 AND s.at IS s.until AND s.until <> -9e999 AND s.head IS NOT NULL AND s.lane IS NOT NULL)))
    UNION
    SELECT NULL WHERE NOT EXISTS (
      SELECT 1 FROM {{turns}} WHERE id = 0 AND slot = -3 AND group_id IS NULL
        AND coalesce(until >= (SELECT max(last_claimed_at) FROM {{groups}}), until IS NOT NULL))""",
)
