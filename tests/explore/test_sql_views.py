"""The frames' columns for whoever writes SQL: a view's own connections have them, and so has a file of one store."""

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
            views = plain.execute("SELECT name FROM sqlite_master WHERE type = 'view'").fetchall()
            in_file = [("qstore_messages_view",), ("qstore_groups_view",)]
            assert views == (in_file if kind == "opened" else []), "a host's database has none"


def test_any_program_sees_in_the_file_what_the_frames_tell(tmp_path: Path) -> None:
    clock = ManualClock(pd.Timestamp.now("UTC").timestamp())
    with filled("opened", tmp_path, clock) as backend, open_view(tmp_path) as view:
        for name, store in VIEWS.items():
            with closing(sqlite3.connect(backend.path(store))) as plain:
                found = pd.read_sql(f"SELECT * FROM qstore_{name}_view ORDER BY 1", plain)
            frame = getattr(view, name)(library="pandas", **({} if name == "groups" else {"payload": "text"}))
            assert list(found.columns) == list(frame.columns)
            for column in found.columns:
                if pd.api.types.is_datetime64_any_dtype(frame[column]):
                    apart = pd.to_datetime(found[column], utc=True) - frame[column]
                elif pd.api.types.is_timedelta64_dtype(frame[column]):
                    apart = pd.to_timedelta(found[column].astype("float64"), unit="s") - frame[column]
                else:
                    continue
                assert found[column].isna().tolist() == frame[column].isna().tolist(), column
                assert (apart.dropna().abs() < timedelta(seconds=30)).all(), column
            assert found["state"].tolist() == frame["state"].tolist()
