"""H15 and H18: the interpreter that qstore runs in, and what it must leave alone there."""

from __future__ import annotations

import asyncio
import logging
import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from alembic.config import main as alembic
from sqlalchemy.orm import Session

from qstore import (
    LocalKvRepository,
    LocalQueueRepository,
    QstoreError,
    TransportRepository,
    migrate,
    open_engine,
)
from tests.backends import MOUNTED
from tests.integration.situations import ROOT, disposed, host_engine, output_of

WITHOUT_EXTRAS = """
import sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("greenlet", "aiosqlite", "typer", "rich"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Absent())
try:
    import greenlet
    raise SystemExit("greenlet is there: nothing is shown")
except ModuleNotFoundError:
    pass
import qstore
from qstore import migrate, models
from sqlalchemy import select
from sqlalchemy.orm import Session
with qstore.TransportRepository.open(sys.argv[1]) as transport:
    transport.publish("g", qstore.Event(kind="k"))
    transport.ack(transport.claim("w", 5))
with qstore.LocalKvRepository.open(sys.argv[1]) as kv:
    kv.put("a", b"1")
with qstore.LocalQueueRepository.open(sys.argv[1]) as queue:
    queue.send("a")
    queue.ack(queue.receive()[0].receipt_handle)
engine = qstore.open_engine(sys.argv[1] + "/localkv.sqlite")
migrate.upgrade(engine)
with Session(engine) as session:
    print(session.scalars(select(models.KvEntry.key)).all())
    qstore.LocalKvRepository(session).put("b", b"1")
    session.rollback()
engine.dispose()
"""


def test_the_sync_part_works_without_the_extras(tmp_path: Path) -> None:
    """H15."""
    assert output_of(WITHOUT_EXTRAS, tmp_path) == "['a']\n"


@pytest.fixture
def old_sqlite(monkeypatch: pytest.MonkeyPatch) -> None:
    """A SQLite before RETURNING."""
    monkeypatch.setattr(sqlite3, "sqlite_version_info", (3, 34, 1))
    monkeypatch.setattr(sqlite3, "sqlite_version", "3.34.1")


@pytest.mark.usefixtures("old_sqlite")
@pytest.mark.parametrize(
    "opening",
    [
        lambda path: open_engine(path / "localkv.sqlite"),
        TransportRepository.open,
        lambda path: TransportRepository.open(path, create=False),
        LocalKvRepository.open,
        LocalQueueRepository.open,
    ],
    ids=["open_engine", "transport", "transport without create", "localkv", "localqueue"],
)
def test_a_sqlite_below_the_floor_is_refused_when_a_store_is_opened(
    opening: Callable[[Path], object], tmp_path: Path
) -> None:
    """H15."""
    with pytest.raises(QstoreError, match=r"3\.34\.1.*3\.35") as refused:
        opening(tmp_path)
    assert refused.value.code == "BINDING_SETUP_FAILED"
    assert os.listdir(tmp_path) == []


def test_a_sqlite_below_the_floor_is_refused_on_a_hosts_engine(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """H15. Otherwise the first send fails with a syntax error at RETURNING."""
    with disposed(host_engine(tmp_path / "host.sqlite")) as engine:
        migrate.upgrade(engine, naming=MOUNTED)
        request.getfixturevalue("old_sqlite")
        with pytest.raises(QstoreError, match=r"3\.34\.1.*3\.35"):
            LocalQueueRepository(engine, naming=MOUNTED).send("a")


State = list[tuple[str, int, bool, bool, tuple[object, ...], tuple[object, ...]]]


def _state_of_logging() -> State:
    loggers: list[logging.Logger] = [logging.getLogger()]
    loggers += [each for each in logging.root.manager.loggerDict.values() if isinstance(each, logging.Logger)]
    return sorted(
        (each.name, each.level, each.disabled, each.propagate, tuple(each.handlers), tuple(each.filters))
        for each in loggers
    )


@contextmanager
def _host_logging() -> Iterator[State]:
    """A host's logging as it set it up, and as it must be found again."""
    logger, root, handler = logging.getLogger("host.app"), logging.getLogger(), logging.NullHandler()
    level = root.level
    root.addHandler(handler)
    root.setLevel(logging.ERROR)
    logger.setLevel(logging.DEBUG)
    try:
        yield _state_of_logging()
    finally:
        root.removeHandler(handler)
        root.setLevel(level)
        logger.setLevel(logging.NOTSET)


def _alembic(*arguments: object) -> None:
    alembic(["-c", str(ROOT / "alembic.ini"), *map(str, arguments)])


def _session_upgraded(directory: Path) -> None:
    with disposed(host_engine(directory / "host.sqlite")) as engine, Session(engine) as session:
        migrate.upgrade(session, naming=MOUNTED)
        session.commit()


def _engine_upgraded(directory: Path) -> None:
    with disposed(open_engine(directory / "localkv.sqlite")) as engine:
        migrate.upgrade(engine)
        migrate.check(engine)
        migrate.downgrade(engine)


async def _upgraded_in_a_loop(directory: Path) -> None:
    _engine_upgraded(directory)


UPGRADES: dict[str, Callable[[Path], Any]] = {
    "an engine": _engine_upgraded,
    "a host's session": _session_upgraded,
    "open": lambda directory: LocalKvRepository.open(directory).close(),
    "the command": lambda directory: _alembic("-x", f"data_dir={directory}", "upgrade", "heads"),
    "a running loop": lambda directory: asyncio.run(_upgraded_in_a_loop(directory)),
}


@pytest.mark.parametrize("upgrade", UPGRADES)
def test_an_upgrade_leaves_the_hosts_logging_as_it_was(upgrade: str, tmp_path: Path) -> None:
    """H18. Loggers, levels, handlers, filters, and whether they are disabled."""
    with _host_logging() as before:
        UPGRADES[upgrade](tmp_path)
        known = {each[0] for each in before}
        assert [each for each in _state_of_logging() if each[0] in known] == before


TEMPLATE = """
import logging, sys
from alembic import command
from alembic.config import Config
directory = sys.argv[1]
config = Config(directory + "/alembic.ini")
command.init(config, directory + "/migrations")
config = Config(directory + "/alembic.ini")
config.set_main_option("sqlalchemy.url", f"sqlite:///{directory}/host.sqlite")
logger, handler = logging.getLogger("host.app"), logging.NullHandler()
logging.getLogger().addHandler(handler)
command.upgrade(config, "heads")
print(logger.disabled, handler in logging.getLogger().handlers)
"""


def test_the_trap_is_real_alembics_template_disables_the_hosts_loggers(tmp_path: Path) -> None:
    """H18."""
    assert output_of(TEMPLATE, tmp_path).split()[-2:] == ["True", "False"]
