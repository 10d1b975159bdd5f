"""`transport.v1.1`: whose turn it is, a row a group, so that a claim need not look at the messages. Frozen.

`turns` has a row for each group that has a row in `groups` and a deliverable message. Deliverable:
`locked_by IS NULL OR lock_expiry IS NOT NULL`; the other messages can neither be claimed nor do they block.

head   the lowest deliverable seq
held   how many of its deliverable messages are held (`locked_by IS NOT NULL`): 0 or 1, unless others wrote more
until  their highest lock_expiry; -infinity (which SQL spells -9e999) where none is held
slot   -1: the group waits, and `at` is `until`; or `at` is -infinity: the next claim derives the row again
       0 to 4, its priority: its turn may come, and `at` is its last_claimed_at. -2: the same, of a negative priority
Row 0 is the clock: its `until` is never below any last_claimed_at.

`at` and `until` are BLOBs to SQLite, which means that it keeps any number as it is. REAL would store 0.0 in fewer bytes
than other numbers, and a row that grows splits a full page.
"""

from qstore.formats.addition import Addition
from qstore.formats.transport_v1 import TRANSPORT_V1

__all__ = ["TRANSPORT_V1_1", "derived", "first_deliverable", "slot"]


def first_deliverable(group: str) -> str:
    """The lowest deliverable seq of a group, or NULL.

    `idx_messages_group` covers what is looked for, so that no statistics can lure the planner elsewhere. Each message
    is looked at in a scalar subquery: for a join, an ANALYZE would have SQLite build a Bloom filter of the whole table.
    """
    return f"""(SELECT f.seq FROM {{messages}} AS f WHERE f.group_id = {group}
          AND (SELECT m.locked_by IS NULL OR m.lock_expiry IS NOT NULL FROM {{messages}} AS m WHERE m.seq = f.seq)
        ORDER BY f.seq LIMIT 1)"""


def slot(priority: str) -> str:
    """The slot of a group whose turn may come."""
    return f"CASE WHEN {priority} >= 4 THEN 4 WHEN {priority} >= 0 THEN CAST({priority} AS INTEGER) ELSE -2 END"


def derived(group: str) -> str:
    """(head, slot, at, until, held) of a group from scratch; no row if it has none in `groups`.

    With an OFFSET the inner SELECT is not merged into the outer one, which would look for `until` four times.
    """
    return f"""SELECT head, CASE WHEN until = -9e999 THEN slot ELSE -1 END,
        CASE WHEN until = -9e999 THEN last_claimed_at ELSE until END, until, held
      FROM (SELECT {first_deliverable(group)} AS head, {_until(group)} AS until, {_held("count", group)} AS held,
                   {slot("priority")} AS slot, last_claimed_at
            FROM {{groups}} WHERE group_id = {group} LIMIT 1 OFFSET 0)"""


def _held(aggregate: str, group: str) -> str:
    """All messages of a group are looked at: only where several are held, or there was no row."""
    return f"""(SELECT {aggregate}((SELECT m.lock_expiry FROM {{messages}} AS m
          WHERE m.seq = f.seq AND m.locked_by IS NOT NULL)) FROM {{messages}} AS f WHERE f.group_id = {group})"""


def _until(group: str) -> str:
    return f"coalesce({_held('max', group)}, -9e999)"


# Steps of triggers on one group's row. They meet no conflict, since an outer OR IGNORE or OR REPLACE would settle it,
# and they fail in no state. A row that is to be derived again is left to that.


def _drop(group: str) -> str:
    return f"""
  DELETE FROM {{turns}} WHERE group_id = {group} AND {first_deliverable(group)} IS NULL;"""


