"""What frames are made of: columns in SQL, and rows in pages by key, so that nothing stays open between two pages."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Literal

from qstore.arguments import text
from qstore.capabilities import capabilities
from qstore.explore import states
from qstore.explore.columns import Column, Kind, Rows
from qstore.explore.reading import Reader
from qstore.explore.states import between, microseconds
from qstore.localkv.operations import first_after
from qstore.naming import Names
from qstore.statement import Statement

__all__ = ["PAGE", "Payload", "columns_of", "pages_of", "temporary_views"]

Payload = Literal["bytes", "text", "json"]

PAGE = 10_000
"""Rows that are read at once."""

LARGE = 500
"""The same of rows whose values may be megabytes each."""


@dataclass(frozen=True, slots=True)
class _Kind:
    """A kind of frame: a store's rows in order of their key."""

    store: str
    source: str
    key: str
    columns: tuple[Column, ...]


def _left(column: str, per_second: int, when: str) -> str:
    return f"CASE WHEN {when} THEN {between(NOW, microseconds(column, per_second))} END"


def _age(column: str, per_second: int) -> str:
    return between(microseconds(column, per_second), NOW)


NOW = ":now_microseconds"


_HELD = "locked_by IS NOT NULL AND lock_expiry IS NOT NULL"

KINDS = {
    "messages": _Kind(
        "transport",
        "{messages}",
        "seq",
        (
            Column("seq", "integer"),
            Column("group_id", "text"),
            Column("state", "word", states.MESSAGE),
            Column("event", "payload"),
            Column("locked_by", "text"),
            Column("lock_expiry", "instant", microseconds("lock_expiry", 1)),
            Column("lease_left", "duration", _left("lock_expiry", 1, _HELD)),
        ),
    ),
    "groups": _Kind(
        "transport",
        f"""(SELECT ids.group_id, g.priority, g.last_claimed_at, m.messages, m.head, m.locked_by, m.lock_expiry,
          CASE WHEN g.group_id IS NULL THEN 'orphaned' WHEN m.messages IS NULL THEN 'empty'
            WHEN m.in_flight > 0 THEN 'in flight' WHEN m.parked > 0 THEN 'parked' WHEN m.head IS NULL THEN 'stuck'
            WHEN m.lapsed > 0 THEN 'lapsed' ELSE 'ready' END AS state
        FROM (SELECT group_id FROM {{groups}} UNION SELECT group_id FROM {{messages}}) AS ids
        LEFT JOIN {{groups}} AS g ON g.group_id = ids.group_id
        LEFT JOIN (SELECT group_id, count(*) AS messages, min(CASE WHEN state <> 'stuck' THEN seq END) AS head,
            sum(CASE WHEN state = 'in flight' THEN 1 ELSE 0 END) AS in_flight,
            sum(CASE WHEN state = 'parked' THEN 1 ELSE 0 END) AS parked,
            sum(CASE WHEN state = 'lapsed' THEN 1 ELSE 0 END) AS lapsed,
            max(CASE WHEN state IN ('in flight', 'parked', 'lapsed') THEN locked_by END) AS locked_by,
            max(CASE WHEN state IN ('in flight', 'parked', 'lapsed') THEN lock_expiry END) AS lock_expiry
          FROM (SELECT group_id, seq, locked_by, lock_expiry, {states.MESSAGE} AS state FROM {{messages}}) AS s
          GROUP BY group_id) AS m ON m.group_id = ids.group_id) AS grouped""",
        "group_id",
        (
            Column("group_id", "text"),
            Column("state", "word"),
            Column("messages", "integer", "coalesce(messages, 0)"),
            Column("head", "integer"),
            Column("priority", "integer"),
            Column(
                "last_claimed_at",
                "instant",
                f"CASE WHEN last_claimed_at > 0 THEN {microseconds('last_claimed_at', 1)} END",
            ),
            Column(
                "age",
                "duration",
                f"CASE WHEN last_claimed_at > 0 THEN {_age('last_claimed_at', 1)} END",
            ),
            Column("locked_by", "text"),
            Column("lock_expiry", "instant", microseconds("lock_expiry", 1)),
            Column("lease_left", "duration", _left("lock_expiry", 1, "lock_expiry IS NOT NULL")),
        ),
    ),
    "queue": _Kind(
        "localqueue",
        "{messages}",
        "id",
        (
            Column("id", "integer"),
            Column("state", "word", states.QUEUED),
            Column("payload_type", "word"),
            Column("payload", "payload", "payload_data"),
            Column("enqueued_at", "instant", microseconds("enqueued_at", 1000)),
            Column("age", "duration", _age("enqueued_at", 1000)),
            Column("visible_at", "instant", microseconds("visible_at", 1000)),
            Column("lease_left", "duration", _left("visible_at", 1000, "visible_at > :now")),
            Column("attempt", "integer"),
            Column("receipt_handle", "text"),
        ),
    ),
    "keys": _Kind(
        "localkv",
        "{kv}",
        "key",
        (
            Column("key", "text"),
            Column("state", "word", states.KEY),
            Column("size", "integer", "length(value)"),
            Column("value", "payload"),
            Column("expires_at", "instant", microseconds("expires_at", 1000)),
            Column("ttl_left", "duration", _left("expires_at", 1000, "expires_at IS NOT NULL")),
        ),
    ),
}


