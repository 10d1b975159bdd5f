"""H02: the driver's implicit BEGIN, and hosts who trust their rollback."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from sqlalchemy import Engine, text
from sqlalchemy.orm import Session

from qstore import Event, LocalKvRepository, StoreBusy, TransportRepository, open_engine
from tests.integration.situations import ENGINES, disposed, host_engine, new_store, plain


@pytest.fixture(params=ENGINES)
def engine_kind(request: pytest.FixtureRequest) -> Callable[[Path], Engine]:
    return ENGINES[request.param]


def test_the_trap_is_real_releasing_a_savepoint_commits_under_sqlalchemys_defaults(tmp_path: Path) -> None:
    """H02 (a)."""
    path = new_store(tmp_path, "localkv")
    engine = host_engine(path)
    with disposed(engine), Session(engine) as session:
        session.execute(text("SELECT * FROM kv")).all()
        with session.begin_nested():
            session.execute(text("INSERT INTO kv VALUES ('a', x'', NULL)"))
        session.rollback()
        assert session.execute(text("SELECT count(*) FROM kv")).scalar_one() == 1


@pytest.mark.parametrize("nested_by", ["qstore", "host"])
@pytest.mark.parametrize("engine_kind", ["opened", "watched", "host", "recipe"], indirect=True)
def test_the_hosts_rollback_takes_back_what_was_done_in_a_nested_block(
    nested_by: str, engine_kind: Callable[[Path], Engine], tmp_path: Path
) -> None:
    """H02 (a)."""
    path = new_store(tmp_path, "transport")
    engine = engine_kind(path)
    with disposed(engine):
        with Session(engine) as session:
            transport = TransportRepository(session)
            session.execute(text("SELECT * FROM messages")).all()
            if nested_by == "host":
                with session.begin_nested():
                    transport.publish("g", Event(kind="k"))
            else:
                transport.publish("g", Event(kind="k"))
            session.rollback()
        with plain(path) as look:
            assert look.execute("SELECT count(*) FROM messages").fetchall() == [(0,)]
            assert look.execute("SELECT count(*) FROM groups").fetchall() == [(0,)]


def test_a_nested_block_of_the_hosts_own_is_taken_back_on_an_engine_that_qstore_opened(tmp_path: Path) -> None:
    """H02 (a). The same as the trap, on `open_engine`."""
    with disposed(engine := open_engine(new_store(tmp_path, "localkv"))), Session(engine) as session:
        session.execute(text("SELECT * FROM kv")).all()
        with session.begin_nested():
            session.execute(text("INSERT INTO kv VALUES ('a', x'', NULL)"))
        session.rollback()
        assert session.execute(text("SELECT count(*) FROM kv")).scalar_one() == 0


def test_the_trap_is_real_two_that_read_and_then_write_lose_an_update(tmp_path: Path) -> None:
    """H02 (b)."""
    path = new_store(tmp_path, "localkv")
    engine = host_engine(path)
    add_one = text("UPDATE kv SET expires_at = :seen + 1")
    with disposed(engine), plain(path) as look:
        look.execute("INSERT INTO kv VALUES ('counter', x'', 0)")
        with Session(engine) as first, Session(engine) as second:
            seen = [each.execute(text("SELECT expires_at FROM kv")).scalar_one() for each in (first, second)]
            for each, found in zip((first, second), seen, strict=True):
                each.execute(add_one, {"seen": found})
                each.commit()
        assert look.execute("SELECT expires_at FROM kv").fetchall() == [(1,)]


@pytest.mark.parametrize("engine_kind", ["opened", "watched", "host", "recipe"], indirect=True)
def test_two_sessions_that_read_and_then_write_never_lose_an_update_silently(
    engine_kind: Callable[[Path], Engine], tmp_path: Path
) -> None:
    """H02 (b). Both count, or one is told that it is too late."""
    path = new_store(tmp_path, "localkv")
    engine = engine_kind(path)
    with disposed(engine):
        LocalKvRepository(engine).put("counter", b"0")
        conflicts = 0
        with Session(engine) as first, Session(engine) as second:
            stores = [(each, LocalKvRepository(each)) for each in (first, second)]
            seen = [int(kv.get("counter") or b"") for _, kv in stores]
            for (session, kv), found in zip(stores, seen, strict=True):
                try:
                    kv.put("counter", b"%d" % (found + 1))
                    session.commit()
                except StoreBusy:
                    session.rollback()
                    conflicts += 1
        assert int(LocalKvRepository(engine).get("counter") or b"") + conflicts == 2
