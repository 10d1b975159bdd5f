"""Mounted on PostgreSQL: which engine a session's operations go to, and that nothing of the host's engines changes."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import Connection, Delete, Engine, Insert, Pool, Update, create_engine, event, select, text
from sqlalchemy.orm import Mapper, Session, sessionmaker

from qstore import Event, migrate, write_session
from tests import postgres
from tests.integration.postgres_host import BINDS, OPERATIONS, STORES, Order, PostgresHost, look, postgres_host


@pytest.fixture
def host() -> Iterator[PostgresHost]:
    with postgres_host() as host:
        yield host


def test_a_session_with_two_binds_goes_to_the_database_of_the_mounted_tables(host: PostgresHost) -> None:
    other = create_engine(postgres.empty_database())
    try:
        with Session(other, binds={STORES.TransportMessage: host.engine, STORES.KvEntry: host.engine}) as session:
            STORES.localkv(session).put("k", b"v")
            assert session.execute(text("SELECT count(*) FROM pg_tables WHERE tablename LIKE 'qstore%'")).scalar() == 0
            session.commit()
        assert host.sql("SELECT key FROM qstore_localkv_kv ORDER BY key") == [("k",), ("taken",)]
    finally:
        other.dispose()


def test_a_session_that_routes_reads_to_a_replica_works_on_the_primary(host: PostgresHost) -> None:
    with postgres_host() as replica:
        on_replica: list[str] = []
        event.listen(replica.engine, "before_cursor_execute", lambda _c, _cursor, sql, *_: on_replica.append(sql))

        class RoutingSession(Session):
            def get_bind(self, mapper: Any = None, *, clause: Any = None, **_: Any) -> Engine:
                writes = self._flushing or isinstance(clause, (Insert, Update, Delete))
                return host.engine if writes else replica.engine

        sessions: sessionmaker[Any] = sessionmaker(class_=RoutingSession)
        with sessions() as session:
            for name, act in OPERATIONS.items():
                if name not in ("claim and ack", "park", "extend"):
                    with session.begin_nested() as savepoint:
                        act(host, session)
                        savepoint.rollback()
            assert STORES.localkv(session).get("taken") == b"old"
        with write_session(sessions) as session:
            session.add(Order(name="order"))
        assert host.orders() == ["order"]
        assert on_replica == []
        with sessions() as session:
            assert look(session) == []
            assert len(on_replica) == 1


def test_where_each_statement_commits_the_operation_is_whole_and_committed_when_it_returns() -> None:
    """A host's engine, or a connection of it, in AUTOCOMMIT."""
    with postgres_host(isolation_level="AUTOCOMMIT") as host:
        for operation in ("publish", "publish_many", "claim", "ack a lease", "put", "receive"):
            before = host.stored()
            with host.engine.connect() as connection:
                OPERATIONS[operation](host, connection)
                assert host.stored() != before, operation


def _listeners(target: Any) -> dict[str, list[object]]:
    dispatch = target.dispatch
    return {name: list(getattr(dispatch, name)) for name in dispatch._event_names}


def _of_classes() -> list[dict[str, list[object]]]:
    """What fires for every engine, pool, session and mapper of the process."""
    kinds: list[Any] = [Engine, Connection, Pool, Session, Mapper]
    return [
        {name: list(getattr(kind.dispatch, name)._clslevel.get(kind, ())) for name in kind.dispatch._event_names}
        for kind in kinds
    ]


