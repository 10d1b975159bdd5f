"""D5: a session that reads from a replica. What an operation looks at must be what it will write to."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Delete, Engine, Insert, Update, event, insert, select
from sqlalchemy.orm import Session, sessionmaker

from qstore import Event, write_session
from tests import write_lock
from tests.backends import ManualClock
from tests.integration.host_modes import STORES, Order, Template, make_template
from tests.integration.situations import disposed, host_engine, plain


class Routed:
    """A primary, a replica that lags behind for ever, and sessions that read from the replica."""

    def __init__(self, primary: Engine, replica: Engine, now: float) -> None:
        self.primary = primary
        self.clock = ManualClock(now)
        self.on_replica: list[str] = []
        event.listen(replica, "before_cursor_execute", lambda _c, _cursor, sql, *_: self.on_replica.append(sql))

        class RoutingSession(Session):
            def get_bind(self, mapper: Any = None, *, clause: Any = None, **_: Any) -> Engine:
                writes = self._flushing or isinstance(clause, (Insert, Update, Delete))
                return primary if writes else replica

        self.sessions = sessionmaker(class_=RoutingSession)


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Template:
    return make_template(tmp_path_factory.mktemp("template"))


@pytest.fixture
def routed(template: Template, tmp_path: Path) -> Iterator[Routed]:
    paths = [tmp_path / "primary.sqlite", tmp_path / "replica.sqlite"]
    for path in paths:
        shutil.copyfile(template.path, path)
    with disposed(host_engine(paths[0])) as primary, disposed(host_engine(paths[1])) as replica:
        routed = Routed(primary, replica, template.now)
        with plain(paths[1]) as look:
            before = list(look.iterdump())
        yield routed
        with plain(paths[1]) as look:
            assert list(look.iterdump()) == before  # a replica is never written to


def test_the_trap_is_real_reads_go_to_the_replica(routed: Routed) -> None:
    with routed.sessions() as session:
        session.add(Order(name="new"))
        session.flush()
        assert session.execute(insert(Order).values(name="other")).rowcount == 1  # type: ignore[attr-defined]  # an insert's result has it
        assert session.scalars(select(Order)).all() == []
        session.commit()
    assert len(routed.on_replica) == 1


def test_a_claim_leases_on_the_primary(routed: Routed) -> None:
    with routed.sessions() as session:
        lease = STORES.transport(session, clock=routed.clock).claim("w", 5)
        assert lease is not None
        session.commit()
    assert STORES.transport(routed.primary, clock=routed.clock).claim("another", 5) is None
    assert routed.on_replica == []


def test_a_message_that_was_published_and_its_order_commit_together_on_the_primary(routed: Routed) -> None:
    with routed.sessions() as session:
        session.add(Order(name="new"))
        seq = STORES.transport(session).publish("new", Event(kind="new"))
        session.commit()
    with Session(routed.primary) as session:
        assert session.get(Order, "new") is not None
        assert session.get(STORES.TransportMessage, seq) is not None


def test_a_get_after_a_put_finds_what_was_put(routed: Routed) -> None:
    """Also in a later session: a replica that lags would tell of the old value."""
    with routed.sessions() as session:
        kv = STORES.localkv(session)
        kv.put("taken", b"new")
        assert kv.get("taken") == b"new"
        session.commit()
    with routed.sessions() as session:
        assert STORES.localkv(session).get("taken") == b"new"
        assert STORES.localkv(session).exists("taken")
    assert routed.on_replica == []


def test_a_conditional_put_is_decided_on_the_primary(routed: Routed) -> None:
    STORES.localkv(routed.primary).put("once", b"first")
    with routed.sessions() as session:
        assert not STORES.localkv(session).put("once", b"second", if_not_exists=True)
        session.commit()
    assert STORES.localkv(routed.primary).get("once") == b"first"


def test_a_receive_delivers_from_the_primary(routed: Routed) -> None:
    with routed.sessions() as session:
        messages = STORES.localqueue(session, clock=routed.clock).receive(5)
        session.commit()
    assert STORES.localqueue(routed.primary, clock=routed.clock).receive(5) == []
    assert [message.payload for message in messages] == ["due", "due"]


def test_a_write_session_locks_the_primary(routed: Routed) -> None:
    with write_session(routed.sessions) as session:
        assert not write_lock.is_free(Path(routed.primary.url.database or ""))
        session.add(Order(name="new"))
    assert routed.on_replica == []
