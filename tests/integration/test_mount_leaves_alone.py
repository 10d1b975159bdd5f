"""Nothing of the host's changes by mounting, upgrading and every operation: compared before and after. H11."""

from __future__ import annotations

import logging
import shutil
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, MetaData, NullPool, Pool, create_engine, event
from sqlalchemy.engine.interfaces import Dialect
from sqlalchemy.orm import Mapper, Session, sessionmaker

from qstore import Event, migrate, mount
from qstore.engines.locking import WRITE_NOTHING
from tests.integration.host_modes import (
    BINDS,
    MODES,
    OPERATIONS,
    STORES,
    HostDatabase,
    Order,
    Template,
    host_database,
    make_template,
)
from tests.integration.situations import disposed, host_engine

each_bind = pytest.mark.parametrize("bind", BINDS)
each_mode = pytest.mark.parametrize("mode", MODES)

PRAGMAS = (
    *("busy_timeout", "cache_size", "defer_foreign_keys", "foreign_keys", "journal_mode", "journal_size_limit"),
    *("locking_mode", "mmap_size", "query_only", "read_uncommitted", "recursive_triggers", "secure_delete"),
    *("synchronous", "temp_store", "trusted_schema", "wal_autocheckpoint", "writable_schema"),
)


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Template:
    return make_template(tmp_path_factory.mktemp("template"))


def _listeners(target: Any) -> dict[str, list[object]]:
    dispatch = target.dispatch
    return {name: list(getattr(dispatch, name)) for name in dispatch._event_names}


def _class_listeners() -> dict[type, dict[str, list[object]]]:
    """What fires for every engine, pool, session, mapper and metadata of the process."""
    kinds = (Engine, Connection, Pool, Dialect, Session, sessionmaker, Mapper, MetaData)
    found: dict[type, dict[str, list[object]]] = {}
    for kind in kinds:
        dispatch: Any = getattr(kind, "dispatch", None)
        if dispatch is not None:
            found[kind] = {
                name: list(getattr(dispatch, name)._clslevel.get(kind, ())) for name in dispatch._event_names
            }
    return found


def _settings(engine: Engine, connection: Connection) -> dict[str, object]:
    driver = connection.connection.driver_connection
    assert driver is not None
    return {
        **{name: driver.execute(f"PRAGMA {name}").fetchall() for name in PRAGMAS},
        "level": (connection.get_isolation_level(), connection.default_isolation_level, driver.isolation_level),
        "autocommit": getattr(driver, "autocommit", None),
        "factories": (driver.row_factory, driver.text_factory),
        "options": (dict(connection.get_execution_options()), dict(engine.get_execution_options())),
    }


def _of_engine(engine: Engine) -> dict[str, object]:
    """What there is to see of an engine, on the connection that operations used and on one of its own."""
    with engine.connect() as pooled:
        used = _settings(engine, pooled)
        with engine.connect() as fresh:
            new = _settings(engine, fresh)
    return {
        "used": used,
        "new": new,
        "listeners": [_listeners(target) for target in (engine, engine.pool, engine.dialect)],
        "pool": (type(engine.pool), engine.pool.status()),
        "echo": engine.echo,
        "dialect": {
            name: value for name, value in vars(engine.dialect).items() if "isolation" in name or "begin" in name
        },
    }


def _of_logging() -> dict[str, tuple[object, ...]]:
    """The loggers, without those that have nothing of their own."""
    names = [name for name, it in logging.root.manager.loggerDict.items() if isinstance(it, logging.Logger)]
    loggers = [logging.root, *map(logging.getLogger, sorted(names))]
    found = {it.name: (it.level, list(it.handlers), it.propagate, it.disabled, list(it.filters)) for it in loggers}
    return {name: state for name, state in found.items() if state != (logging.NOTSET, [], True, False, [])}


def _all_operations(host: HostDatabase) -> None:
    for act in OPERATIONS.values():
        act(host)
    host.localkv().put("expired", b"", ttl=0)
    assert host.localkv().get("expired") is None
    assert host.localkv().scan_prefix("").items


@each_mode
@each_bind
def test_the_hosts_engine_is_as_it_was_after_every_operation_and_an_upgrade(
    mode: str, bind: str, template: Template, tmp_path: Path
) -> None:
    with host_database(tmp_path, mode, bind, template) as host:
        host.bind.close()
        before, logs, classes = _of_engine(host.engine), _of_logging(), _class_listeners()
        host.bind = BINDS[bind](host.engine)
        migrate.upgrade(host.bind, naming=STORES.naming)
        _all_operations(host)
        host.bind.commit()
        host.bind.close()
        migrate.upgrade(host.engine, naming=STORES.naming)
        migrate.check(host.engine, naming=STORES.naming)
        host.bind = host.engine
        host.clock.advance(61)
        assert host.transport().claim("w", 5) is not None
        assert host.localkv().get("expired") is None
        assert _of_engine(host.engine) == before
        assert _of_logging() == logs
        assert _class_listeners() == classes


