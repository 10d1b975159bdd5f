"""What a type checker infers of the public surface. mypy runs over this file; the tests run what it accepts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, assert_type

import pytest
from pydantic import JsonValue, TypeAdapter
from sqlalchemy import Engine, create_engine, select
from sqlalchemy.orm import Session, sessionmaker

from qstore import (
    Event,
    Lease,
    LocalKvRepository,
    LocalQueueRepository,
    MountedStores,
    ReceivedMessage,
    ScanPage,
    TransportRepository,
    models,
    mount,
    write_session,
)
from tests.typing.host import STORES, Base, Cancelled, Customer, Order


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    engine = create_engine(f"sqlite:///{tmp_path / 'host.sqlite'}")
    Base.metadata.create_all(engine)
    yield engine
    engine.dispose()


@pytest.fixture
def session(engine: Engine) -> Iterator[Session]:
    with Session(engine) as session:
        yield session


def test_mount_takes_a_base_or_a_metadata() -> None:
    assert_type(mount(Base), MountedStores)
    assert_type(mount(Base.metadata, prefix="other_", schema=None, stores=["localkv"]), MountedStores)


def test_mapped_classes_in_queries(session: Session) -> None:
    often = select(STORES.QueueMessage).where(STORES.QueueMessage.attempt > 3)
    assert_type(session.scalars(often).all(), Sequence[models.QueueMessage])
    row = session.execute(select(STORES.TransportMessage.seq, STORES.TransportMessage.locked_by)).first()
    if row is not None:
        seq, locked_by = row
        assert_type(seq, int)
        assert_type(locked_by, str | None)
    entry = session.get(STORES.KvEntry, "k")
    assert_type(entry, models.KvEntry | None)
    expiries = session.scalars(select(STORES.KvEntry.expires_at).where(STORES.KvEntry.key.startswith("a"))).all()
    assert_type(expiries, Sequence[int | None])
    joined = select(Customer, STORES.TransportGroup).join(
        STORES.TransportGroup, STORES.TransportGroup.group_id == Customer.name
    )
    for customer, group in session.execute(joined):
        assert_type(customer, Customer)
        assert_type(group, models.TransportGroup)


def test_the_default_event(engine: Engine, session: Session) -> None:
    assert_type(TransportRepository(engine), TransportRepository[Event])
    with engine.connect() as connection:
        assert_type(TransportRepository(connection), TransportRepository[Event])
        assert_type(STORES.transport(connection), TransportRepository[Event])
    assert_type(TransportRepository(session), TransportRepository[Event])
    assert_type(STORES.transport(engine), TransportRepository[Event])
    assert_type(STORES.transport(session).claim("w", 5), Lease[Event] | None)


def test_the_default_event_of_an_opened_store(tmp_path: Path) -> None:
    with TransportRepository.open(tmp_path / "transport.sqlite") as transport:
        assert_type(transport, TransportRepository[Event])
        transport.publish("g", Event(kind="k"))
        lease = transport.claim("w", 5)
        assert_type(lease, Lease[Event] | None)
        assert lease is not None
        assert_type(lease.event, Event)
        assert_type(lease.event.data, dict[str, Any])
        assert_type(transport.extend(lease, 5), Lease[Event])


def test_a_model_of_the_callers(session: Session, tmp_path: Path) -> None:
    orders = STORES.transport(session, event_type=Order)
    assert_type(orders, TransportRepository[Order])
    assert_type(orders.publish("g", Order(number=1)), int)
    assert_type(orders.publish_many([("g", Order(number=2)), ("g", Order(number=3), 1)]), list[int])
    assert_type(orders.claim("w", 5), Lease[Order] | None)
    assert_type(TransportRepository(session, event_type=Order), TransportRepository[Order])
    with TransportRepository.open(tmp_path / "orders.sqlite", event_type=Order) as opened:
        opened.publish("g", Order(number=1))
        lease = opened.claim("w", 5)
        assert lease is not None
        assert_type(lease.event.number, int)


def test_a_union_by_its_type_adapter(session: Session) -> None:
    adapter: TypeAdapter[Order | Cancelled] = TypeAdapter(Order | Cancelled)
    happenings = STORES.transport(session, event_type=adapter)
    assert_type(happenings, TransportRepository[Order | Cancelled])
    happenings.publish("g", Cancelled(reason="no"))
    lease = happenings.claim("w", 5)
    assert lease is not None
    event = lease.event
    assert_type(event, Order | Cancelled)
    if isinstance(event, Cancelled):
        assert_type(event.reason, str)
    assert_type(TransportRepository(session, event_type=adapter), TransportRepository[Order | Cancelled])


def test_an_event_of_another_type_is_an_error_to_the_checker_and_at_run_time(session: Session) -> None:
    """mypy tells of an ignored error that is none."""
    orders = STORES.transport(session, event_type=Order)
    with pytest.raises(TypeError):
        orders.publish("g", Event(kind="k"))  # type: ignore[arg-type]  # it must not pass
    with pytest.raises(TypeError):
        orders.ack("1:abc")  # type: ignore[arg-type]  # it must not pass
    with pytest.raises(TypeError):
        STORES.localkv(session).put("k", "text")  # type: ignore[arg-type]  # it must not pass
    with pytest.raises(TypeError):
        STORES.transport("sqlite://")  # type: ignore[call-overload]  # it must not pass


def test_the_key_value_store(session: Session, tmp_path: Path) -> None:
    kv = STORES.localkv(session)
    assert_type(kv, LocalKvRepository)
    assert_type(kv.put("k", b"v"), bool)
    assert_type(kv.get("k"), bytes | None)
    assert_type(kv.scan_prefix("k"), ScanPage)
    assert_type(kv.scan_prefix("k").items, list[tuple[str, bytes]])
    assert_type(kv.scan_prefix("k").next_cursor, str | None)
    assert_type(kv.iter_prefix("k"), Iterator[tuple[str, bytes]])
    with LocalKvRepository.open(tmp_path) as opened:
        assert_type(opened, LocalKvRepository)


def test_the_queue(session: Session, tmp_path: Path) -> None:
    queue = STORES.localqueue(session)
    assert_type(queue, LocalQueueRepository)
    assert_type(queue.send({"a": [1, None]}), int)
    queue.send(Order(number=1))
    messages = queue.receive(2)
    assert_type(messages, list[ReceivedMessage])
    assert_type(messages[0].payload, JsonValue)
    assert_type(messages[0].receipt_handle, str)
    with LocalQueueRepository.open(tmp_path) as opened:
        assert_type(opened, LocalQueueRepository)


def test_write_session(engine: Engine) -> None:
    with write_session(engine) as session:
        assert_type(session, Session)
    with write_session(sessionmaker(engine)) as session:
        assert_type(session, Session)


def test_classes_derived_from_a_repository_open_as_themselves(tmp_path: Path) -> None:
    class Orders(TransportRepository[Order]):
        pass

    with Orders.open(tmp_path / "orders.sqlite", event_type=Order) as orders:
        assert_type(orders, Orders)
        assert_type(orders.claim("w", 5), Lease[Order] | None)
