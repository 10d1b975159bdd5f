"""`open_view`: what it shows, where it opens, and that nobody notices it."""

from __future__ import annotations

import asyncio
import os
import re
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import MetaData, create_engine, select, text
from sqlalchemy.exc import OperationalError
from sqlalchemy.ext.asyncio import create_async_engine

from qstore import (
    FormatError,
    InvalidInput,
    InvalidType,
    LocalKvRepository,
    LocalQueueRepository,
    Naming,
    View,
    migrate,
    mount,
    open_view,
)
from tests.backends import Backend, ManualClock
from tests.explore.looking import fill
from tests.migration import seed_files

STORES = ("transport", "localkv", "localqueue")


def test_a_view_counts_what_each_store_holds_by_state(view: View) -> None:
    found = {each.store: each for each in view.summary()}
    assert tuple(found) == view.stores == STORES
    assert found["transport"].states == {"in flight": 1, "parked": 1, "lapsed": 1, "ready": 5}
    assert (found["transport"].rows, found["transport"].groups, found["transport"].oldest) == (8, 4, 10)
    assert found["localqueue"].states == {"in flight": 1, "lapsed": 1, "ready": 2}
    assert (found["localqueue"].rows, found["localqueue"].oldest) == (4, 10)
    assert found["localkv"].states == {"live": 2, "expired": 1}
    assert all(each.file > 0 for each in found.values())


def test_a_view_shows_itself_as_a_small_table_in_text_and_in_html(view: View) -> None:
    lines = repr(view).splitlines()
    assert lines[0].startswith("View of ")
    assert lines[1].split()[:4] == ["store", "revision", "rows", "ready"]
    assert [line.split()[0] for line in lines[2:]] == list(STORES)
    assert re.search(r"transport +transport\.v1\S* +8 +5 +1 +1 +1 +10 s", lines[2])
    html = view._repr_html_()
    assert html.count("<tr>") == 4
    assert '<td style="text-align: right">10 s</td>' in html
    assert max(map(len, lines)) < 120 or "postgresql" in lines[0]


def test_a_view_of_one_file_has_the_one_store_and_its_engine_takes_a_select(tmp_path: Path) -> None:
    with LocalQueueRepository.open(tmp_path) as queue, open_view(tmp_path / "localqueue.sqlite") as view:
        queue.send("here")
        assert view.stores == ("localqueue",)
        with view.engine.connect() as connection:
            assert connection.scalars(select(view.models.QueueMessage.payload_data)).all() == ["here"]
        with pytest.raises(FormatError, match="no transport in this view"):
            view.messages()


def test_a_view_of_several_files_has_an_engine_for_each(view: View) -> None:
    if len({*view.engines.values()}) == 1:
        assert view.engine is view.engines["transport"]
    else:
        with pytest.raises(InvalidInput, match="found 3"):
            _ = view.engine


@pytest.mark.parametrize("store", STORES)
def test_a_file_that_the_seed_alone_has_written_is_shown(store: str, tmp_path: Path) -> None:
    path = tmp_path / "by-the-seed.sqlite"
    seed_files.make(path, store)
    before = path.read_bytes()
    with open_view(path) as view:
        [found] = view.summary()
        assert (found.store, found.revision) == (store, None)
        assert "not noted" in repr(view)
    assert path.read_bytes() == before


def test_a_hosts_file_is_found_by_the_names_of_its_tables_under_any_prefix(tmp_path: Path) -> None:
    engine = create_engine(f"sqlite:///{tmp_path / 'shop.sqlite'}")
    migrate.upgrade(engine, naming=Naming("mine_"))
    with open_view(tmp_path / "shop.sqlite") as view:
        assert view.stores == STORES
        assert view.models.TransportMessage.__table__.name == "mine_transport_messages"
    migrate.upgrade(engine, naming=Naming("other_"))
    with pytest.raises(InvalidInput, match=r"'mine_', 'other_'"):
        open_view(tmp_path / "shop.sqlite")
    with open_view(engine, naming=Naming("other_")) as view:
        assert view.engine is engine
    engine.dispose()


def test_a_hosts_session_is_read_in_its_own_transaction(tmp_path: Path) -> None:
    engine = create_engine(f"sqlite:///{tmp_path / 'shop.sqlite'}")
    stores = mount(MetaData())
    migrate.upgrade(engine, naming=stores.naming)
    with engine.connect() as connection:
        stores.localqueue(connection).send("not yet committed")
        assert open_view(connection).summary()[2].rows == 1
        assert connection.in_transaction()
        assert open_view(engine).summary()[2].rows == 0
    engine.dispose()


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda path: None, "nothing to look at"),
        (lambda path: path.mkdir(), "nothing to look at"),
        (lambda path: path.write_bytes(b"not a database" * 100), "not a readable SQLite database"),
        (lambda path: path.write_bytes(b""), "no store"),
    ],
)
def test_what_holds_no_store_is_refused_by_name_and_left_as_it_was(
    make: Callable[[Path], object], said: str, tmp_path: Path
) -> None:
    path = tmp_path / "other"
    make(path)
    before = path.read_bytes() if path.is_file() else None
    with pytest.raises(FormatError, match=said) as refused:
        open_view(path)
    assert str(path) in str(refused.value)
    assert before is None or path.read_bytes() == before
    assert [each.name for each in tmp_path.rglob("*")] == ([] if not path.exists() else ["other"])


