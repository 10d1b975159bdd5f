"""An engine that qstore opened tells logs and listeners of its statements, though it goes past SQLAlchemy otherwise."""

from __future__ import annotations

import logging
import time
from pathlib import Path

import pytest
from sqlalchemy import event

from qstore import LocalKvRepository, migrate, open_engine
from qstore.binding.opened import MOMENT
from tests.integration.situations import disposed


def test_a_log_that_is_turned_on_tells_of_writes_at_once_and_of_reads_from_a_moment_later(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with LocalKvRepository.open(tmp_path) as kv:
        kv.put("k", b"v")
        kv.get("k")
        with caplog.at_level(logging.INFO, logger="sqlalchemy.engine"):
            kv.put("k", b"v")
            assert "INSERT INTO" in caplog.text
            time.sleep(2 * MOMENT)
            kv.get("k")
            assert "SELECT" in caplog.text
        caplog.clear()
        time.sleep(2 * MOMENT)
        kv.get("k")
        kv.put("k", b"v")
    assert not caplog.text


def test_a_listener_hears_of_the_very_next_statement(tmp_path: Path) -> None:
    with disposed(open_engine(tmp_path / "localkv.sqlite")) as engine:
        migrate.upgrade(engine, stores=("localkv",))
        kv = LocalKvRepository(engine)
        kv.get("k")
        heard: list[str] = []
        event.listen(engine, "before_cursor_execute", lambda *args: heard.append(args[2]))
        kv.get("k")
        assert any("SELECT" in each for each in heard)
        heard.clear()
        kv.put("k", b"v")
        assert any("INSERT INTO" in each for each in heard)
