"""localqueue.v1: what a receive delivers. The seed's "Receive" and "attempt"; semantics 7 and 26."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from uuid import UUID

import pytest

from tests.backends import Backend, ManualClock
from tests.contract.contents import unchanged


def test_a_receive_from_an_empty_queue_is_an_empty_list_and_changes_nothing(backend: Backend) -> None:
    queue = backend.localqueue()
    with unchanged(backend, "localqueue"):
        assert queue.receive() == []
        assert queue.receive(1000) == []


def test_a_receive_hides_the_message_counts_the_attempt_and_mints_a_receipt(
    backend: Backend, clock: ManualClock
) -> None:
    queue = backend.localqueue(clock=clock)
    id = queue.send({"a": 1})
    clock.advance(5)
    [message] = queue.receive(visibility_timeout=10)
    left, _, uuid = message.receipt_handle.partition(":")
    assert (message.id, left, message.attempt, message.payload) == (id, str(id), 1, {"a": 1})
    assert (message.payload_type, message.payload_data) == ("json", '{"a":1}')
    assert str(UUID(uuid)) == uuid
    assert backend.sql("localqueue", "SELECT * FROM {messages}") == [
        (id, "json", '{"a":1}', 1_700_000_000_000, 1_700_000_015_000, 1, uuid)
    ]


def test_the_default_is_one_message_for_30_seconds(backend: Backend, clock: ManualClock) -> None:
    queue = backend.localqueue(clock=clock)
    queue.send_many(["a", "b"])
    assert [message.payload for message in queue.receive()] == ["a"]
    sql = "SELECT visible_at - enqueued_at FROM {messages} ORDER BY id"
    assert backend.sql("localqueue", sql) == [(30_000,), (0,)]


@pytest.mark.parametrize("wanted", [1, 2, 5, 6, 1000])
def test_a_receive_delivers_at_most_what_was_asked_for_in_the_order_of_sending(backend: Backend, wanted: int) -> None:
    queue = backend.localqueue()
    queue.send_many(["0", "1", "2", "3", "4"])
    received = queue.receive(wanted)
    assert [message.payload for message in received] == ["0", "1", "2", "3", "4"][:wanted]
    assert len({message.receipt_handle for message in received}) == len(received)
    assert len(queue.receive(1000)) == 5 - len(received)


def test_a_receive_of_1_000_messages_is_one_batch(backend: Backend) -> None:
    queue = backend.localqueue()
    queue.send_many(str(n) for n in range(1001))
    assert [message.payload for message in queue.receive(1000)] == [str(n) for n in range(1000)]
    assert [message.payload for message in queue.receive(1000)] == ["1000"]


def test_the_order_is_that_of_enqueued_at_and_then_of_id(backend: Backend, clock: ManualClock) -> None:
    queue = backend.localqueue(clock=clock)
    for payload, at in (("c", 20), ("a", 10), ("d", 20), ("b", 10)):
        clock.now = 1_700_000_000 + at
        queue.send(payload)
    clock.now = 1_700_000_000 + 20
    assert [message.payload for message in queue.receive(10)] == ["a", "b", "c", "d"]


def test_a_redelivered_message_keeps_its_place_in_front(backend: Backend, clock: ManualClock) -> None:
    queue = backend.localqueue(clock=clock)
    queue.send("a")
    clock.advance(1)
    queue.send("b")
    queue.receive(visibility_timeout=10)
    clock.advance(3600)
    queue.send("c")
    assert [message.payload for message in queue.receive(10)] == ["a", "b", "c"]


def test_any_number_of_messages_that_lapsed_come_in_the_order_of_sending(
    settling_backend: Backend, clock: ManualClock
) -> None:
    """A caller's transaction on a server looks at the 1,000 that lapsed first."""
    queue = settling_backend.localqueue(clock=clock)
    queue.send_many(str(n) for n in range(1500))
    queue.receive(700, visibility_timeout=100)
    queue.receive(800, visibility_timeout=10)
    clock.advance(200)
    queue.send("late")
    assert [message.payload for message in queue.receive(1000)] == [str(n) for n in range(1000)]


@pytest.mark.parametrize("timeout", [1, 0.001, 2.5, timedelta(seconds=1)])
def test_a_message_is_due_again_at_exactly_the_end_of_its_visibility_timeout(
    backend: Backend, clock: ManualClock, timeout: float | timedelta
) -> None:
    queue = backend.localqueue(clock=clock)
    queue.send("a")
    queue.receive(visibility_timeout=timeout)
    seconds = timeout.total_seconds() if isinstance(timeout, timedelta) else timeout
    clock.now = 1_700_000_000 + seconds - 0.001
    assert queue.receive() == []
    clock.now = 1_700_000_000 + seconds
    assert [message.attempt for message in queue.receive()] == [2]


def test_a_message_sent_this_millisecond_is_due(backend: Backend, clock: ManualClock) -> None:
    queue = backend.localqueue(clock=clock)
    clock.now += 0.0009
    queue.send("a")
    clock.now -= 0.0009
    assert len(queue.receive()) == 1


@pytest.mark.parametrize("timeout", [0.0001, 5e-324, timedelta(microseconds=1)])
def test_a_timeout_below_a_millisecond_hides_the_message_for_one(
    backend: Backend, clock: ManualClock, timeout: float | timedelta
) -> None:
    queue = backend.localqueue(clock=clock)
    queue.send("a")
    assert len(queue.receive(visibility_timeout=timeout)) == 1
    assert queue.receive(visibility_timeout=timeout) == []
    clock.advance(0.001)
    assert len(queue.receive(visibility_timeout=timeout)) == 1


def test_attempt_equals_the_number_of_deliveries(backend: Backend, clock: ManualClock) -> None:
    queue = backend.localqueue(clock=clock)
    queue.send("a")
    handles = []
    for attempt in range(1, 6):
        [message] = queue.receive(visibility_timeout=10)
        assert message.attempt == attempt
        handles.append(message.receipt_handle)
        clock.advance(10)
    assert len(set(handles)) == 5
    assert backend.sql("localqueue", "SELECT attempt FROM {messages}") == [(5,)]


def test_messages_in_flight_do_not_hold_up_the_rest(backend: Backend) -> None:
    queue = backend.localqueue()
    queue.send_many(["a", "b", "c"])
    queue.receive(2)
    assert [message.payload for message in queue.receive(2)] == ["c"]


def test_each_message_goes_to_one_of_the_receivers_that_compete_for_it(shared_backend: Backend) -> None:
    queues = [shared_backend.localqueue(), shared_backend.localqueue()]
    queues[0].send_many(str(n) for n in range(60))

    def receive(n: int) -> list[str]:
        got: list[str] = []
        while received := queues[n % 2].receive(4, visibility_timeout=3600):
            assert len(received) <= 4
            got += [str(message.payload) for message in received]
        return got

    with ThreadPoolExecutor(6) as pool:
        got = [payload for part in pool.map(receive, range(6)) for payload in part]
    assert sorted(got, key=int) == [str(n) for n in range(60)]
