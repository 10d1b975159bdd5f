"""Every operation is whole or not at all, and takes the write lock first if it may write. Semantics 1 to 5."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from time import sleep
from typing import Any, TypeVar

import pytest

from qstore import QstoreError, StoreBusy
from tests.backends import STORES, Backend, ManualClock
from tests.contract.contents import contents, unchanged
from tests.contract.events import drained, event
from tests.contract.filled import MIDDLES, READS, UNTIMED, WRITES, fill
from tests.contract.locks import lock_is_free, write_locked

R = TypeVar("R")

each_write = pytest.mark.parametrize("write", WRITES)
each_timed_write = pytest.mark.parametrize("write", [write for write in WRITES if write not in UNTIMED])
each_read = pytest.mark.parametrize("read", READS)


@each_write
def test_a_write_changes_its_store(backend: Backend, clock: ManualClock, write: str) -> None:
    """So that a test that finds no change says something."""
    store, call = WRITES[write]
    filled = fill(backend, clock)
    before = contents(backend, store)
    call(getattr(backend, store)(clock=clock), filled)
    assert contents(backend, store) != before


@pytest.mark.parametrize("write", MIDDLES)
def test_an_operation_that_fails_in_the_middle_leaves_nothing_and_its_error_is_the_databases(
    backend: Backend, clock: ManualClock, write: str
) -> None:
    _leaves_nothing(backend, clock, write, "ABORT")


@pytest.mark.parametrize("resolution", ["FAIL", "ROLLBACK"])
@pytest.mark.parametrize("write", MIDDLES)
def test_however_sqlite_ends_what_fails_in_the_middle_it_leaves_nothing(
    file_backend: Backend, clock: ManualClock, write: str, resolution: str
) -> None:
    _leaves_nothing(file_backend, clock, write, resolution)


def _leaves_nothing(backend: Backend, clock: ManualClock, write: str, resolution: str) -> None:
    store, call = WRITES[write]
    filled = fill(backend, clock)
    repository = getattr(backend, store)(clock=clock)
    backend.refuse(store, MIDDLES[write], resolution)
    with unchanged(backend, *STORES):
        for _ in range(7):
            with pytest.raises(Exception, match="refused here") as caught:
                call(repository, filled)
            assert not isinstance(caught.value, QstoreError)
    assert lock_is_free(backend, store)
    backend.relent(store, MIDDLES[write])
    before = contents(backend, store)
    call(repository, filled)
    assert contents(backend, store) != before


@each_timed_write
def test_an_operation_that_is_broken_off_leaves_nothing_and_no_lock(
    backend: Backend, clock: ManualClock, write: str
) -> None:
    store, call = WRITES[write]
    filled = fill(backend, clock)

    def interrupted() -> float:
        raise KeyboardInterrupt

    repository = getattr(backend, store)(clock=interrupted)
    with unchanged(backend, store), pytest.raises(KeyboardInterrupt):
        call(repository, filled)
    assert lock_is_free(backend, store)


@each_timed_write
def test_the_time_is_read_with_the_write_lock_held(file_backend: Backend, clock: ManualClock, write: str) -> None:
    """Otherwise a lease would have run for as long as its claim waited for the lock."""
    store, call = WRITES[write]
    filled = fill(file_backend, clock)
    free: list[bool] = []

    def watching() -> float:
        free.append(lock_is_free(file_backend, store))
        return clock()

    call(getattr(file_backend, store)(clock=watching), filled)
    assert set(free) == {False}


@each_write
def test_a_store_that_is_busy_is_store_busy_with_nothing_changed_and_the_call_may_be_repeated(
    impatient_backend: Backend, clock: ManualClock, write: str
) -> None:
    store, call = WRITES[write]
    filled = fill(impatient_backend, clock)
    repository = getattr(impatient_backend, store)(clock=clock)
    with write_locked(impatient_backend, store), unchanged(impatient_backend, *STORES):
        for _ in range(2):
            with pytest.raises(StoreBusy):
                call(repository, filled)
    before = contents(impatient_backend, store)
    call(repository, filled)
    assert contents(impatient_backend, store) != before


def test_any_number_of_busy_calls_leaves_the_repository_whole(impatient_backend: Backend) -> None:
    """More than a pool has connections."""
    transport = impatient_backend.transport()
    with write_locked(impatient_backend, "transport"):
        for _ in range(16):
            with pytest.raises(StoreBusy):
                transport.publish("g", event("a"))
    transport.publish("g", event("b"))
    assert len(impatient_backend.sql("transport", "SELECT * FROM {messages}")) == 1


@each_read
def test_a_read_does_not_need_the_write_lock(impatient_backend: Backend, clock: ManualClock, read: str) -> None:
    store, call = READS[read]
    filled = fill(impatient_backend, clock)
    repository = getattr(impatient_backend, store)(clock=clock)
    with write_locked(impatient_backend, store), unchanged(impatient_backend, store):
        assert call(repository, filled)


@each_read
def test_a_read_of_live_keys_never_takes_the_write_lock(file_backend: Backend, clock: ManualClock, read: str) -> None:
    store, call = READS[read]
    filled = fill(file_backend, clock)
    file_backend.sql(store, "DELETE FROM {kv} WHERE key = 'expired'")
    free: list[bool] = []

    def watching() -> float:
        free.append(lock_is_free(file_backend, store))
        return clock()

    with unchanged(file_backend, store):
        assert call(getattr(file_backend, store)(clock=watching), filled)
    assert set(free) <= {True}


@pytest.mark.parametrize("write", ["publish", "claim", "put", "conditional put", "send", "receive"])
def test_a_write_waits_for_the_write_lock(backend: Backend, clock: ManualClock, write: str) -> None:
    store, call = WRITES[write]
    filled = fill(backend, clock)
    repository = getattr(backend, store)(clock=clock)
    before = contents(backend, store)
    locked = threading.Event()

    def hold() -> None:
        with write_locked(backend, store):
            locked.set()
            sleep(0.3)

    holder = threading.Thread(target=hold)
    holder.start()
    assert locked.wait(30)
    try:
        call(repository, filled)
    finally:
        holder.join(30)
    assert contents(backend, store) != before


def test_one_transport_is_safe_to_share_between_threads(shared_backend: Backend) -> None:
    transport = shared_backend.transport()
    published = {f"{thread}.{n}" for thread in range(8) for n in range(6)}

    def work(thread: int) -> list[str]:
        done = []
        for n in range(6):
            _patiently(transport.publish, f"g{n}", event(f"{thread}.{n}"))
        while (lease := _patiently(transport.claim, f"w{thread}", 600)) is not None:
            done.append(lease.event.kind)
            _patiently(transport.ack, lease)
        return done

    with ThreadPoolExecutor(8) as pool:
        done = [kind for part in pool.map(work, range(8)) for kind in part]
    done += drained(transport)
    assert sorted(done) == sorted(published)
    assert contents(shared_backend, "transport") == {"messages": [], "groups": []}


def test_one_key_value_store_is_safe_to_share_between_threads(shared_backend: Backend) -> None:
    kv = shared_backend.localkv()

    def work(thread: int) -> None:
        for n in range(10):
            _patiently(kv.put, f"{thread}.{n}", str(n).encode())
            assert kv.get(f"{thread}.{n}") == str(n).encode()
            assert [value for _, value in kv.iter_prefix(f"{thread}.")] == [str(m).encode() for m in range(n + 1)]

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))
    assert len(kv.scan_prefix("").items) == 80


def _patiently(call: Callable[..., R], *arguments: Any) -> R:
    """Repeat a call for as long as the store is busy: what StoreBusy asks for."""
    while True:
        with suppress(StoreBusy):
            return call(*arguments)
