"""The views that a view's own connections have: the frames' columns for whoever writes SQL, and nothing in the file."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import pandas as pd
import polars as pl
import pytest

from qstore import open_view
from tests.backends import ManualClock
from tests.explore.looking import filled

VIEWS = {"messages": "transport", "groups": "transport", "queue": "localqueue", "keys": "localkv"}


@pytest.mark.parametrize("kind", ["opened", "opened, v1", "host"])
def test_they_have_the_columns_and_the_states_of_the_frames(kind: str, tmp_path: Path) -> None:
    clock = ManualClock(pd.Timestamp.now("UTC").timestamp())
    with filled(kind, tmp_path, clock) as backend:
        target = backend.path("transport") if kind == "host" else tmp_path
        with open_view(target) as view:
            for name, store in VIEWS.items():
                query = f"SELECT * FROM qstore_{name}_view ORDER BY 1"
                found = pd.read_sql(query, view.engines[store])
                frame = getattr(view, name)(library="pandas", **({} if name == "groups" else {"payload": "text"}))
                assert list(found.columns) == list(frame.columns)
                assert found["state"].tolist() == frame["state"].tolist()
                assert len(pl.read_database(query, view.engines[store], infer_schema_length=None)) == len(frame)
            held: Any = pd.read_sql("SELECT * FROM qstore_messages_view WHERE seq = 1", view.engines["transport"])
            assert 40 < held["lease_left"][0] < 61
            wanted = view.messages(library="pandas")["lock_expiry"][0]
            assert abs(pd.Timestamp(held["lock_expiry"][0], tz="UTC") - wanted) < timedelta(milliseconds=2)
        with closing(sqlite3.connect(backend.path("transport"))) as plain:
            assert plain.execute("SELECT name FROM sqlite_master WHERE type = 'view'").fetchall() == []