def test_another_applications_database_is_refused_and_left_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "theirs.sqlite"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE messages (id INTEGER PRIMARY KEY, body TEXT)")
        connection.commit()
    before = path.read_bytes()
    with pytest.raises(FormatError, match="messages"):
        open_view(path)
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["theirs.sqlite"]


def test_looking_writes_no_byte_and_leaves_no_file_behind(tmp_path: Path, clock: ManualClock) -> None:
    backend = Backend(tmp_path)
    fill(backend, clock)
    backend.close()
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with open_view(tmp_path) as view:
        repr(view)
        list(view.messages(chunk=1))
        view.explain("held")
        view.explain(key="zone")  # expired, and read without the lazy delete
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_the_engine_of_a_view_refuses_to_write(tmp_path: Path) -> None:
    LocalKvRepository.open(tmp_path).close()
    with (
        open_view(tmp_path / "localkv.sqlite") as view,
        view.engine.connect() as connection,
        pytest.raises(OperationalError, match="readonly"),
    ):
        connection.execute(text("INSERT INTO kv (key, value) VALUES ('a', 'b')"))


def test_a_view_works_while_another_connection_holds_the_write_lock(tmp_path: Path, clock: ManualClock) -> None:
    backend = Backend(tmp_path)
    fill(backend, clock)
    with closing(sqlite3.connect(tmp_path / "transport.sqlite", isolation_level=None)) as writer:
        writer.execute("BEGIN IMMEDIATE")
        writer.execute("DELETE FROM messages")
        with open_view(tmp_path) as view:
            assert view.summary()[0].rows == 8
            assert len(view.messages()) == 8
        writer.execute("ROLLBACK")
    backend.close()


def test_a_view_is_read_in_a_running_event_loop_and_an_async_engine_is_refused_with_what_to_pass(
    tmp_path: Path,
) -> None:
    """H38, H39."""
    LocalQueueRepository.open(tmp_path).close()
    path = tmp_path / "localqueue.sqlite"

    async def cell() -> None:
        with open_view(path) as view:
            assert view.summary()[0].rows == 0
            assert len(view.queue()) == 0
        engine = create_async_engine(f"sqlite+aiosqlite:///{path}")
        with pytest.raises(InvalidType, match=r"AsyncEngine.*pass the path or URL"):
            open_view(engine)  # type: ignore[arg-type]  # the mistake
        await engine.dispose()

    asyncio.run(cell())


UNPRIVILEGED = """
import os, sys, tempfile
import qstore
if os.geteuid() == 0:
    os.setuid(65534)
for arguments in ({}, {"immutable": True}):
    try:
        with qstore.open_view(sys.argv[1], **arguments) as view:
            print(view.summary()[0].rows, view.explain(key="a"))
    except qstore.FormatError as error:
        print(error)
"""


def test_a_read_only_file_in_a_read_only_directory_is_refused_by_name_or_read_as_immutable(
    read_only_file: Path,
) -> None:
    """H06."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", UNPRIVILEGED, str(read_only_file)],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    refused, read = done.stdout.splitlines()
    assert str(read_only_file) in refused
    assert "directory must exist and be writable for the -wal and -shm files" in refused
    assert read == "1 Key 'a' is live, 1 byte, and never expires."
    assert os.listdir(read_only_file.parent) == ["localkv.sqlite"]


def test_open_view_loads_nothing_of_an_extra_and_no_alembic(tmp_path: Path) -> None:
    LocalQueueRepository.open(tmp_path).close()
    script = (
        "import sys, qstore\n"
        f"with qstore.open_view({str(tmp_path)!r}) as view: repr(view); view.explain(id=1)\n"
        "print(*sorted({'pandas', 'polars', 'numpy', 'matplotlib', 'alembic', 'rich', 'typer'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", script], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.strip() == ""


def test_a_view_shows_what_is_wrong_where_its_file_has_gone(tmp_path: Path) -> None:
    LocalKvRepository.open(tmp_path).close()
    with open_view(tmp_path) as view:
        (tmp_path / "localkv.sqlite").unlink()
        assert "deleted or replaced" in repr(view)
        assert "deleted or replaced" in view._repr_html_()