def _of_engine(engine: Engine) -> dict[str, object]:
    """What there is to see of an engine and of the session that its pooled connection has on the server."""
    with engine.connect() as connection:
        driver: Any = connection.connection.driver_connection
        settings = connection.execute(
            text("SELECT name, setting FROM pg_settings WHERE source IN ('session', 'client') ORDER BY name")
        ).all()
        connection.rollback()
        server = {
            "settings": [tuple(row) for row in settings],
            "level": (connection.get_isolation_level(), connection.default_isolation_level),
            "driver": (driver.autocommit, driver.isolation_level, driver.read_only, driver.prepare_threshold),
            "options": (dict(connection.get_execution_options()), dict(engine.get_execution_options())),
        }
    return {
        **server,
        "listeners": [_listeners(target) for target in (engine, engine.pool, engine.dialect)],
        "pool": (type(engine.pool), engine.pool.status()),
        "logs": [
            (it.name, it.level, list(it.handlers)) for it in map(logging.getLogger, ("", "sqlalchemy", "alembic"))
        ],
    }


@pytest.mark.parametrize("level", ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE", "AUTOCOMMIT"])
@pytest.mark.parametrize("bind", [*BINDS, "Engine"])
def test_the_hosts_engine_is_as_it_was_after_an_upgrade_and_every_operation(bind: str, level: Any) -> None:
    with postgres_host(isolation_level=level, pool_size=1, max_overflow=0) as host:
        before, classes = _of_engine(host.engine), _of_classes()
        migrate.upgrade(host.engine, naming=STORES.naming)
        assert migrate.check(host.engine, naming=STORES.naming) == ()
        assert _of_engine(host.engine) == before
        for name, act in OPERATIONS.items():
            if name in ("claim and ack", "park", "extend", "receive and ack"):
                continue
            if bind == "Engine":
                act(host, host.engine)
            elif level != "AUTOCOMMIT":
                with BINDS[bind](host.engine) as it:
                    migrate.upgrade(it, naming=STORES.naming)
                    act(host, it)
                    it.commit()
            assert _of_engine(host.engine) == before, name
        assert (_of_engine(host.engine), _of_classes()) == (before, classes)


def test_the_comparison_would_see_a_change(host: PostgresHost) -> None:
    before = _of_engine(host.engine)
    with host.engine.connect() as connection:
        connection.execute(text("SET lock_timeout = 7"))
        connection.commit()
    assert _of_engine(host.engine) != before


def test_a_session_keeps_what_waits_to_be_flushed(host: PostgresHost) -> None:
    host.sql("INSERT INTO orders VALUES ('loaded')")
    with Session(host.engine) as session:
        loaded = session.get(Order, "loaded")
        waiting = Order(name="waiting")
        session.add(waiting)
        before = (set(session.new), set(session.identity_map.keys()), dict(vars(loaded)), session.get_transaction())
        STORES.transport(session).publish("g", Event(kind="k"))
        STORES.localkv(session).put("k", b"v")
        assert STORES.localkv(session).get("k") == b"v"
        assert STORES.localqueue(session).receive()
        after = (set(session.new), set(session.identity_map.keys()), dict(vars(loaded)), session.get_transaction())
        assert after == before
        assert session.get_nested_transaction() is None
        session.commit()
    assert host.orders() == ["loaded", "waiting"]


def test_a_write_session_commits_at_its_end_and_rolls_back_on_an_error(host: PostgresHost) -> None:
    for bind in (host.engine, sessionmaker(host.engine, expire_on_commit=False)):
        before = host.stored()

        def work(bind: Any = bind) -> None:
            with write_session(bind) as session:
                session.add(Order(name="lost"))
                STORES.localkv(session).put("taken", b"lost")
                raise ValueError("no")

        with pytest.raises(ValueError, match="no"):
            work()
        assert (host.orders(), host.stored()) == ([], before)
        with write_session(bind) as session:
            assert list(session.scalars(select(Order.name))) == []
            session.add(Order(name="order"))
            STORES.localkv(session).put("taken", b"new")
            assert host.orders() == []
        assert host.orders() == ["order"]
        assert STORES.localkv(host.engine).get("taken") == b"new"
        host.sql("DELETE FROM orders")
        STORES.localkv(host.engine).put("taken", b"old")
    assert host.engine.pool.checkedout() == 0  # type: ignore[attr-defined]  # a QueuePool's
