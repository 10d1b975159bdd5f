"""H08: databases in memory, on the engines of hosts."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from sqlalchemy import Engine, NullPool, QueuePool, SingletonThreadPool, StaticPool, create_engine, text
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session

from qstore import Event, InvalidInput, TransportRepository, migrate
from tests.backends import MOUNTED
from tests.integration.situations import disposed

SHARED = "sqlite:///file:shared?mode=memory&cache=shared&uri=true"

HOSTS: dict[str, Callable[[], Engine]] = {
    "the default": lambda: create_engine("sqlite://"),
    "by name": lambda: create_engine("sqlite:///:memory:"),
    "SingletonThreadPool": lambda: create_engine(SHARED, poolclass=SingletonThreadPool),
    "StaticPool": lambda: create_engine("sqlite://", poolclass=StaticPool, connect_args={"check_same_thread": False}),
    "QueuePool": lambda: create_engine("sqlite://", poolclass=QueuePool, connect_args={"check_same_thread": False}),
    "NullPool": lambda: create_engine("sqlite://", poolclass=NullPool),
    "URI": lambda: create_engine("sqlite:///file::memory:?uri=true"),
    "shared URI": lambda: create_engine("sqlite:///file::memory:?cache=shared&uri=true"),
    "shared by name": lambda: create_engine(SHARED, poolclass=QueuePool, connect_args={"check_same_thread": False}),
    "shared by VFS": lambda: create_engine("sqlite:///file:/shared?vfs=memdb&uri=true"),
    "temporary": lambda: create_engine("sqlite:///"),
}


def _in_a_thread(call: Callable[[], Any]) -> Any:
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(call).result()


def test_the_trap_is_real_a_second_thread_finds_no_table() -> None:
    """H08."""
    with disposed(create_engine("sqlite://", connect_args={"check_same_thread": False})) as engine:
        with engine.begin() as connection:
            connection.execute(text("CREATE TABLE t (x)"))

        def look() -> None:
            try:
                with engine.connect() as connection:
                    connection.execute(text("SELECT * FROM t"))
            finally:
                engine.dispose()

        with pytest.raises(OperationalError, match="no such table"):
            _in_a_thread(look)


@pytest.mark.parametrize("make_engine", HOSTS.values(), ids=HOSTS)
def test_a_hosts_engine_on_memory_is_one_database_for_all_threads_or_refused(make_engine: Callable[[], Engine]) -> None:
    """H08."""
    with disposed(make_engine()) as engine:
        try:
            transport = TransportRepository(engine, naming=MOUNTED)
        except InvalidInput as error:
            assert "memory" in str(error)  # noqa: PT017  refusing is one of two right answers
            return
        migrate.upgrade(engine, naming=MOUNTED)
        transport.publish("g", Event(kind="k"))
        with engine.connect():  # which has the pool's first connection, so that the thread gets another one
            assert _in_a_thread(lambda: transport.claim("w", 5)) is not None


@pytest.mark.parametrize("kind", ["the default", "StaticPool"])
def test_a_session_of_a_hosts_on_memory_is_served(kind: str) -> None:
    """H08. It is one connection, so one database: what a host's tests use."""
    with disposed(HOSTS[kind]()) as engine, Session(engine) as session:
        migrate.upgrade(session, naming=MOUNTED)
        transport = TransportRepository(session, naming=MOUNTED)
        transport.publish("g", Event(kind="k"))
        session.commit()
        assert transport.claim("w", 5) is not None
        session.rollback()
        assert transport.claim("w", 5) is not None
        session.rollback()
