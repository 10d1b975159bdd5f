"""A repository in a caller's transaction leaves that transaction to the caller. Semantics 2, 4, 5 and 22."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import Connection
from sqlalchemy import event as listening

from qstore import QstoreError, StoreBusy
from tests.backends import STORES, ManualClock
from tests.contract.contents import contents, unchanged
from tests.contract.filled import MIDDLES, READS, WRITES, fill
from tests.contract.hosts import PLAIN, Host
from tests.contract.locks import lock_is_free

each_write = pytest.mark.parametrize("write", WRITES)


@pytest.mark.parametrize("read_first", [False, True], ids=["first", "after a read"])
def test_the_callers_rollback_undoes_the_operation(host: Host, clock: ManualClock, read_first: bool) -> None:
    filled = fill(host, clock)
    for store, call in WRITES.values():
        with unchanged(host, *STORES):
            if read_first:
                host.look()
            call(host.joined(store, clock=clock), filled)
            host.order("after")
            host.bind.rollback()
    assert host.orders() == []


@each_write
def test_an_operation_takes_effect_with_the_callers_commit_and_not_before(
    host: Host, clock: ManualClock, write: str
) -> None:
    store, call = WRITES[write]
    filled = fill(host, clock)
    with unchanged(host, *STORES):
        call(host.joined(store, clock=clock), filled)
        host.order("after")
        assert host.orders() == []
    before = contents(host, store)
    host.bind.commit()
    assert contents(host, store) != before
    assert host.orders() == ["after"]


def test_an_operation_begins_commits_rolls_back_and_closes_nothing_of_the_callers(
    host: Host, clock: ManualClock
) -> None:
    filled = fill(host, clock)
    told: list[str] = []
    for name in ("begin", "commit", "rollback", "savepoint", "rollback_savepoint", "release_savepoint"):
        listening.listen(host.engine, name, lambda *_, name=name: told.append(name))
    for store, call in WRITES.values():
        host.order("before")
        told.clear()
        with host.joined(store, clock=clock) as repository:
            call(repository, filled)
        assert told == []
        assert host.bind.in_transaction()
        host.bind.rollback()
    host.order("last")
    host.bind.commit()
    assert host.orders() == ["last"]


@pytest.mark.parametrize("resolution", ["ABORT", "FAIL"])
@pytest.mark.parametrize("write", MIDDLES)
def test_an_error_in_the_middle_undoes_the_operation_and_the_callers_work_can_be_committed(
    host: Host, clock: ManualClock, write: str, resolution: str
) -> None:
    store, call = WRITES[write]
    filled = fill(host, clock)
    host.refuse(store, MIDDLES[write], resolution)
    with unchanged(host, *STORES):
        host.order("before")
        with pytest.raises(Exception, match="refused here") as caught:
            call(host.joined(store, clock=clock), filled)
        assert not isinstance(caught.value, QstoreError)
        host.order("after")
        host.bind.commit()
    assert host.orders() == ["after", "before"]


@pytest.mark.parametrize("write", MIDDLES)
def test_an_error_in_an_operation_that_came_first_undoes_it_too(host: Host, clock: ManualClock, write: str) -> None:
    store, call = WRITES[write]
    filled = fill(host, clock)
    host.refuse(store, MIDDLES[write])
    with unchanged(host, *STORES):
        with pytest.raises(Exception, match="refused here"):
            call(host.joined(store, clock=clock), filled)
        host.bind.commit()
    assert lock_is_free(host, store)


@pytest.mark.parametrize("write", MIDDLES)
def test_an_error_that_rolls_the_whole_transaction_back_leaves_nothing_to_commit(
    host: Host, clock: ManualClock, write: str
) -> None:
    store, call = WRITES[write]
    filled = fill(host, clock)
    host.refuse(store, MIDDLES[write], "ROLLBACK")
    with unchanged(host, *STORES):
        host.order("before")
        with pytest.raises(Exception, match="refused here"):
            call(host.joined(store, clock=clock), filled)
        host.bind.rollback()
    assert host.orders() == []
    host.order("next")
    host.bind.commit()
    assert host.orders() == ["next"]


def test_an_operation_in_a_savepoint_goes_with_it_and_leaves_the_rest(host: Host, clock: ManualClock) -> None:
    filled = fill(host, clock)
    for write, (store, call) in WRITES.items():
        with unchanged(host, *STORES):
            host.order(write)
            savepoint = host.nested()
            call(host.joined(store, clock=clock), filled)
            savepoint.rollback()
            host.bind.commit()
    assert host.orders() == sorted(WRITES)


@pytest.mark.parametrize("first", ["write", "savepoint"])
def test_a_rollback_undoes_an_operation_in_a_savepoint_that_ended_well(
    host: Host, clock: ManualClock, first: str
) -> None:
    """With SQLAlchemy's defaults the end of a savepoint that comes first commits, unless an operation is in it."""
    fill(host, clock)
    with unchanged(host, *STORES):
        if first == "write":
            host.joined("localkv").put("k", b"1")
        with host.nested():
            host.joined("localqueue").send("a")
            host.order("nested")
        host.bind.rollback()
    assert host.orders() == []


