"""The mounted classes among a host's own: in queries, in joins, under the same names, and known to nobody else."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import ForeignKey, event, func, select
from sqlalchemy import inspect as inspected
from sqlalchemy.orm import (
    DeclarativeBase,
    Mapped,
    Mapper,
    Session,
    aliased,
    configure_mappers,
    mapped_column,
    relationship,
)

from qstore import Event, MountedStores, models, mount
from tests.backends import ManualClock
from tests.integration.situations import disposed, host_engine

NAMES = ("TransportMessage", "TransportGroup", "KvMeta", "KvEntry", "QueueMeta", "QueueMessage")


class Host:
    """A host with classes of the names that the stores and their records have."""

    def __init__(self) -> None:
        class Base(DeclarativeBase):
            pass

        class QueueMessage(Base):
            __tablename__ = "messages"
            id: Mapped[int] = mapped_column(primary_key=True)
            text: Mapped[str]
            events: Mapped[list[Any]] = relationship("Event", back_populates="message")

        class Event(Base):
            __tablename__ = "event"
            id: Mapped[int] = mapped_column(primary_key=True)
            message_id: Mapped[int] = mapped_column(ForeignKey("messages.id"))
            message: Mapped[Any] = relationship("QueueMessage", back_populates="events")

        class Meta(Base):
            __tablename__ = "meta"
            key: Mapped[str] = mapped_column(primary_key=True)

        self.base: type[DeclarativeBase] = Base
        self.message: Any = QueueMessage
        self.event: Any = Event


@pytest.fixture
def host() -> Host:
    return Host()


@pytest.fixture
def stores(host: Host) -> MountedStores:
    return mount(host.base)


@pytest.fixture
def session(host: Host, stores: MountedStores, tmp_path: Path) -> Iterator[Session]:
    with disposed(host_engine(tmp_path / "host.sqlite")) as engine, Session(engine) as session:
        host.base.metadata.create_all(engine)
        yield session


def test_classes_of_the_hosts_under_the_same_names_do_not_clash(
    host: Host, stores: MountedStores, session: Session
) -> None:
    """A clash would show when the string in `relationship("QueueMessage")` is looked up."""
    session.add(host.event(message=host.message(text="the host's")))
    stores.localqueue(session).send("the store's")
    session.commit()
    assert session.scalars(select(host.event)).one().message.text == "the host's"
    assert session.scalars(select(stores.QueueMessage)).one().payload_data == "the store's"


def test_a_host_may_define_its_classes_after_the_mount() -> None:
    class Base(DeclarativeBase):
        pass

    stores = mount(Base)

    class QueueMessage(Base):
        __tablename__ = "messages"
        id: Mapped[int] = mapped_column(primary_key=True)

    configure_mappers()
    assert stores.QueueMessage.__table__.name == "qstore_localqueue_messages"  # type: ignore[attr-defined]  # a Table
    assert QueueMessage.__table__.name == "messages"  # type: ignore[attr-defined]  # a Table
    assert "messages" in Base.metadata.tables


def test_every_mapped_class_can_be_selected(stores: MountedStores, session: Session) -> None:
    clock = ManualClock()
    transport = stores.transport(session, clock=clock)
    transport.publish("g", Event(id="1", kind="k"), priority=3)
    transport.claim("w", 5)
    stores.localkv(session, clock=clock).put("k", b"v", ttl=1)
    queue = stores.localqueue(session, clock=clock)
    queue.send({"a": 1})
    [received] = queue.receive()
    message = session.scalars(select(stores.TransportMessage)).one()
    assert (message.seq, message.group_id, message.locked_by, message.lock_expiry) == (1, "g", "w", clock.now + 5)
    group = session.scalars(select(stores.TransportGroup)).one()
    assert (group.group_id, group.last_claimed_at, group.priority) == ("g", clock.now, 3)
    entry = session.scalars(select(stores.KvEntry)).one()
    assert (entry.key, entry.value, entry.expires_at) == ("k", b"v", (clock.now + 1) * 1000)
    queued = session.scalars(select(stores.QueueMessage).where(stores.QueueMessage.attempt > 0)).one()
    assert received.receipt_handle == f"{queued.id}:{queued.receipt_handle}"
    assert (queued.payload_type, queued.payload_data, queued.attempt) == ("json", '{"a":1}', 1)
    assert session.scalars(select(stores.QueueMessage).where(stores.QueueMessage.attempt > 1)).all() == []
    for meta, marker in ((stores.KvMeta, "localkv.v1"), (stores.QueueMeta, "localqueue.v1")):
        assert session.scalars(select(meta.value)).all() == [marker]


def test_mapped_classes_join_the_hosts_tables(host: Host, stores: MountedStores, session: Session) -> None:
    session.add_all([host.message(id=1, text="a"), host.message(id=2, text="b")])
    transport = stores.transport(session)
    transport.publish_many([("a", Event(kind="k")), ("a", Event(kind="l")), ("elsewhere", Event(kind="m"))])
    session.commit()
    waiting = aliased(stores.TransportMessage)
    counted = (
        select(host.message.text, func.count(waiting.seq))
        .join(waiting, waiting.group_id == host.message.text, isouter=True)
        .group_by(host.message.text)
        .order_by(host.message.text)
    )
    assert [tuple(row) for row in session.execute(counted)] == [("a", 2), ("b", 0)]


def test_a_host_class_may_have_a_view_of_the_mounted_rows(stores: MountedStores, host: Host, session: Session) -> None:
    host.message.waiting = relationship(
        stores.TransportMessage,
        primaryjoin=lambda: host.message.text == stores.TransportMessage.group_id,
        foreign_keys=stores.TransportMessage.group_id,
        viewonly=True,
    )
    session.add(host.message(text="g"))
    stores.transport(session).publish("g", Event(kind="k"))
    session.commit()
    assert [message.seq for message in session.scalars(select(host.message)).one().waiting] == [1]


def test_nothing_is_registered_with_the_hosts_classes_or_globally(host: Host) -> None:
    told: list[object] = []
    before = ({mapper.class_ for mapper in host.base.registry.mappers}, set(host.base.registry._class_registry))

    def tell(_mapper: object, class_: object) -> None:
        told.append(class_)

    event.listen(Mapper, "after_mapper_constructed", tell)
    try:
        stores = mount(host.base)
        configure_mappers()
    finally:
        event.remove(Mapper, "after_mapper_constructed", tell)
    assert ({mapper.class_ for mapper in host.base.registry.mappers}, set(host.base.registry._class_registry)) == before
    assert not any(issubclass(getattr(stores, name), host.base) for name in NAMES)
    assert set(told) == {getattr(stores, name) for name in NAMES}


@pytest.mark.parametrize("name", NAMES)
def test_a_mounted_class_has_the_native_ones_columns_and_leaves_that_alone(stores: MountedStores, name: str) -> None:
    mounted, native = inspected(getattr(stores, name)), inspected(getattr(models, name))
    assert mounted.columns.keys() == native.columns.keys()
    assert mounted.local_table.metadata is not native.local_table.metadata
    assert native.local_table.name in {"messages", "groups", "meta", "kv"}
    assert {index.name for index in native.local_table.indexes} <= {
        f"idx_messages_{name}" for name in ("visible", "fresh", "again", "group")
    }
    for column in native.columns:
        copied = mounted.columns[column.key]
        assert (copied.nullable, copied.primary_key, str(copied.type)) == (
            column.nullable,
            column.primary_key,
            str(column.type),
        )


def test_two_mounts_have_classes_of_their_own(host: Host, stores: MountedStores) -> None:
    other = mount(host.base, prefix="other_")
    for name in NAMES:
        assert getattr(other, name) is not getattr(stores, name)
        assert getattr(other, name).__name__ == name
