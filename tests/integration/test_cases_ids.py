"""H33: integers of 64 bits, and ids that never come back."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import BigInteger, MetaData, Table, create_engine, insert, select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from qstore import Event, LocalQueueRepository, TransportRepository, migrate, open_engine
from qstore.models import KvEntry, QueueMessage, TransportMessage
from tests.backends import Backend, ManualClock
from tests.integration.situations import disposed, new_store, plain

FAR = 4_102_444_800.0
"""The year 2100, in milliseconds far over 32 bits."""


class Base(DeclarativeBase):
    """A host's own."""


class Naive(Base):
    """A key as one writes it for PostgreSQL."""

    __tablename__ = "naive"

    id: Mapped[int] = mapped_column(BigInteger, primary_key=True)
    data: Mapped[str]


def test_the_traps_are_real_bigint_keys_fail_and_plain_rowids_come_back(tmp_path: Path) -> None:
    """H33."""
    path = tmp_path / "bare.sqlite"
    with disposed(create_engine(f"sqlite:///{path}")) as engine:
        Base.metadata.create_all(engine)
        with Session(engine) as session:
            session.add(Naive(data="a"))
            with pytest.raises(IntegrityError, match="NOT NULL"):
                session.flush()
    with plain(path) as bare:
        bare.execute("CREATE TABLE plain (id INTEGER PRIMARY KEY, data TEXT)")
        ids = []
        for _ in range(2):
            ids.append(bare.execute("INSERT INTO plain (data) VALUES ('a')").lastrowid)
            bare.execute("DELETE FROM plain")
        assert ids == [1, 1]


@pytest.mark.parametrize("model", [TransportMessage, QueueMessage])
def test_a_models_key_is_sqlites_own_with_autoincrement(model: type[Any], tmp_path: Path) -> None:
    """H33. Made from the model, and by the revisions."""
    table: Table = model.__table__
    with disposed(create_engine(f"sqlite:///{tmp_path}/model.sqlite")) as engine:
        table.metadata.create_all(engine)
        with engine.connect() as connection:
            made = connection.exec_driver_sql("SELECT sql FROM sqlite_master WHERE name = 'messages'").scalar_one()
    store = "transport" if model is TransportMessage else "localqueue"
    with plain(new_store(tmp_path, store)) as look:
        [(migrated,)] = look.execute("SELECT sql FROM sqlite_master WHERE name = 'messages'").fetchall()
    for sql in (made, migrated):
        first_column = " ".join(sql.split("(", 1)[1].split(",")[0].split())
        assert first_column in ("seq INTEGER PRIMARY KEY AUTOINCREMENT", "id INTEGER PRIMARY KEY AUTOINCREMENT")


def test_epoch_milliseconds_are_kept_whole(file_backend: Backend, clock: ManualClock) -> None:
    """H33."""
    backend = file_backend
    clock.now = FAR + 0.123
    kv, queue = backend.localkv(clock=clock), backend.localqueue(clock=clock)
    kv.put("a", b"", ttl=86_400)
    queue.send("a")
    queue.receive(visibility_timeout=0.001)
    assert backend.sql("localkv", "SELECT expires_at, typeof(expires_at) FROM {kv}") == [(4_102_531_200_123, "integer")]
    assert backend.sql("localqueue", "SELECT enqueued_at, visible_at FROM {messages}") == [
        (4_102_444_800_123, 4_102_444_800_124)
    ]


def test_the_mapped_classes_read_and_write_64_bits(tmp_path: Path) -> None:
    """H33."""
    with disposed(open_engine(new_store(tmp_path, "localkv"))) as engine, Session(engine) as session:
        session.execute(insert(KvEntry).values(key="a", value=b"", expires_at=2**63 - 1))
        assert session.scalars(select(KvEntry.expires_at)).all() == [2**63 - 1]
        session.rollback()
    with disposed(open_engine(new_store(tmp_path, "localqueue"))) as engine, Session(engine) as session:
        message = QueueMessage(payload_type="text", payload_data="a", enqueued_at=2**62, visible_at=2**62)
        session.add(message)
        session.flush()
        assert (message.id, message.visible_at) == (1, 2**62)


def _emptied_by_acks(queue: LocalQueueRepository) -> None:
    for message in queue.receive(9):
        queue.ack(message.receipt_handle)


