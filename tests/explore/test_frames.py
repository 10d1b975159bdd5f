"""Frames of pandas and polars: the same columns from every place, with times, states and payloads made readable."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pandas as pd
import polars as pl
import pytest
from sqlalchemy import select

from qstore import (
    BackendUnsupported,
    Event,
    InvalidInput,
    LocalKvRepository,
    LocalQueueRepository,
    TransportRepository,
    View,
    open_view,
)
from qstore.explore.frames import Library
from tests.explore.looking import NOW

LIBRARIES: tuple[Library, ...] = ("pandas", "polars")


def records(frame: Any) -> list[dict[str, Any]]:
    """A frame's rows, with None for what is not there, whatever the library calls that."""
    if isinstance(frame, pl.DataFrame):
        return frame.to_dicts()
    return [
        {name: None if value is pd.NaT or value is pd.NA else value for name, value in row.items()}
        for row in frame.to_dict("records")
    ]


def at(seconds: float) -> datetime:
    return datetime.fromtimestamp(NOW + seconds, UTC)


@pytest.mark.parametrize("library", LIBRARIES)
def test_messages_have_their_state_and_what_is_left_of_their_lease(view: View, library: Any) -> None:
    rows = records(view.messages(library=library, payload=None))
    first = {row["group_id"]: row["seq"] for row in reversed(rows)}
    found = {
        (row["group_id"], int(row["seq"] == first[row["group_id"]])): (
            *(row["state"], row["locked_by"], row["lock_expiry"], row["lease_left"]),
        )
        for row in rows
    }
    assert found == {
        ("held", 1): ("in flight", "worker-1", at(60), timedelta(seconds=50)),
        ("parked", 1): ("parked", "__parked__", at(600), timedelta(seconds=590)),
        ("lapsed", 1): ("lapsed", "worker-3", at(1), timedelta(seconds=-9)),
        ("ready", 1): ("ready", None, None, None),
        **{(group, 0): ("ready", None, None, None) for group in ("held", "parked", "lapsed", "ready")},
    }
    assert [row["seq"] for row in rows] == sorted(row["seq"] for row in rows)


@pytest.mark.parametrize("library", LIBRARIES)
def test_groups_have_their_head_and_their_holder(view: View, library: Any) -> None:
    rows = {row["group_id"]: row for row in records(view.groups(library=library))}
    assert {group: (row["state"], row["messages"], row["priority"]) for group, row in rows.items()} == {
        "held": ("in flight", 2, 0),
        "parked": ("parked", 2, 0),
        "lapsed": ("lapsed", 2, 0),
        "ready": ("ready", 2, 3),
    }
    assert rows["held"]["locked_by"] == "worker-1"
    assert rows["held"]["lease_left"] == timedelta(seconds=50)
    assert rows["held"]["age"] == timedelta(seconds=10)
    assert (rows["ready"]["last_claimed_at"], rows["ready"]["age"]) == (None, None)
    assert rows["held"]["head"] < rows["parked"]["head"] < rows["lapsed"]["head"] < rows["ready"]["head"]


@pytest.mark.parametrize("library", LIBRARIES)
def test_the_queue_has_attempts_ages_and_states(view: View, library: Any) -> None:
    rows = records(view.queue(library=library))
    assert [row["state"] for row in rows] == ["in flight", "lapsed", "ready", "ready"]
    assert [row["attempt"] for row in rows] == [1, 1, 0, 0]
    assert {row["age"] for row in rows} == {timedelta(seconds=10)}
    assert [row["lease_left"] for row in rows] == [timedelta(seconds=50), None, None, None]
    assert rows[2]["payload"] == "a text"
    assert rows[0]["enqueued_at"] == at(0)


@pytest.mark.parametrize("library", LIBRARIES)
def test_keys_are_found_by_prefix_and_values_come_on_request(view: View, library: Any) -> None:
    rows = records(view.keys(library=library))
    assert [(row["key"], row["state"], row["size"]) for row in rows] == [
        ("user:1", "live", 15),
        ("user:2", "live", 1),
        ("zone", "expired", 1),
    ]
    assert "value" not in rows[0]
    assert [row["ttl_left"] for row in rows] == [None, timedelta(seconds=90), timedelta(seconds=-9)]
    users = records(view.keys("user:", library=library, payload="bytes"))
    assert [row["value"] for row in users] == [b'{"name": "Ada"}', b"\xff"]
    named = records(view.keys("user:", library=library, payload="json"))
    assert [row["value.name"] for row in named] == ["Ada", None]
    assert [row["value"] for row in named] == ['{"name": "Ada"}', "\N{REPLACEMENT CHARACTER}"]
    assert len(view.keys("zone:", library=library)) == 0