def temporary_views(store: str, names: Names) -> tuple[str, ...]:
    """A store's frames as temporary views `qstore_<kind>_view` of SQLite: times as UTC text, durations as seconds."""
    now = "((julianday('now') - 2440587.5) * 86400.0)"
    stored_now = now if store == "transport" else f"CAST({now} * 1000 AS INTEGER)"
    views = []
    for kind, wanted in KINDS.items():
        if wanted.store == store:
            columns = ", ".join(f"{_in_view(each)} AS {each.name}" for each in wanted.columns)
            text = f"CREATE TEMP VIEW qstore_{kind}_view AS SELECT {columns} FROM {wanted.source}"
            text = text.replace(":now_microseconds", f"CAST({now} * 1000000 AS INTEGER)").replace(":now", stored_now)
            views.append(names.render(text))
    return tuple(views)


def _in_view(column: Column) -> str:
    sql = column.sql or column.name
    if column.kind == "instant":
        return f"strftime('%Y-%m-%d %H:%M:%f', ({sql}) / 1000000.0, 'unixepoch')"
    return f"({sql}) / 1000000.0" if column.kind == "duration" else sql


def columns_of(kind: str, payload: Payload | None) -> list[Column]:
    """The columns of a kind of frame, with the payload as it is asked for."""
    stored: Kind = "bytes" if payload == "bytes" else "payload"
    return [
        replace(each, kind=stored) if each.kind == "payload" else each
        for each in KINDS[kind].columns
        if each.kind != "payload" or payload is not None
    ]


def pages_of(kind: str, reader: Reader, payload: Payload | None, prefix: str, size: int) -> Iterator[Rows]:
    """Rows in order of their key, at most so many at once; at least one page, which may be empty."""
    if kind == "groups":  # their messages are counted once for all
        rows = _page(kind, reader, payload, _Range(), None, None)[1]
        yield from (rows[first : first + size] for first in range(0, len(rows) or 1, size))
        return
    if kind == "keys" and payload is not None:
        size = min(size, LARGE)
    within = _Range(text("prefix", prefix, or_empty=True), first_after(prefix) if prefix else None)
    now: float | None = None
    while True:
        now, rows = _page(kind, reader, payload, within, now, size)
        if rows or within.after is None:
            yield rows
        if len(rows) < size:
            return
        within = replace(within, after=rows[-1][0])


@dataclass(frozen=True, slots=True)
class _Range:
    """Which keys are wanted: those with a prefix (`end` is the first text after them), after the last one read."""

    prefix: str = ""
    end: str | None = None
    after: Any = None


def _page(
    kind: str, reader: Reader, payload: Payload | None, within: _Range, now: float | None, size: int | None
) -> tuple[float, Rows]:
    wanted = KINDS[kind]
    with reader.place.reading() as connection:
        now = reader.now(connection) if now is None else now
        conditions = (within.prefix != "", within.end is not None, within.after is not None)
        query = _query(kind, payload, *conditions, size is not None, capabilities(connection.dialect).one_writer)
        result = connection.execute(
            query.clause(reader.place.naming.of(wanted.store)),
            {
                "now": reader.counted(now),
                "now_microseconds": int(now * 1_000_000),
                "prefix": within.prefix,
                "end": within.end,
                "after": within.after,
                "size": size,
            },
        )
        rows: Rows = result.cursor.fetchall()  # a million rows as SQLAlchemy's own take a second more
        result.close()
    return now, rows


@cache
def _query(
    kind: str, payload: Payload | None, prefixed: bool, ended: bool, after: bool, limited: bool, one_writer: bool
) -> Statement:
    wanted = KINDS[kind]
    columns = ", ".join(_selected(each, one_writer) for each in columns_of(kind, payload))
    conditions = [
        f"{wanted.key} {condition}"
        for asked, condition in ((prefixed, ">= :prefix"), (ended, "< :end"), (after, "> :after"))
        if asked
    ]
    where = f" WHERE {' AND '.join(conditions)}" if conditions else ""
    limit = " LIMIT :size" if limited else ""
    return Statement(f"SELECT {columns} FROM {wanted.source}{where} ORDER BY {wanted.key}{limit}")


def _selected(column: Column, one_writer: bool) -> str:
    sql = column.sql or column.name
    if one_writer and column.kind in ("payload", "bytes"):
        sql = f"CAST({sql} AS BLOB)"  # so that one that is not UTF-8 does not stand in the way of the others
    return f"{sql} AS {column.name}"
