"""Leases and receipts in a host's transaction that sees an old snapshot: what is true, or a conflict. H31."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from sqlalchemy import URL, Engine, create_engine, text
from sqlalchemy.orm import Session

from qstore import Lease, LocalQueueRepository, StaleLease, StaleReceipt, StoreBusy, TransportRepository
from tests.backends import MOUNTED

SETTLING = pytest.mark.parametrize("settling", ["ack", "nack", "park", "extend"])


@pytest.fixture(params=["REPEATABLE READ", "SERIALIZABLE"])
def host(request: pytest.FixtureRequest, url: URL) -> Iterator[Engine]:
    engine = create_engine(url, isolation_level=request.param)
    yield engine
    engine.dispose()


@pytest.fixture
def engine(url: URL) -> Iterator[Engine]:
    engine = create_engine(url)
    yield engine
    engine.dispose()


@contextmanager
def snapshot(host: Engine) -> Iterator[Session]:
    with Session(host) as session:
        session.execute(text("SELECT 1 FROM qstore_transport_groups")).all()
        yield session


def transport(bind: Any) -> TransportRepository[str]:
    return TransportRepository(bind, event_type=str, naming=MOUNTED)


def queue(bind: Any) -> LocalQueueRepository:
    return LocalQueueRepository(bind, naming=MOUNTED)


def claimed(bind: Any, visibility: float = 60) -> Lease[str]:
    lease = transport(bind).claim("w", visibility)
    assert lease is not None
    return lease


def received(bind: Any) -> str:
    [message] = queue(bind).receive()
    return message.receipt_handle


def settle(settling: str, bind: Any, lease: Lease[str]) -> None:
    calls: dict[str, Callable[[], object]] = {
        "ack": lambda: transport(bind).ack(lease),
        "nack": lambda: transport(bind).nack(lease),
        "park": lambda: transport(bind).nack(lease, 60),
        "extend": lambda: transport(bind).extend(lease, 60),
    }
    calls[settling]()


def contents(engine: Engine) -> list[tuple[Any, ...]]:
    with engine.connect() as connection:
        return [
            tuple(row)
            for table in ("transport_groups", "transport_messages", "localqueue_messages")
            for row in connection.execute(text(f"SELECT * FROM qstore_{table}"))
        ]


@SETTLING
@pytest.mark.parametrize("again", [False, True], ids=["drained", "there again"])
def test_a_message_that_was_gone_before_the_snapshot_is_gone_and_the_look_leaves_nothing(
    engine: Engine, host: Engine, settling: str, *, again: bool
) -> None:
    transport(engine).publish("g", "e")
    lease = claimed(engine)
    transport(engine).ack(lease)
    if again:
        transport(engine).publish("g", "another")
    before = contents(engine)
    with snapshot(host) as session:
        if settling == "extend":
            with pytest.raises(StaleLease):
                settle(settling, session, lease)
        else:
            settle(settling, session, lease)
        session.commit()
    assert contents(engine) == before


@SETTLING
def test_a_lease_that_was_stale_before_the_snapshot_is_stale(engine: Engine, host: Engine, settling: str) -> None:
    transport(engine).publish("g", "e")
    lease = claimed(engine)
    transport(engine).nack(lease)
    with snapshot(host) as session, pytest.raises(StaleLease):
        settle(settling, session, lease)
    claimed(engine)
    with snapshot(host) as session, pytest.raises(StaleLease):
        settle(settling, session, lease)


@SETTLING
@pytest.mark.parametrize("since", ["claimed", "published and claimed", "claimed again", "acked", "freed"])
def test_what_has_changed_since_the_snapshot_is_a_conflict_and_the_host_goes_on_or_begins_anew(
    engine: Engine, host: Engine, settling: str, since: str
) -> None:
    if since != "published and claimed":
        transport(engine).publish("g", "e")
    lease = claimed(engine) if since in ("claimed again", "acked", "freed") else None
    with snapshot(host) as session:
        if since == "published and claimed":
            transport(engine).publish("g", "e")
        if lease is None:
            lease = claimed(engine)
        elif since == "acked":
            transport(engine).ack(lease)
        else:
            transport(engine).nack(lease)
        if since == "claimed again":
            claimed(engine)
        before = contents(engine)
        with pytest.raises(StoreBusy):
            settle(settling, session, lease)
        assert session.execute(text("SELECT 1")).scalar() == 1
        session.rollback()
        assert contents(engine) == before
        good = since in ("claimed", "published and claimed")
        if good or (since == "acked" and settling != "extend"):
            settle(settling, session, lease)
        else:
            with pytest.raises(StaleLease):
                settle(settling, session, lease)
        session.commit()
    assert (contents(engine) != before) == good


@SETTLING
def test_a_claim_of_the_same_transaction_is_settled_in_it(host: Engine, settling: str) -> None:
    with snapshot(host) as session:
        transport(session).publish("g", "e")
        lease = claimed(session)
        settle(settling, session, lease)
        if settling == "ack":
            settle(settling, session, lease)  # the second one finds nothing
        else:
            with pytest.raises(StaleLease):
                settle("ack", session, lease)
        session.commit()
    left = contents(host)
    assert len(left) == (0 if settling == "ack" else 2)


@pytest.mark.parametrize("settling", ["ack", "nack"])
def test_the_same_is_true_of_receipts(engine: Engine, host: Engine, settling: str) -> None:
    def settled(bind: Any, handle: str) -> None:
        getattr(queue(bind), settling)(handle)

    queue(engine).send_many(["gone", "redelivered", "received later"])
    [gone, first] = [message.receipt_handle for message in queue(engine).receive(2)]
    queue(engine).ack(gone)
    queue(engine).nack(first)
    second = received(engine)
    before = contents(engine)
    with snapshot(host) as session:
        settled(session, gone)
        with pytest.raises(StaleReceipt):
            settled(session, first)
        assert contents(session.get_bind()) == before  # type: ignore[arg-type]  # it is an Engine
        late = received(engine)
        queue(engine).send("sent later")
        latest = received(engine)
        for handle in (late, latest):
            with pytest.raises(StoreBusy):
                settled(session, handle)
        settled(session, second)
        session.commit()
        settled(session, late)
        settled(session, latest)
        session.commit()
    assert len(contents(engine)) == (0 if settling == "ack" else 3)