@pytest.mark.parametrize("library", LIBRARIES)
def test_json_payloads_are_columns_and_what_is_no_object_stays_as_its_text(view: View, library: Any) -> None:
    rows = records(view.messages(library=library, payload="json"))
    assert [row["event.kind"] for row in rows] == ["first", "second"] * 4
    assert [row["event.data.total"] for row in rows] == [40, None] * 4
    assert [row["event.data.to.city"] for row in rows] == [None, "Ulm"] * 4
    queue = records(view.queue(library=library, payload="json"))
    assert [row["payload.n"] for row in queue] == [1, 2, None, 4]
    assert [row["payload.deep.yes"] for row in queue] == [None, None, None, True]
    assert queue[2]["payload"] == "a text"


@pytest.mark.parametrize("library", LIBRARIES)
def test_chunks_together_are_the_frame_and_have_its_columns(view: View, library: Any) -> None:
    for method in (view.messages, view.groups, view.queue, view.keys):
        whole: Any = method(library=library)
        chunks: list[Any] = list(method(library=library, chunk=3))
        assert [len(each) for each in chunks] == [3] * (len(whole) // 3) + [len(whole) % 3] * (len(whole) % 3 > 0)
        assert [row for each in chunks for row in records(each)] == records(whole)
        assert all(list(each.columns) == list(whole.columns) for each in chunks)


def test_the_types_do_not_depend_on_what_is_in_the_rows(tmp_path: Path) -> None:
    with TransportRepository.open(tmp_path / "transport.sqlite") as transport, open_view(tmp_path) as view:
        empty = {library: view.messages(library=library) for library in ("pandas", "polars")}
        transport.publish_many([(f"g{n}", Event(kind="k")) for n in range(200)])
        free = {library: view.messages(library=library) for library in ("pandas", "polars")}
        transport.claim("worker", 60)
        held = {library: view.messages(library=library) for library in ("pandas", "polars")}
    assert dict(empty["pandas"].dtypes) == dict(free["pandas"].dtypes) == dict(held["pandas"].dtypes)
    assert empty["polars"].schema == free["polars"].schema == held["polars"].schema
    assert str(held["pandas"].dtypes["lock_expiry"]) == "datetime64[us, UTC]"
    assert str(held["pandas"].dtypes["seq"]) == "Int64"
    assert held["polars"].schema["lock_expiry"] == pl.Datetime("us", "UTC")


def test_rows_that_other_programs_have_written_stand_in_nobodys_way(tmp_path: Path) -> None:
    with TransportRepository.open(tmp_path / "transport.sqlite"), LocalKvRepository.open(tmp_path) as kv:
        kv.put("never", b"", ttl=10**12)
    with closing(sqlite3.connect(tmp_path / "transport.sqlite")) as other:
        other.execute("INSERT INTO messages (group_id, event) VALUES ('orphan', CAST(x'ff7b' AS TEXT))")
        other.execute("INSERT INTO messages (group_id, event, locked_by) VALUES ('stuck', '{}', 'gone')")
        other.execute("INSERT INTO messages (group_id, event, locked_by, lock_expiry) VALUES ('far', '[1', 'w', 9e999)")
        other.execute("INSERT INTO groups (group_id) VALUES ('stuck'), ('far'), ('empty')")
        other.commit()
    with open_view(tmp_path) as view:
        for library in LIBRARIES:
            rows = records(view.messages(library=library, payload="json"))
            assert [row["state"] for row in rows] == ["ready", "stuck", "in flight"]
            assert rows[2]["lock_expiry"] == datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)
            groups = {row["group_id"]: row["state"] for row in records(view.groups(library=library))}
            assert groups == {"orphan": "orphaned", "stuck": "stuck", "far": "in flight", "empty": "empty"}
            [never] = records(view.keys(library=library))
            assert never["expires_at"] == datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)


def test_a_frame_of_several_pages_has_every_row_once(tmp_path: Path) -> None:
    with LocalQueueRepository.open(tmp_path) as queue, open_view(tmp_path) as view:
        sent = queue.send_many(range(25_000))
        assert view.queue(library="polars")["id"].to_list() == sent
        assert list(view.queue(library="pandas", payload="json")["id"]) == sent