@each_mode
def test_mounting_touches_no_engine_and_no_class(mode: str, tmp_path: Path, template: Template) -> None:
    with host_database(tmp_path, mode, "Connection", template) as host:
        before, logs, classes = _of_engine(host.engine), _of_logging(), _class_listeners()
        metadata = MetaData()
        listeners = _listeners(metadata)
        stores = mount(metadata, prefix="more_")
        for bound in (host.engine, host.bind):
            stores.transport(bound).close()
            stores.localkv(bound).close()
            stores.localqueue(bound).close()
        assert (_of_engine(host.engine), _of_logging(), _class_listeners()) == (before, logs, classes)
        assert _listeners(metadata) == listeners
        assert not host.bind.in_transaction()


def test_a_second_engine_of_the_hosts_with_its_own_settings_is_left_alone(template: Template, tmp_path: Path) -> None:
    with disposed(host_engine(tmp_path / "other.sqlite", poolclass=NullPool)) as other:
        event.listen(other, "connect", lambda driver, _record: driver.execute("PRAGMA busy_timeout = 7").close())
        before = _of_engine(other)
        with host_database(tmp_path, "legacy", "Session", template) as host:
            _all_operations(host)
            host.bind.commit()
        assert _of_engine(other) == before


def test_the_comparison_would_see_a_change(template: Template, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with host_database(tmp_path, "legacy", "Session", template) as host:
        before, classes = _of_engine(host.engine), _class_listeners()
        with host.engine.connect() as connection:
            connection.exec_driver_sql("PRAGMA busy_timeout = 7")
        assert _of_engine(host.engine) != before

        def listener(*_: object) -> None:
            """Hear of a begin."""

        monkeypatch.setattr(Engine, "_has_events", Engine._has_events)  # which stays, when the listener has gone
        event.listen(Engine, "begin", listener)
        try:
            assert _class_listeners() != classes
        finally:
            event.remove(Engine, "begin", listener)


@each_mode
def test_a_session_keeps_its_settings_its_objects_and_what_waits_to_be_flushed(
    mode: str, template: Template, tmp_path: Path
) -> None:
    with host_database(tmp_path, mode, "Session", template) as host:
        host.sql("INSERT INTO orders VALUES ('loaded')")
        session: Session = host.bind
        loaded = session.get(Order, "loaded")
        assert loaded is not None
        waiting = Order(name="waiting")
        session.add(waiting)

        def state() -> tuple[object, ...]:
            return (
                session.autoflush,
                session.expire_on_commit,
                session.is_active,
                dict(session.info),
                set(session.new),
                set(session.dirty),
                set(session.deleted),
                set(session.identity_map.keys()),
                dict(vars(loaded)),
                session.get_transaction(),
                session.get_nested_transaction(),
                _listeners(session),
            )

        before = state()
        _all_operations(host)
        assert state() == before
        assert set(session.new) == {waiting}
        session.commit()
        assert host.orders() == ["loaded", "waiting"]


@each_mode
@pytest.mark.parametrize("bound_to", [*BINDS, "Engine"])
def test_the_hosts_listener_sees_every_statement_that_sqlite_runs(
    mode: str, bound_to: str, template: Template, tmp_path: Path
) -> None:
    """But for BEGIN, COMMIT and ROLLBACK, and what waits for the write lock or takes it.

    The driver shows a statement again for each step of a trigger.
    """
    with host_database(tmp_path, mode, "Connection", template) as host:
        host.bind.close()
        ran: list[str] = []
        seen: list[str] = []
        event.listen(host.engine.pool, "checkout", lambda driver, *_: driver.set_trace_callback(ran.append))
        event.listen(host.engine, "before_cursor_execute", lambda _c, _cursor, statement, *_: seen.append(statement))
        host.bind = BINDS[bound_to](host.engine) if bound_to in BINDS else host.engine
        _all_operations(host)
        host.transport().publish("new", Event(kind="new"))
        if bound_to in BINDS:
            host.bind.close()
        unseen = _starts(ran)
        for start in _starts(seen):
            assert start in unseen
            unseen.remove(start)
        assert unseen == []


def _starts(statements: list[str]) -> list[str]:
    """The statements up to their first value, each once in a row."""
    locking = ("BEGIN", "COMMIT", "ROLLBACK", "BEGIN IMMEDIATE", WRITE_NOTHING)
    starts = (
        " ".join(it.split())[:25]
        for it in statements
        if it.strip().rstrip(" ;") not in locking and not it.startswith("PRAGMA busy_timeout")
    )
    return [start for start, _ in groupby(starts)]


@pytest.mark.parametrize("level", ["SERIALIZABLE", "READ UNCOMMITTED", "AUTOCOMMIT"])
def test_an_isolation_level_that_the_host_chose_stays(level: Any, template: Template, tmp_path: Path) -> None:
    shutil.copyfile(template.path, tmp_path / "host.sqlite")
    with disposed(create_engine(f"sqlite:///{tmp_path / 'host.sqlite'}", isolation_level=level)) as engine:
        before = _of_engine(engine)
        with engine.connect() as connection:
            STORES.localkv(connection).put("level", b"")
            connection.rollback()
        with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            STORES.localkv(connection).put("level", b"")
        assert STORES.localkv(engine).get("level") == b""
        STORES.localkv(engine).delete("level")
        assert _of_engine(engine) == before
