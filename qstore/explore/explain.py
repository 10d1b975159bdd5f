"""Why something is not moving: a group, a message, a key."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from qstore.arguments import HIGHEST_INTEGER, integer, text
from qstore.explore import states
from qstore.explore.durations import instant, spoken
from qstore.explore.reading import Reader
from qstore.statement import Statement

__all__ = ["Explanation", "explain_group", "explain_key", "explain_message", "explain_queued"]


@dataclass(frozen=True, slots=True)
class Explanation:
    """An answer as a sentence, the state in a word, and the numbers that it was made from. Times are epoch seconds."""

    state: str
    sentence: str
    data: Mapping[str, Any]

    def __str__(self) -> str:
        return self.sentence

    __repr__ = __str__


_GROUP = Statement(f"""
    SELECT g.group_id IS NOT NULL AS present, g.priority, g.last_claimed_at, m.*
    FROM (SELECT count(*) AS messages, min(CASE WHEN state IN ('ready', 'lapsed') THEN seq END) AS next,
        min(CASE WHEN state = 'stuck' THEN seq END) AS stuck,
        min(CASE WHEN state IN ('in flight', 'parked') THEN seq END) AS held,
        max(CASE WHEN state = 'in flight' THEN 1 WHEN state = 'parked' THEN 0 END) AS leased,
        max(CASE WHEN state IN ('in flight', 'parked') THEN locked_by END) AS holder,
        max(CASE WHEN state IN ('in flight', 'parked') THEN lock_expiry END) AS until,
        max(CASE WHEN state = 'lapsed' THEN lock_expiry END) AS lapsed,
        max(CASE WHEN state = 'lapsed' THEN locked_by END) AS lost_by
      FROM (SELECT seq, locked_by, lock_expiry, {states.MESSAGE} AS state FROM {{messages}}
            WHERE group_id = :group_id) AS s) AS m
    LEFT JOIN {{groups}} AS g ON g.group_id = :group_id
""")

_AHEAD = Statement(f"""
    SELECT count(*) FROM (
        SELECT group_id, min(CASE WHEN state IN ('ready', 'lapsed') THEN seq END) AS next,
          max(CASE WHEN state IN ('in flight', 'parked') THEN 1 ELSE 0 END) AS held
        FROM (SELECT group_id, seq, {states.MESSAGE} AS state FROM {{messages}}) AS s GROUP BY group_id) AS m
      JOIN (SELECT group_id, priority, CASE WHEN last_claimed_at > :now THEN :now ELSE last_claimed_at END AS stamp
        FROM {{groups}}) AS g ON g.group_id = m.group_id
      WHERE m.held = 0 AND m.next IS NOT NULL AND g.priority >= :min_priority
        AND (g.stamp < :stamp OR g.stamp = :stamp AND m.next < :next)
""")

_MESSAGE = Statement(f"SELECT group_id, {states.MESSAGE} AS state FROM {{messages}} WHERE seq = :seq")

_QUEUED = Statement(f"""
    SELECT {states.QUEUED} AS state, enqueued_at, visible_at, attempt,
      (SELECT count(*) FROM {{messages}} AS o WHERE o.visible_at <= :now
        AND (o.enqueued_at < m.enqueued_at OR o.enqueued_at = m.enqueued_at AND o.id < m.id)) AS ahead
    FROM {{messages}} AS m WHERE id = :id
""")

_KEY = Statement(f"SELECT {states.KEY} AS state, length(value) AS size, expires_at FROM {{kv}} WHERE key = :key")


def explain_group(reader: Reader, group_id: str, min_priority: int = 0) -> Explanation:
    """What a group's next message waits for."""
    text("group_id", group_id)
    integer("min_priority", min_priority, at_least=0, at_most=4)
    names = reader.place.naming.of("transport")
    with reader.place.reading() as connection:
        now = reader.now(connection)
        row = connection.execute(_GROUP.clause(names), {"group_id": group_id, "now": now}).one()
        data: dict[str, Any] = {**row._mapping, "present": bool(row.present), "group_id": group_id, "now": now}
        state = _state_of_group(data, min_priority)
        if state in ("ready", "lapsed"):
            binds = {
                "now": now,
                "min_priority": min_priority,
                "stamp": min(row.last_claimed_at, now),
                "next": row.next,
            }
            data["ahead"] = int(connection.execute(_AHEAD.clause(names), binds).scalar_one())
    return Explanation(state, f"Group {group_id!r} {_of_group(state, data, min_priority)}", data)


def _state_of_group(data: Mapping[str, Any], min_priority: int) -> str:
    if not data["messages"]:
        return "empty" if data["present"] else "absent"
    if not data["present"]:
        return "orphaned"
    if data["held"] is not None:
        return "in flight" if data["leased"] else "parked"
    if data["next"] is None:
        return "stuck"
    if data["priority"] < min_priority:
        return "below the floor"
    return "ready" if data["lapsed"] is None else "lapsed"