def test_pandas_and_polars_read_the_engine_of_a_view_by_themselves(tmp_path: Path) -> None:
    """H39. The calls that are documented: a select, a text, polars' own reading."""
    with LocalQueueRepository.open(tmp_path) as queue, open_view(tmp_path / "localqueue.sqlite") as view:
        queue.send_many(range(150))
        [message] = queue.receive(1)
        selected = select(view.models.QueueMessage)
        assert len(pd.read_sql(selected, view.engine)) == 150
        frame = pd.read_sql("SELECT id, enqueued_at FROM messages", view.engine)
        assert pd.to_datetime(frame["enqueued_at"], unit="ms", utc=True).dt.year.min() >= 2024
        assert len(pl.read_database("SELECT id, enqueued_at FROM messages", view.engine)) == 150
        assert view.engine.pool.status() == "NullPool"
        queue.ack(message.receipt_handle)
        assert len(pd.read_sql(selected, view.engine)) == 149


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ({"library": "dask"}, "library"),
        ({"payload": "xml"}, "payload"),
        ({"payload": "bytes"}, "payload"),
        ({"chunk": 0}, "chunk"),
        ({"chunk": True}, "chunk"),
    ],
)
def test_arguments_that_no_frame_has_are_refused(arguments: dict[str, Any], field: str, tmp_path: Path) -> None:
    LocalQueueRepository.open(tmp_path).close()
    with open_view(tmp_path) as view, pytest.raises(InvalidInput) as refused:
        view.queue(**arguments)
    assert refused.value.field == field


@pytest.mark.parametrize("prefix", ["\0", b"x", None, 7])
def test_a_prefix_that_is_no_text_is_refused(prefix: Any, tmp_path: Path) -> None:
    LocalKvRepository.open(tmp_path).close()
    with open_view(tmp_path) as view, pytest.raises(InvalidInput, match="prefix"):
        view.keys(prefix)


WITHOUT = """
import sys, importlib.util
absent = sys.argv[2].split(",")
real = importlib.util.find_spec
importlib.util.find_spec = lambda name, *rest: None if name in absent else real(name, *rest)
import qstore
with qstore.open_view(sys.argv[1]) as view:
    try:
        print(type(view.queue()).__module__)
    except qstore.BackendUnsupported as error:
        print(error)
"""


@pytest.mark.parametrize(
    ("absent", "said"), [("none", "pandas"), ("pandas", "polars"), ("pandas,polars", "pip install 'qstore[notebook]'")]
)
def test_the_library_is_the_one_that_is_installed(absent: str, said: str, tmp_path: Path) -> None:
    LocalQueueRepository.open(tmp_path).close()
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", WITHOUT, str(tmp_path), absent],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert said in done.stdout
    assert BackendUnsupported.__name__


MILLION = """
import sys, time
import pandas, qstore
before = time.monotonic()
with qstore.open_view(sys.argv[1]) as view:
    chunk = int(sys.argv[2])
    frames = view.messages(library="pandas", chunk=chunk) if chunk else [view.messages(library="pandas")]
    rows = sum(map(len, frames))
[most] = [line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")]  # kB
print(rows, int(most) // 1024, round(time.monotonic() - before, 1))
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is read from /proc")
def test_a_million_messages_fit_into_a_frame_and_chunks_of_them_into_little(tmp_path: Path) -> None:
    path = tmp_path / "transport.sqlite"
    TransportRepository.open(path).close()
    with closing(sqlite3.connect(path)) as writer:
        writer.execute("PRAGMA synchronous = OFF")
        writer.execute("""
            WITH RECURSIVE n(n) AS (SELECT 0 UNION ALL SELECT n + 1 FROM n WHERE n < 999999)
            INSERT INTO messages (group_id, event) SELECT 'group-' || n % 1000, printf('{"id":"%032d","kind":"k"}', n)
            FROM n""")
        writer.commit()
    for chunk, megabytes in ((0, 1500), (10_000, 150)):
        done = subprocess.run(
            [sys.executable, "-c", MILLION, str(path), str(chunk)],
            capture_output=True,
            text=True,
            timeout=100,
            check=True,
        )
        rows, used, _seconds = done.stdout.split()
        assert int(rows) == 1_000_000
        assert int(used) < megabytes, done.stdout
