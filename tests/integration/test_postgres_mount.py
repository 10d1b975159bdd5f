"""Mounted on PostgreSQL: the host's rows and the stores' share one transaction, and nothing of the host changes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
from sqlalchemy import MetaData, select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from qstore import (
    BackendUnsupported,
    Event,
    FormatError,
    InvalidInput,
    StaleLease,
    StaleReceipt,
    StoreBusy,
    mount,
)
from tests.integration.postgres_host import BINDS, OPERATIONS, STORES, Order, PostgresHost, look, order, postgres_host

each_bind = pytest.mark.parametrize("bind", BINDS)
each_operation = pytest.mark.parametrize("operation", OPERATIONS)
LEVELS = ("READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE")


@pytest.fixture
def host() -> Iterator[PostgresHost]:
    with postgres_host() as host:
        yield host


Ending = Callable[[Any, Callable[[], object]], None]


def _commit(bind: Any, act: Callable[[], object]) -> None:
    order(bind)
    act()
    bind.commit()


def _rollback(bind: Any, act: Callable[[], object]) -> None:
    act()
    order(bind)
    bind.rollback()


def _savepoint_rollback(bind: Any, act: Callable[[], object]) -> None:
    order(bind)
    savepoint = bind.begin_nested()
    act()
    savepoint.rollback()
    bind.commit()


def _savepoint_kept_and_again(bind: Any, act: Callable[[], object]) -> None:
    """What was undone can be done again."""
    savepoint = bind.begin_nested()
    act()
    savepoint.rollback()
    with bind.begin_nested():
        act()
    order(bind)
    bind.commit()


def _read_first(bind: Any, act: Callable[[], object]) -> None:
    look(bind)
    act()
    order(bind)
    bind.commit()


ENDINGS: dict[str, tuple[Ending, bool, bool]] = {
    # Whether the operation, and whether the host's row, is kept.
    "commit": (_commit, True, True),
    "rollback": (_rollback, False, False),
    "savepoint rollback": (_savepoint_rollback, False, True),
    "done again": (_savepoint_kept_and_again, True, True),
    "read first": (_read_first, True, True),
}


USED_UP = ("claim and ack", "park", "extend", "receive and ack", "purge")
"""What these work on is gone after the other operations."""


@pytest.mark.parametrize(("bind", "level"), [("Connection", LEVELS[0]), *(("Session", level) for level in LEVELS)])
@pytest.mark.parametrize("ending", ENDINGS)
def test_each_operation_and_the_hosts_row_are_kept_or_undone_together(bind: str, level: Any, ending: str) -> None:
    end, operation_kept, row_kept = ENDINGS[ending]
    with postgres_host(isolation_level=level) as host:
        for operation in OPERATIONS.keys() - USED_UP if operation_kept else OPERATIONS.keys():
            before = host.stored()
            with BINDS[bind](host.engine) as it:
                end(it, partial(OPERATIONS[operation], host, it))
            assert (host.stored() != before) is operation_kept, operation
            assert host.orders() == (["order"] if row_kept else []), operation
            host.sql("DELETE FROM orders")


@each_bind
@pytest.mark.parametrize("operation", USED_UP)
def test_what_ends_a_delivery_commits_with_the_hosts_row(host: PostgresHost, bind: str, operation: str) -> None:
    before = host.stored()
    with BINDS[bind](host.engine) as it:
        order(it)
        OPERATIONS[operation](host, it)
        assert (host.stored(), host.orders()) == (before, [])
        it.commit()
    assert host.stored() != before
    assert host.orders() == ["order"]


@each_bind
def test_a_stale_ack_raises_in_the_hosts_transaction_and_undoes_itself_alone(host: PostgresHost, bind: str) -> None:
    transport, queue = STORES.transport(host.engine), STORES.localqueue(host.engine)
    transport.nack(host.lease)
    queue.nack(host.receipt_handle)
    claimed = [transport.claim("another", 60), transport.claim("another", 60)]
    assert {lease.group_id for lease in claimed if lease} == {"leased", "free"}
    queue.receive(3)
    before = host.stored()
    with BINDS[bind](host.engine) as it:
        order(it, "kept")
        with pytest.raises(StaleLease):
            STORES.transport(it).ack(host.lease)
        with pytest.raises(StaleReceipt):
            STORES.localqueue(it).ack(host.receipt_handle)
        assert look(it) == ["kept"]
        it.commit()
    assert (host.orders(), host.stored()) == (["kept"], before)


def test_a_stale_ack_in_a_begin_block_takes_the_hosts_rows_with_it(host: PostgresHost) -> None:
    transport = STORES.transport(host.engine)
    transport.nack(host.lease)
    assert transport.claim("another", 60)
    assert transport.claim("another", 60)

    def work() -> None:
        with Session(host.engine) as session, session.begin():
            session.add(Order(name="charged twice"))
            STORES.transport(session).ack(host.lease)

    with pytest.raises(StaleLease):
        work()
    assert host.orders() == []


@each_bind
def test_an_operation_that_fails_leaves_the_hosts_transaction_usable(host: PostgresHost, bind: str) -> None:
    host.sql("ALTER TABLE qstore_localkv_kv ADD CONSTRAINT small CHECK (length(value) < 10)")
    with BINDS[bind](host.engine) as it:
        order(it, "before")
        with pytest.raises(IntegrityError):
            STORES.localkv(it).put_many({"a": b"1", "b": b"1" * 20})
        with pytest.raises(InvalidInput):
            STORES.transport(it).publish("", Event(kind="k"))
        STORES.localkv(it).put("c", b"1")
        order(it, "after")
        it.commit()
    assert host.orders() == ["after", "before"]
    assert host.sql("SELECT key FROM qstore_localkv_kv ORDER BY key") == [("c",), ("taken",)]


@each_bind
@pytest.mark.parametrize("operation", ["put", "get", "scan", "claim", "receive"])
def test_without_the_tables_the_error_says_so_and_the_hosts_transaction_goes_on(
    host: PostgresHost, bind: str, operation: str
) -> None:
    with BINDS[bind](host.engine) as it:
        absent = mount(MetaData(), prefix="absent_")
        acts: dict[str, Callable[[], object]] = {
            "put": lambda: absent.localkv(it).put("k", b"v"),
            "get": lambda: absent.localkv(it).get("k"),
            "scan": lambda: absent.localkv(it).scan_prefix(""),
            "claim": lambda: absent.transport(it).claim("w", 5),
            "receive": lambda: absent.localqueue(it).receive(),
        }
        order(it)
        with pytest.raises(FormatError, match="does not have the tables"):
            acts[operation]()
        it.commit()
    assert host.orders() == ["order"]


@each_bind
def test_a_session_that_only_reads_reads_and_refuses_to_write_by_name(host: PostgresHost, bind: str) -> None:
    engine = host.engine.execution_options(postgresql_readonly=True)
    with BINDS[bind](engine) as it:
        assert STORES.localkv(it).get("taken") == b"old"
        assert STORES.localkv(it).exists("taken")
        with pytest.raises(BackendUnsupported, match="read-only"):
            STORES.localkv(it).put("k", b"v")
        with pytest.raises(BackendUnsupported, match="read-only"):
            STORES.transport(it).claim("w", 5)
        assert STORES.localkv(it).get("taken") == b"old"


@each_bind
def test_an_expired_key_is_absent_to_a_session_that_only_reads(host: PostgresHost, bind: str) -> None:
    STORES.localkv(host.engine).put("gone", b"v", ttl=0)
    with BINDS[bind](host.engine.execution_options(postgresql_readonly=True)) as it:
        assert STORES.localkv(it).get("gone") is None
        assert not STORES.localkv(it).exists("gone")


@pytest.mark.parametrize("level", ["REPEATABLE READ", "SERIALIZABLE"])
def test_a_stale_snapshot_of_the_hosts_is_store_busy_and_what_was_done_before_can_be_kept(level: Any) -> None:
    with postgres_host(isolation_level=level) as host, Session(host.engine) as session:
        assert look(session) == []
        order(session)
        host.sql("UPDATE qstore_localkv_kv SET value = 'another hand'")
        with pytest.raises(StoreBusy, match="roll back and repeat"):
            STORES.localkv(session).put("taken", b"new")
        session.commit()
        assert host.orders() == ["order"]


def test_all_six_mapped_classes_are_selected(host: PostgresHost) -> None:
    with Session(host.engine) as session:
        messages = session.scalars(select(STORES.TransportMessage).order_by(STORES.TransportMessage.seq)).all()
        assert [(it.seq, it.group_id, it.locked_by, it.lock_expiry) for it in messages] == [
            (host.lease.seq, "leased", "worker", host.lease.lock_expiry),
            (host.lease.seq + 1, "free", None, None),
        ]
        groups = session.scalars(select(STORES.TransportGroup).order_by(STORES.TransportGroup.group_id)).all()
        assert [(it.group_id, it.last_claimed_at > 1.7e9, it.priority) for it in groups] == [
            ("free", False, 0),
            ("leased", True, 0),
        ]
        [entry] = session.scalars(select(STORES.KvEntry)).all()
        assert (entry.key, entry.value, entry.expires_at) == ("taken", b"old", None)
        [queued] = session.scalars(select(STORES.QueueMessage).where(STORES.QueueMessage.attempt == 1)).all()
        assert host.receipt_handle == f"{queued.id}:{queued.receipt_handle}"
        assert queued.visible_at - queued.enqueued_at > 3_590_000
        for meta, marker in ((STORES.KvMeta, "localkv.v1"), (STORES.QueueMeta, "localqueue.v1")):
            assert [(it.key, it.value) for it in session.execute(select(meta.key, meta.value))] == [("format", marker)]


def test_a_scoped_session_is_joined(host: PostgresHost) -> None:
    sessions = scoped_session(sessionmaker(host.engine))
    order(sessions)
    STORES.localqueue(sessions).send("m")
    sessions.rollback()
    assert host.sql("SELECT count(*) FROM qstore_localqueue_messages") == [(3,)]
    sessions.remove()


def test_two_workers_in_transactions_of_their_own_claim_different_groups(host: PostgresHost) -> None:
    with Session(host.engine) as one, Session(host.engine) as two:
        first = STORES.transport(one).claim("1", 60)
        assert first is not None
        assert STORES.transport(two).claim("2", 60) is None
        one.rollback()
        second = STORES.transport(two).claim("2", 60)
        assert second is not None
        assert second.seq == first.seq
        STORES.transport(two).ack(second)
        two.commit()
