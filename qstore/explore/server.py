"""What will hurt about a database on a PostgreSQL server."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from sqlalchemy import Connection

from qstore.explore.durations import spoken

__all__ = ["looks"]

Look = Callable[[Connection], Iterator[str]]

OLDEST = 140_000
"""PostgreSQL 14, as the server spells it."""

LONG = 600
"""Seconds from which on an open transaction is said to be old."""

MANY_DEAD = 20_000


def looks() -> Iterator[tuple[str, Look]]:
    """What is looked at, by kind."""
    yield "old PostgreSQL", _version
    yield "isolation level", _isolation
    yield "encoding", _encoding
    yield "durability", _durability
    yield "old snapshot", _snapshots
    yield "dead rows", _dead_rows


def _version(connection: Connection) -> Iterator[str]:
    if int(_setting(connection, "server_version_num")) < OLDEST:
        yield f"PostgreSQL {_setting(connection, 'server_version')} is too old: qstore needs 14 or newer"


def _isolation(connection: Connection) -> Iterator[str]:
    level = _setting(connection, "default_transaction_isolation")
    if level != "read committed":
        yield (
            f"transactions are {level} by default: workers that meet conflict (StoreBusy) and repeat; READ"
            " COMMITTED is what the stores are made for"
        )


def _encoding(connection: Connection) -> Iterator[str]:
    encoding = _setting(connection, "server_encoding")
    if encoding != "UTF8":
        yield f"the database's encoding is {encoding}, which cannot hold all text; make one with ENCODING 'UTF8'"


def _durability(connection: Connection) -> Iterator[str]:
    for setting in ("fsync", "full_page_writes", "synchronous_commit"):
        if _setting(connection, setting) == "off":
            yield f"{setting} is off: a crash of the server's machine can lose what was committed"


def _snapshots(connection: Connection) -> Iterator[str]:
    rows = connection.exec_driver_sql(
        "SELECT pid, coalesce(application_name, ''), state, date_part('epoch', clock_timestamp() - xact_start)"
        " FROM pg_stat_activity WHERE backend_xmin IS NOT NULL AND datname = current_database()"
        f" AND clock_timestamp() - xact_start > interval '{LONG} seconds'"
    ).all()
    for pid, name, state, age in rows:
        yield (
            f"a transaction of process {pid}{f' ({name})' if name else ''} has been {state} for {spoken(float(age))}"
            " and keeps dead rows, which slow claims down; end it"
        )


def _dead_rows(connection: Connection) -> Iterator[str]:
    rows = connection.exec_driver_sql(
        "SELECT relname, n_live_tup, n_dead_tup FROM pg_stat_user_tables"
        " WHERE n_dead_tup > greatest(2 * n_live_tup, %(many)s)",
        {"many": MANY_DEAD},
    ).all()
    for table, live, dead in rows:
        yield (
            f"{table} has {dead:,} dead rows beside {live:,} live ones: autovacuum does not keep up, or an old snapshot"
            f" keeps them; VACUUM {table}"
        )


def _setting(connection: Connection, name: str) -> str:
    return str(connection.exec_driver_sql("SELECT current_setting(%(name)s)", {"name": name}).scalar_one())
