"""A view that somebody has read by half does not keep SQLite's log from being written back."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pandas as pd
from sqlalchemy import text

from qstore import Event, TransportRepository, checkpoint, log_size, open_engine, open_view


def test_20_000_messages_are_written_while_a_view_holds_half_read_results_and_the_log_stays_small(
    tmp_path: Path,
) -> None:
    path = tmp_path / "transport.sqlite"
    with TransportRepository.open(path, durability="normal") as transport, open_view(path) as view:
        transport.publish_many([("g", Event(kind="early")) for _ in range(1000)])
        half_read: list[Any] = [view.messages(chunk=10), view.groups(chunk=1)]
        frames = [next(each) for each in half_read]
        connection = view.engine.connect()
        cursor = connection.execute(text("SELECT * FROM messages"))
        frames.append(cursor.fetchone())
        chunks = pd.read_sql("SELECT * FROM messages", view.engine, chunksize=10)
        frames.append(next(chunks))
        for number in range(200):
            transport.publish_many([(f"g{number}", Event(kind="late", data={"n": n})) for n in range(100)])
        engine = open_engine(path)
        assert log_size(engine) < 20_000_000
        assert not checkpoint(engine).busy
        assert log_size(engine) == 0
        engine.dispose()
        assert sum(map(len, half_read[0])) == 20_990
        assert len(cursor.fetchall()) == 999
        chunks.close()
        connection.close()


def test_the_trap_is_real_a_half_read_result_of_another_engine_keeps_the_log_from_being_cut(tmp_path: Path) -> None:
    path = tmp_path / "transport.sqlite"
    with TransportRepository.open(path) as transport, closing(sqlite3.connect(path, timeout=0)) as reader:
        transport.publish_many([("g", Event(kind="early")) for _ in range(1000)])
        cursor = reader.execute("SELECT * FROM messages")
        cursor.fetchone()
        transport.publish("g", Event(kind="late"))
        with closing(sqlite3.connect(path, timeout=0)) as other:
            [(busy, *_)] = other.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        assert busy
        cursor.close()