@pytest.mark.parametrize("empty", [_emptied_by_acks, lambda queue: queue.purge()], ids=["acks", "a purge"])
def test_an_id_is_not_issued_again_and_an_old_handle_is_not_good_for_a_new_message(
    empty: Callable[[Any], object], backend: Backend, clock: ManualClock
) -> None:
    """H33."""
    queue = backend.localqueue(clock=clock)
    ids = queue.send_many(["a", "b"])
    old = queue.receive(2, visibility_timeout=0)
    empty(queue)
    ids.append(queue.send("c"))
    assert len(set(ids)) == 3
    assert ids == sorted(ids)
    for message in old:
        queue.nack(message.receipt_handle)
        queue.ack(message.receipt_handle)
    [left] = queue.receive(9)
    assert (left.id, left.payload, left.attempt) == (ids[-1], "c", 1)


def test_a_seq_is_not_issued_again_and_an_old_lease_is_not_good_for_a_new_message(
    backend: Backend, clock: ManualClock
) -> None:
    """H33. The same group, worker and instant: only the seq tells them apart."""
    transport = backend.transport(clock=clock)
    seqs, leases = [], []
    for _ in range(3):
        seqs.append(transport.publish("g", Event(kind="k")))
        lease = transport.claim("w", 5)
        assert lease is not None
        leases.append(lease)
        for old in leases[:-1]:
            transport.nack(old)
            transport.ack(old)
        assert transport.claim("w", 5) is None
        transport.ack(lease)
    assert len(set(seqs)) == 3
    assert seqs == sorted(seqs)


def test_ids_go_on_after_closing_vacuum_and_another_upgrade(tmp_path: Path) -> None:
    """H33."""
    path = new_store(tmp_path, "localqueue")
    with LocalQueueRepository.open(tmp_path) as queue:
        first = queue.send("a")
        queue.purge()
    with plain(path) as other:
        other.execute("VACUUM")
    with disposed(open_engine(path)) as engine:
        migrate.upgrade(engine)
    with LocalQueueRepository.open(tmp_path) as queue:
        assert queue.send("b") > first


@pytest.mark.parametrize("store", ["transport", "localqueue"])
def test_ids_are_still_never_reused_after_the_table_was_rebuilt_from_the_model(store: str, tmp_path: Path) -> None:
    """H33. As a batch migration of Alembic's does it: a new table, the rows copied, the old one dropped."""
    from alembic.migration import MigrationContext
    from alembic.operations import Operations

    path = new_store(tmp_path, store)

    def add() -> int:
        if store == "transport":
            with TransportRepository.open(path) as transport:
                return transport.publish("g", Event(kind="k"))
        with LocalQueueRepository.open(tmp_path) as queue:
            return queue.send("a")

    highest = add()
    with disposed(open_engine(path)) as engine, engine.begin() as connection:
        table: Any = {"transport": TransportMessage, "localqueue": QueueMessage}[store].__table__
        operations = Operations(MigrationContext.configure(connection))
        copied = table.to_metadata(MetaData())
        with operations.batch_alter_table("messages", recreate="always", copy_from=copied):
            pass
    newer = add()
    with plain(path) as other:
        other.execute("DELETE FROM messages")
    assert highest < newer < add()


@pytest.mark.parametrize("id", [2**31, 2**53 + 1, 2**63 - 1, 2**63, 10**40])
def test_a_handle_with_a_large_id_is_taken_as_it_is(id: int, tmp_path: Path) -> None:
    """H33. It is nobody's: nothing happens, to message 1 neither."""
    new_store(tmp_path, "localqueue")
    with LocalQueueRepository.open(tmp_path) as queue:
        queue.send("a")
        [message] = queue.receive()
        uuid = message.receipt_handle.partition(":")[2]
        queue.ack(f"{id}:{uuid}")
        queue.nack(f"{id}:{uuid}")
        assert queue.purge() == 1


def test_large_ids_are_issued_and_settled(tmp_path: Path) -> None:
    """H33. The last but one that SQLite has."""
    path = new_store(tmp_path, "localqueue")
    with plain(path) as other:
        other.execute("INSERT INTO sqlite_sequence VALUES ('messages', ?)", (2**63 - 3,))
    with LocalQueueRepository.open(tmp_path) as queue:
        assert queue.send("a") == 2**63 - 2
        [message] = queue.receive()
        queue.ack(message.receipt_handle)
        assert queue.purge() == 0
