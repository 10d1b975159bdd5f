"""`write_session`: the lock first, so that what was read is still so when it comes to writing."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, event, insert, select, text
from sqlalchemy.exc import IntegrityError, OperationalError
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from qstore import Event, InvalidType, StaleLease, StoreBusy, write_session
from tests import write_lock
from tests.integration.host_modes import MODES, STORES, HostDatabase, Order, Template, host_database, make_template
from tests.integration.situations import write_lock_held

each_mode = pytest.mark.parametrize("mode", MODES)
each_way = pytest.mark.parametrize("way", ["Engine", "sessionmaker"])


class HostSession(Session):
    """A host's own kind of session."""


WAYS: dict[str, Callable[[Engine], Any]] = {
    "Engine": lambda engine: engine,
    "sessionmaker": lambda engine: sessionmaker(engine, class_=HostSession, expire_on_commit=False, autoflush=False),
}


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Template:
    return make_template(tmp_path_factory.mktemp("template"))


@pytest.fixture
def host(request: pytest.FixtureRequest, template: Template, tmp_path: Path) -> Iterator[HostDatabase]:
    """A host that runs its transactions in the test's mode, in a file with a write-ahead log."""
    mode = request.node.callspec.params["mode"]
    with host_database(tmp_path, mode, "Connection", template, wal=True) as host:
        host.bind.close()
        yield host


def _orders(session: Session) -> list[str]:
    return list(session.scalars(select(Order.name)))


@each_mode
@each_way
def test_what_was_read_holds_until_the_end_and_all_is_committed_there(host: HostDatabase, mode: str, way: str) -> None:
    with write_session(WAYS[way](host.engine)) as session:
        assert _orders(session) == []
        with pytest.raises(Exception, match="locked"):
            host.sql("INSERT INTO orders VALUES ('another hand')")
        session.add(Order(name="order"))
        seq = STORES.transport(session, clock=host.clock).publish("new", Event(kind="new"))
        STORES.localkv(session, clock=host.clock).put("taken", b"new")
        assert host.orders() == []
    assert host.orders() == ["order"]
    with Session(host.engine) as session:
        assert session.get(STORES.TransportMessage, seq) is not None
    assert write_lock.is_free(host.path)


@each_mode
def test_without_it_the_same_reading_and_writing_comes_too_late(host: HostDatabase, mode: str) -> None:
    """What the session is for, in the modes where a read begins the transaction."""
    with Session(host.engine) as session:
        assert _orders(session) == []
        if MODES[mode].lock_at_begin:
            assert not write_lock.is_free(host.path)
            return
        host.sql("INSERT INTO orders VALUES ('another hand')")
        if MODES[mode].snapshots:
            with pytest.raises(StoreBusy):
                STORES.transport(session).publish("new", Event(kind="new"))
        else:
            STORES.transport(session).publish("new", Event(kind="new"))


@each_mode
def test_counting_in_many_threads_loses_nothing(host: HostDatabase, mode: str) -> None:
    """Each round reads the last number, writes the next one, and publishes it."""
    errors: list[BaseException] = []

    def count(times: int) -> None:
        try:
            for _ in range(times):
                with write_session(host.engine) as session:
                    number = len(_orders(session))
                    session.add(Order(name=f"{number:03}"))
                    STORES.transport(session).publish("numbers", Event(kind=str(number)))
        except BaseException as error:  # noqa: BLE001  told in the test's thread
            errors.append(error)

    threads = [threading.Thread(target=count, args=(5,)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert errors == []
    assert host.orders() == [f"{number:03}" for number in range(20)]
    published = host.sql(
        "SELECT json_extract(event, '$.kind') FROM qstore_transport_messages WHERE group_id = 'numbers'"
    )
    assert [int(kind) for (kind,) in published] == list(range(20))


@each_mode
@each_way
@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, StaleLease])
def test_an_error_rolls_back_and_goes_on_to_the_caller(
    host: HostDatabase, mode: str, way: str, error: type[BaseException]
) -> None:
    before = host.stored()

    def work() -> None:
        with write_session(WAYS[way](host.engine)) as session:
            session.add(Order(name="order"))
            session.flush()
            STORES.transport(session).publish("new", Event(kind="new"))
            STORES.localkv(session).put("taken", b"new")
            raise StaleLease("late", seq=1) if error is StaleLease else error("no")

    with pytest.raises(error):
        work()
    assert (host.orders(), host.stored()) == ([], before)
    assert write_lock.is_free(host.path)


@each_mode
@each_way
def test_an_error_in_the_last_flush_rolls_back(host: HostDatabase, mode: str, way: str) -> None:
    host.sql("INSERT INTO orders VALUES ('taken')")
    before = host.stored()

    def work() -> None:
        with write_session(WAYS[way](host.engine)) as session:
            STORES.localqueue(session).send("m")
            session.add(Order(name="taken"))

    with pytest.raises(IntegrityError):
        work()
    assert host.stored() == before
    assert write_lock.is_free(host.path)


