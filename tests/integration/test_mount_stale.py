"""A host that came too late: its lease went to another worker, or its snapshot is old. H24, H12."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from sqlalchemy import insert
from sqlalchemy.exc import OperationalError

from qstore import Event, Lease, StaleLease, StaleReceipt, StoreBusy
from tests.integration.host_modes import (
    BINDS,
    MODES,
    OPERATIONS,
    STORES,
    TRANSACTIONAL,
    HostDatabase,
    Order,
    Template,
    host_database,
    make_template,
)
from tests.integration.situations import write_lock_held

each_bind = pytest.mark.parametrize("bind", BINDS)
each_transactional_mode = pytest.mark.parametrize("mode", TRANSACTIONAL)
each_snapshot_mode = pytest.mark.parametrize("mode", [name for name, mode in MODES.items() if mode.snapshots])
UNBEGUN = [name for name, mode in MODES.items() if not mode.snapshots and not mode.lock_at_begin]
each_operation = pytest.mark.parametrize("operation", OPERATIONS)


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Template:
    return make_template(tmp_path_factory.mktemp("template"))


def _claimed_by_another(host: HostDatabase) -> Lease:
    """The lease has lapsed, and another worker has the message."""
    host.clock.advance(61)
    transport = STORES.transport(host.engine, clock=host.clock)
    leases = [transport.claim("another worker", 60), transport.claim("another worker", 60)]
    [again] = [lease for lease in leases if lease is not None and lease.seq == host.made.lease.seq]
    return again


def _handle(host: HostDatabase, transaction: AbstractContextManager[object], settled: Lease | str) -> None:
    """The effects of a message and its ack, whole or not at all."""
    with transaction:
        host.order("effect")
        host.localkv().put("effect", b"x")
        if isinstance(settled, str):
            host.localqueue().ack(settled)
        else:
            host.transport().ack(settled)


@each_transactional_mode
@each_bind
def test_a_stale_ack_raises_and_the_hosts_rows_go_with_it(
    mode: str, bind: str, template: Template, tmp_path: Path
) -> None:
    """Otherwise the effects of one message would be kept twice."""
    with host_database(tmp_path, mode, bind, template) as host:
        again = _claimed_by_another(host)
        before = host.stored()
        with pytest.raises(StaleLease, match="another worker"):
            _handle(host, host.bind.begin(), template.lease)
        assert (host.orders(), host.stored()) == ([], before)
        _handle(host, host.bind.begin(), again)
        assert host.orders() == ["effect"]


@each_transactional_mode
@each_bind
def test_a_stale_ack_in_a_savepoint_may_be_caught_and_the_rest_kept(
    mode: str, bind: str, template: Template, tmp_path: Path
) -> None:
    with host_database(tmp_path, mode, bind, template) as host:
        _claimed_by_another(host)
        before = host.stored()
        with host.bind.begin():
            host.order("kept")
            with pytest.raises(StaleLease):
                _handle(host, host.bind.begin_nested(), template.lease)
        assert (host.orders(), host.stored()) == (["kept"], before)


@each_transactional_mode
@each_bind
def test_a_stale_receipt_raises_and_the_hosts_rows_go_with_it(
    mode: str, bind: str, template: Template, tmp_path: Path
) -> None:
    with host_database(tmp_path, mode, bind, template) as host:
        host.clock.advance(61)
        again, *_ = STORES.localqueue(host.engine, clock=host.clock).receive(5)
        before = host.stored()
        with pytest.raises(StaleReceipt):
            _handle(host, host.bind.begin(), template.receipt_handle)
        assert (host.orders(), host.stored()) == ([], before)
        _handle(host, host.bind.begin(), again.receipt_handle)
        assert host.orders() == ["effect"]


@each_snapshot_mode
@each_bind
@each_operation
def test_an_old_snapshot_is_store_busy_that_tells_what_happened_and_what_to_do(
    mode: str, bind: str, operation: str, template: Template, tmp_path: Path
) -> None:
    with host_database(tmp_path, mode, bind, template, wal=True) as host:
        host.look()
        host.sql("INSERT INTO orders VALUES ('another hand')")
        before = host.stored()
        with pytest.raises(StoreBusy) as caught:
            OPERATIONS[operation](host)
        told = str(caught.value)
        assert "another connection has written since this transaction first read" in told
        assert "roll back and repeat the whole transaction" in told
        assert "before reading" in told
        assert "database is locked" not in told
        assert isinstance(caught.value.__cause__, OperationalError)
        host.bind.rollback()
        assert host.stored() == before
        assert host.look() == ["another hand"]
        OPERATIONS[operation](host)
        host.bind.commit()
        assert host.stored() != before


@each_snapshot_mode
@each_bind
def test_the_trap_of_old_snapshots_is_real(mode: str, bind: str, template: Template, tmp_path: Path) -> None:
    with host_database(tmp_path, mode, bind, template, wal=True) as host:
        host.look()
        host.sql("INSERT INTO orders VALUES ('another hand')")
        with pytest.raises(OperationalError, match="database is locked"):
            host.bind.execute(insert(Order).values(name="order"))
        host.bind.rollback()


@pytest.mark.parametrize("mode", UNBEGUN)
@each_bind
def test_where_a_read_begins_nothing_there_is_no_snapshot_to_be_old(
    mode: str, bind: str, template: Template, tmp_path: Path
) -> None:
    with host_database(tmp_path, mode, bind, template, wal=True) as host:
        host.look()
        host.sql("INSERT INTO orders VALUES ('another hand')")
        host.transport().publish("new", Event(kind="new"))
        host.order()
        host.bind.commit()
        assert host.orders() == ["another hand", "order"]


@each_snapshot_mode
@each_bind
@pytest.mark.parametrize("wal", [True, False], ids=["WAL", "rollback journal"])
def test_a_lock_that_is_taken_after_the_hosts_read_is_not_told_as_a_wait(
    mode: str, bind: str, wal: bool, template: Template, tmp_path: Path
) -> None:
    """SQLite waits for no lock in a transaction that has read. The holder's commit will make the snapshot old, so that
    it is the transaction that must be repeated, not the call."""
    with host_database(tmp_path, mode, bind, template, wal=wal, patience=50) as host:
        host.look()
        with write_lock_held(host.path), pytest.raises(StoreBusy) as caught:
            host.transport().publish("new", Event(kind="new"))
        host.bind.rollback()
        assert "for the whole of the wait" not in str(caught.value)
        assert "roll back" in str(caught.value)


@each_transactional_mode
@each_bind
@each_operation
def test_a_lock_that_is_not_had_in_time_is_store_busy_and_the_call_may_be_repeated(
    mode: str, bind: str, operation: str, template: Template, tmp_path: Path
) -> None:
    with host_database(tmp_path, mode, bind, template, wal=True, patience=50) as host:
        before = host.stored()
        with write_lock_held(host.path), pytest.raises(StoreBusy, match="kept the write lock"):
            OPERATIONS[operation](host)
        OPERATIONS[operation](host)
        host.order()
        host.bind.commit()
        assert host.stored() != before
        assert host.orders() == ["order"]