def test_the_trap_of_savepoints_with_sqlalchemys_defaults_is_real(host: Host) -> None:
    host.look()
    with host.nested():
        host.order("nested")
    host.bind.rollback()
    assert host.orders() == (["nested"] if host.kind == PLAIN else [])


@each_write
def test_a_lost_snapshot_is_store_busy_and_the_transaction_may_be_repeated(
    host: Host, clock: ManualClock, write: str
) -> None:
    """The caller's read came first, and somebody wrote since: SQLite cannot let this transaction write any more."""
    store, call = WRITES[write]
    filled = fill(host, clock)
    host.sql(store, "PRAGMA journal_mode = WAL")
    repository = host.joined(store, clock=clock)
    host.look()
    host.sql(store, "INSERT INTO orders VALUES ('another hand')")
    before = contents(host, store)
    if host.kind == PLAIN:  # a read begins no transaction there, so there is no snapshot to lose
        call(repository, filled)
    else:
        with pytest.raises(StoreBusy):
            call(repository, filled)
        assert contents(host, store) == before
        host.bind.rollback()
        host.look()
        call(repository, filled)
    host.bind.commit()
    assert contents(host, store) != before


@pytest.mark.parametrize("read", READS)
def test_a_read_in_the_callers_transaction_writes_nothing_and_takes_no_lock(
    host: Host, clock: ManualClock, read: str
) -> None:
    store, call = READS[read]
    filled = fill(host, clock)
    with unchanged(host, *STORES):
        assert call(host.joined(store, clock=clock), filled)
        assert lock_is_free(host, store)
        host.bind.commit()


def test_a_joined_repository_sees_what_the_transaction_wrote(host: Host) -> None:
    kv, queue = host.joined("localkv"), host.joined("localqueue")
    kv.put("k", b"v")
    queue.send("a")
    assert kv.get("k") == b"v"
    assert kv.scan_prefix("").items == list(kv.iter_prefix("")) == [("k", b"v")]
    assert [message.payload for message in queue.receive(5)] == ["a"]
    host.bind.rollback()
    assert kv.get("k") is None


def test_three_stores_and_the_host_share_one_transaction(host: Host, clock: ManualClock) -> None:
    filled = fill(host, clock)
    for end in ("rollback", "commit"):
        before = [contents(host, store) for store in STORES]
        host.order("o")
        for write in ("ack a lease", "put", "ack a receipt"):
            store, call = WRITES[write]
            call(host.joined(store, clock=clock), filled)
        getattr(host.bind, end)()
        changed = [contents(host, store) != old for store, old in zip(STORES, before, strict=True)]
        assert changed == [end == "commit"] * 3
    assert host.orders() == ["o"]


def test_one_repository_serves_one_transaction_after_another(host: Host) -> None:
    queue = host.joined("localqueue")
    for payload in ("a", "b"):
        queue.send(payload)
        host.bind.commit()
    queue.send("c")
    host.bind.rollback()
    assert host.sql("localqueue", "SELECT payload_data FROM {messages} ORDER BY id") == [("a",), ("b",)]


def test_nothing_is_installed_on_the_hosts_engine_or_its_connections(host: Host, clock: ManualClock) -> None:
    pragmas = ("busy_timeout", "foreign_keys", "journal_mode", "synchronous", "temp_store", "cache_size")

    def settings(connection: Connection) -> list[object]:
        values = [connection.exec_driver_sql(f"PRAGMA {pragma}").scalar() for pragma in pragmas]
        driver = connection.connection.driver_connection
        assert driver is not None
        values += [driver.isolation_level, driver.row_factory, driver.text_factory, type(host.engine.pool)]
        told: list[Any] = [each.dispatch for each in (host.engine, host.engine.pool, host.engine.dialect)]
        return [*values, *(list(getattr(dispatch, name)) for dispatch in told for name in dispatch._event_names)]

    before = host.elsewhere(settings)
    filled = fill(host, clock)
    for store, call in (*READS.values(), *WRITES.values()):
        call(host.joined(store, clock=clock), filled)
        host.bind.rollback()
    host.bind.close()
    assert host.elsewhere(settings) == before