@each_mode
def test_an_error_in_the_commit_rolls_back(host: HostDatabase, mode: str) -> None:
    """A foreign key that is checked at the end."""
    event.listen(host.engine, "connect", lambda driver, _record: _enforce_foreign_keys(driver))
    host.engine.dispose()
    host.sql("CREATE TABLE lines (name TEXT REFERENCES orders (name) DEFERRABLE INITIALLY DEFERRED)")
    before = host.stored()

    def work() -> None:
        with write_session(host.engine) as session:
            STORES.localqueue(session).send("m")
            session.execute(text("INSERT INTO lines VALUES ('no such order')"))

    with pytest.raises(IntegrityError):
        work()
    assert host.stored() == before
    assert write_lock.is_free(host.path)


def _enforce_foreign_keys(driver: Any) -> None:
    driver.rollback()  # SQLite changes this in no transaction, and the driver may always be in one
    level, driver.isolation_level = driver.isolation_level, None
    autocommit = getattr(driver, "autocommit", None)
    if autocommit is False:
        driver.autocommit = True
    driver.execute("PRAGMA foreign_keys = ON").close()
    if autocommit is False:
        driver.autocommit = False
    driver.isolation_level = level


@each_mode
@each_way
def test_a_lock_that_is_not_had_is_store_busy_and_nothing_ran(
    mode: str, way: str, template: Template, tmp_path: Path
) -> None:
    entered: list[Session] = []

    def work(host: HostDatabase) -> None:
        with write_session(WAYS[way](host.engine)) as session:
            entered.append(session)

    with host_database(tmp_path, mode, "Connection", template, wal=True, patience=50) as host:
        host.bind.close()
        before = host.stored()
        with write_lock_held(host.path), pytest.raises(StoreBusy, match="write lock"):
            work(host)
        assert entered == []
        assert host.stored() == before
        assert host.engine.pool.checkedout() == 0  # type: ignore[attr-defined]  # a QueuePool's
        work(host)
        assert len(entered) == 1


@each_mode
def test_the_trap_is_real_a_bare_session_is_told_that_the_database_is_locked(
    mode: str, template: Template, tmp_path: Path
) -> None:
    with (
        host_database(tmp_path, mode, "Connection", template, wal=True, patience=50) as host,
        write_lock_held(host.path),
        Session(host.engine) as session,
        pytest.raises(OperationalError, match="database is locked"),
    ):
        session.execute(insert(Order).values(name="order"))


@each_mode
@pytest.mark.parametrize("end", ["commit", "rollback"])
def test_the_host_may_end_the_transaction_itself_in_the_middle(host: HostDatabase, mode: str, end: str) -> None:
    with write_session(host.engine) as session:
        session.add(Order(name="first"))
        session.flush()
        getattr(session, end)()
        session.add(Order(name="second"))
    assert host.orders() == (["first", "second"] if end == "commit" else ["second"])
    assert write_lock.is_free(host.path)


@each_mode
def test_savepoints_inside_undo_their_part_alone(host: HostDatabase, mode: str) -> None:
    with write_session(host.engine) as session:
        STORES.localkv(session).put("a", b"1")
        savepoint = session.begin_nested()
        STORES.localkv(session).put("b", b"1")
        session.add(Order(name="undone"))
        session.flush()
        savepoint.rollback()
        session.add(Order(name="kept"))
    assert host.orders() == ["kept"]
    kv = STORES.localkv(host.engine)
    assert (kv.get("a"), kv.get("b")) == (b"1", None)


@pytest.mark.parametrize("mode", ["legacy"])
def test_the_session_is_what_the_sessionmaker_makes(host: HostDatabase, mode: str) -> None:
    with write_session(WAYS["sessionmaker"](host.engine)) as session:
        assert isinstance(session, HostSession)
        assert (session.autoflush, session.expire_on_commit) == (False, False)
        order = Order(name="order")
        session.add(order)
    assert order.name == "order"
    with write_session(host.engine) as session:
        assert not isinstance(session, HostSession)


@pytest.mark.parametrize("mode", ["legacy"])
def test_what_is_neither_an_engine_nor_a_sessionmaker_is_refused(host: HostDatabase, mode: str) -> None:
    with host.engine.connect() as connection, Session(host.engine) as session:
        for bind in (None, connection, session, scoped_session(sessionmaker(host.engine)), Session):
            given: Any = bind
            with pytest.raises(InvalidType) as caught:
                write_session(given).__enter__()
            assert caught.value.field == "bind"