def _of_group(state: str, data: Mapping[str, Any], min_priority: int) -> str:
    now = data["now"]
    match state:
        case "absent":
            return "is absent: no message waits in it."
        case "empty":
            return "has a row but no message: there is nothing to claim."
        case "orphaned":
            return (
                f"has {_messages(data['messages'])} but no row among the groups, so that no claim finds them: a writer"
                " stopped between the two. The next publish to this group makes the row."
            )
        case "in flight":
            return (
                f"is in flight: {data['holder']!r} holds message {data['held']} until {_moment(data['until'], now)}."
                f"{_behind(data)}"
            )
        case "parked":
            return (
                f"is parked: message {data['held']} was put off until {_moment(data['until'], now)}, and the whole"
                f" group waits for it.{_behind(data)}"
            )
        case "stuck":
            return (
                f"is stuck: message {data['stuck']} is locked without an end, which no claim takes. Another program"
                " wrote that; setting its locked_by to NULL frees it."
            )
        case "below the floor":
            return f"is below the floor: its priority is {data['priority']}, and claims ask for {min_priority} or more."
    again = ""
    if state == "lapsed":
        again = f" It was held by {data['lost_by']!r}, whose lease lapsed {spoken(now - data['lapsed'])} ago."
    if data["ahead"]:
        turn = f"is ready, and {data['ahead']:,} {'group comes' if data['ahead'] == 1 else 'groups come'} before it"
    else:
        turn = "is next in rotation"
    return f"{turn}: the next claim of it gets message {data['next']}.{again}{_behind(data)}"


def _behind(data: Mapping[str, Any]) -> str:
    waiting = data["messages"] - 1
    return f" {_messages(waiting)} {'waits' if waiting == 1 else 'wait'} behind it." if waiting else ""


def _messages(count: int) -> str:
    return f"{count:,} message{'' if count == 1 else 's'}"


def _moment(until: float, now: float) -> str:
    return f"{instant(until)}, in {spoken(max(until - now, 0))}"


def _bytes(count: int) -> str:
    return f"{count:,} byte{'' if count == 1 else 's'}"


def explain_message(reader: Reader, seq: int, min_priority: int = 0) -> Explanation:
    """What a message of the transport waits for: its turn in its group, or its group's turn."""
    integer("seq", seq, at_least=-HIGHEST_INTEGER, at_most=HIGHEST_INTEGER)
    _, row = _looked_up(reader, _MESSAGE, seq=seq)
    if row is None:
        return Explanation("absent", f"Message {seq} is absent: acked, or never published.", {"seq": seq})
    group = explain_group(reader, row.group_id, min_priority)
    data = {**group.data, "seq": seq, "group_state": group.state}
    head = group.data["held"] if group.data["held"] is not None else group.data["next"]
    if row.state == "stuck" and seq != head:
        return Explanation(
            "stuck", f"Message {seq} is locked without an end, which no claim takes. Another program wrote that.", data
        )
    if head is not None and seq != head:
        sentence = f"Message {seq} is behind message {head}, the head of its group. {group.sentence}"
        return Explanation("behind", sentence, data)
    return Explanation(group.state, f"Message {seq} is the head of its group. {group.sentence}", data)


def explain_queued(reader: Reader, id: int) -> Explanation:
    """What a message of the queue waits for."""
    integer("id", id, at_least=-HIGHEST_INTEGER, at_most=HIGHEST_INTEGER)
    now, row = _looked_up(reader, _QUEUED, id=id)
    if row is None:
        return Explanation("absent", f"Message {id} is absent: acked, purged, or never sent.", {"id": id, "now": now})
    visible = row.visible_at / 1000
    data = {
        "id": id,
        "now": now,
        "attempt": row.attempt,
        "enqueued_at": row.enqueued_at / 1000,
        "visible_at": visible,
        "ahead": int(row.ahead) if row.state in ("ready", "lapsed") else None,
    }
    match row.state:
        case "in flight":
            sentence = f"is in flight, on attempt {row.attempt}, until {_moment(visible, now)}."
        case "parked":
            sentence = f"was never received, and is due at {_moment(visible, now)}."
        case _:
            turn = "next" if not row.ahead else f"after {_messages(row.ahead)} that came before it"
            sentence = f"has been due for {spoken(max(now - visible, 0))}, and is received {turn}."
            if row.attempt:
                sentence += f" It was received {row.attempt:,} {'time' if row.attempt == 1 else 'times'} and not acked."
    return Explanation(row.state, f"Message {id} {sentence}", data)


def explain_key(reader: Reader, key: str) -> Explanation:
    """Whether a key is live, and when it expires or did."""
    text("key", key)
    now, row = _looked_up(reader, _KEY, key=key)
    if row is None:
        return Explanation("absent", f"Key {key!r} is absent.", {"key": key, "now": now})
    expires = None if row.expires_at is None else row.expires_at / 1000
    data = {"key": key, "now": now, "size": row.size, "expires_at": expires}
    if expires is None:
        sentence = f"is live, {_bytes(row.size)}, and never expires."
    elif row.state == "live":
        sentence = f"is live, {_bytes(row.size)}, and expires at {_moment(expires, now)}."
    else:
        sentence = f"expired at {instant(expires)}, {spoken(now - expires)} ago; the next read deletes it."
    return Explanation(row.state, f"Key {key!r} {sentence}", data)


def _looked_up(reader: Reader, statement: Statement, **binds: object) -> tuple[float, Any]:
    """When it was looked, and the row that was asked for, or None."""
    place = reader.place
    with place.reading() as connection:
        now = reader.now(connection)
        clause = statement.clause(place.naming.of(place.store))
        row = connection.execute(clause, {**binds, "now": reader.counted(now)})
        return now, row.one_or_none()