def _add(group: str) -> str:
    return f"""
  INSERT INTO {{turns}} (group_id, head, slot, at, until, held)
    SELECT {group}, * FROM ({derived(group)})
    WHERE head IS NOT NULL AND NOT EXISTS (SELECT 1 FROM {{turns}} WHERE group_id = {group});"""


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
      SELECT {head},
        CASE WHEN until = -9e999 THEN (SELECT {slot("priority")}
          FROM {{groups}} WHERE group_id = {group}) ELSE -1 END,
        CASE WHEN until = -9e999 THEN (SELECT last_claimed_at FROM {{groups}} WHERE group_id = {group}) ELSE until END,
        until, held
      FROM (SELECT held, CASE
          {case} END AS until
        FROM (SELECT {held} AS held)))
    WHERE group_id = {group} AND NOT (slot = -1 AND at = -9e999);"""


def _went(group: str) -> str:
    return _drop(group) + _change(group, first_deliverable(group), old=True, new=False)


def _came(group: str) -> str:
    return _change(group, "min({turns}.head, NEW.seq)", old=False, new=True) + _add(group)


_CLOCK = """
  UPDATE {turns} SET until = NEW.last_claimed_at WHERE id = 0 AND until < NEW.last_claimed_at;"""

_STAMP = f"""
  UPDATE {{turns}} SET slot = {slot("NEW.priority")}, at = NEW.last_claimed_at
    WHERE group_id = NEW.group_id AND slot IS NOT -1;"""

_FORGET = """
  DELETE FROM {turns} WHERE group_id = OLD.group_id;"""

# A REPLACE deletes without a trigger, unless recursive_triggers is on. Who loses a row is known only before; whether it
# does, is not (OR IGNORE). So the next claim derives that group's row again.
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
        _came("NEW.group_id"),
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
        _came("NEW.group_id"),
    ),
    (
        "turns_message_delete",
        "AFTER DELETE ON {messages}",
        f"""{_OLD} AND (OLD.locked_by IS NOT NULL
    OR EXISTS (SELECT 1 FROM {{turns}} WHERE group_id = OLD.group_id AND head >= OLD.seq))""",
        _went("OLD.group_id"),
    ),
    ("turns_group_insert", "AFTER INSERT ON {groups}", "", _STAMP + _add("NEW.group_id") + _CLOCK),
    ("turns_group_update", "AFTER UPDATE ON {groups}", "NEW.group_id IS OLD.group_id", _STAMP + _CLOCK),
    (
        "turns_group_rename",
        "AFTER UPDATE ON {groups}",
        "NEW.group_id IS NOT OLD.group_id",
        _FORGET + _STAMP + _add("NEW.group_id") + _CLOCK,
    ),
    ("turns_group_delete", "AFTER DELETE ON {groups}", "", _FORGET),
)

# The turns as the messages and groups have them. `+group_id`: one pass over the table and a sort, not a look-up a
# message.
_TRUTH = f"""
    SELECT g.group_id AS group_id, m.head AS head, m.until AS until, m.held AS held, {slot("g.priority")} AS slot,
           g.last_claimed_at AS stamp
    FROM (SELECT group_id, min(CASE WHEN locked_by IS NULL OR lock_expiry IS NOT NULL THEN seq END) AS head,
                 coalesce(max(CASE WHEN locked_by IS NOT NULL THEN lock_expiry END), -9e999) AS until,
                 sum(locked_by IS NOT NULL AND lock_expiry IS NOT NULL) AS held
          FROM {{messages}} GROUP BY +group_id) AS m
    CROSS JOIN {{groups}} AS g ON g.group_id = m.group_id
    WHERE m.head IS NOT NULL"""

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
  held     INTEGER
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
INSERT INTO {{turns}} (group_id, head, slot, at, until, held)
    SELECT group_id, head, CASE WHEN until = -9e999 THEN slot ELSE -1 END,
           CASE WHEN until = -9e999 THEN stamp ELSE until END, until, held
    FROM ({_TRUTH}) ORDER BY head""",
    ),
    faults=f"""\
SELECT t.group_id
      FROM ({_TRUTH}) AS t LEFT JOIN {{turns}} AS s ON s.group_id = t.group_id
      WHERE s.id IS NULL OR NOT (s.slot IS -1 AND s.at IS -9e999) AND NOT (
        s.head IS t.head AND s.until IS t.until AND s.held IS t.held
        AND (s.slot IS t.slot AND s.at IS t.stamp OR s.slot IS -1 AND s.at IS t.until AND t.until <> -9e999))
    UNION ALL
    SELECT s.group_id FROM {{turns}} AS s
      WHERE s.id <> 0 AND NOT (s.slot IS -1 AND s.at IS -9e999) AND ({first_deliverable("s.group_id")} IS NULL
        OR NOT EXISTS (SELECT 1 FROM {{groups}} AS g WHERE g.group_id = s.group_id))
    UNION ALL
    SELECT NULL WHERE NOT EXISTS (
      SELECT 1 FROM {{turns}} WHERE id = 0 AND slot = -3 AND group_id IS NULL
        AND until >= (SELECT coalesce(max(last_claimed_at), until) FROM {{groups}}))""",
)
