"""What a store holds, in a line."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from html import escape

from sqlalchemy import Connection

from qstore.capabilities import capabilities
from qstore.engines import described, log_size
from qstore.explore import states
from qstore.explore.durations import spoken
from qstore.explore.reading import Reader
from qstore.formats import FORMATS
from qstore.statement import Statement

__all__ = ["HEADINGS", "Summary", "as_html", "as_text", "cells", "summarise"]

_COUNTS = {
    "transport": Statement(f"""
        SELECT state, count(*), (SELECT min(last_claimed_at) FROM {{groups}} WHERE last_claimed_at > 0),
               (SELECT count(*) FROM {{groups}})
        FROM (SELECT {states.MESSAGE} AS state FROM {{messages}}) AS m GROUP BY state
    """),
    "localkv": Statement(f"""
        SELECT state, count(*), NULL, NULL FROM (SELECT {states.KEY} AS state FROM {{kv}}) AS k GROUP BY state
    """),
    "localqueue": Statement(f"""
        SELECT state, count(*), min(enqueued_at) / 1000.0, NULL
        FROM (SELECT {states.QUEUED} AS state, enqueued_at FROM {{messages}}) AS m GROUP BY state
    """),
}

HEADINGS = ("store", "revision", "rows", "ready", "in flight", "parked", "lapsed", "oldest", "file", "log")


@dataclass(frozen=True, slots=True)
class Summary:
    """What one store holds at one moment.

    `states`: how many rows are in each; of keys, those are `live` and `expired`. `oldest`: seconds since the oldest
    message was sent, or, in the transport, since the last claim of the group that waits longest. `revision`: the newest
    that is noted. Sizes are bytes; `log` is SQLite's.
    """

    store: str
    target: str
    format: str
    revision: str | None
    rows: int
    states: dict[str, int]
    groups: int | None
    oldest: float | None
    file: int
    log: int | None

    def count(self, *names: str) -> int:
        """How many rows are in any of these states."""
        return sum(self.states.get(name, 0) for name in names)


def summarise(reader: Reader) -> Summary:
    """Count what a store holds now, in one statement."""
    place = reader.place
    with place.reading() as connection:
        now = reader.now(connection)
        names = place.naming.of(place.store)
        rows = connection.execute(_COUNTS[place.store].clause(names), {"now": reader.counted(now)}).all()
        file, log = _sizes(connection, reader)
    starts = [float(oldest) for _, _, oldest, _ in rows if oldest is not None]
    noted = sorted(each for each in reader.found.revisions if each.partition(".")[0] == place.store)
    return Summary(
        store=place.store,
        target=described(place.engine),
        format=FORMATS[place.store].marker,
        revision=noted[-1] if noted else None,
        rows=sum(count for _, count, _, _ in rows),
        states={state: count for state, count, _, _ in rows},
        groups=next((groups for *_, groups in rows), 0) if place.store == "transport" else None,
        oldest=max(now - min(starts), 0.0) if starts else None,
        file=file,
        log=log,
    )


def _sizes(connection: Connection, reader: Reader) -> tuple[int, int | None]:
    place = reader.place
    if capabilities(connection.dialect).one_writer:
        path = place.engine.url.database or ""
        return (os.stat(path).st_size if os.path.exists(path) else 0), log_size(place.engine)
    names = place.naming.of(place.store)
    parts = " + ".join(f"pg_total_relation_size('{names[table]}')" for table in FORMATS[place.store].tables)
    return int(connection.exec_driver_sql(f"SELECT {parts}").scalar_one()), None


def cells(summary: Summary) -> tuple[str, ...]:
    """A summary as it is shown, a text for each of HEADINGS."""
    kv = summary.store == "localkv"
    return (
        summary.store,
        summary.revision or f"{summary.format}, not noted",
        f"{summary.rows:,}",
        f"{summary.count('ready', 'live'):,}",
        "" if kv else f"{summary.count('in flight'):,}",
        "" if kv else f"{summary.count('parked'):,}",
        f"{summary.count('lapsed', 'expired', 'stuck'):,}",
        "" if summary.oldest is None else spoken(summary.oldest),
        size(summary.file),
        "" if summary.log is None else size(summary.log),
    )


def size(count: float) -> str:
    """Bytes, as people say them."""
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" or count >= 10 else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} GiB"


def as_text(summaries: Iterable[Summary]) -> str:
    """Summaries in aligned columns."""
    rows = [HEADINGS, *map(cells, summaries)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(
            text.ljust(width) if place < 2 else text.rjust(width)
            for place, (text, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    )


def as_html(summaries: Iterable[Summary], caption: str) -> str:
    """Summaries in an HTML table."""

    def row(kind: str, texts: Iterable[str]) -> str:
        parts = (
            f'<{kind} style="text-align: {"left" if place < 2 else "right"}">{escape(text)}</{kind}>'
            for place, text in enumerate(texts)
        )
        return f"<tr>{''.join(parts)}</tr>"

    lines = "".join(row("td", cells(each)) for each in summaries)
    return (
        f'<table><caption style="text-align: left">{escape(caption)}</caption>'
        f"<thead>{row('th', HEADINGS)}</thead><tbody>{lines}</tbody></table>"
    )
