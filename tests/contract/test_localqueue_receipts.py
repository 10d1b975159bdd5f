"""localqueue.v1: ack and nack by receipt handle. The seed's "Receipt handles", "Ack" and "Nack"; semantics 27."""

from __future__ import annotations

import pytest

from qstore import LocalQueueRepository, ReceivedMessage, StaleReceipt
from tests.backends import Backend, ManualClock
from tests.contract.contents import unchanged

settle_each = pytest.mark.parametrize("settle", ["ack", "nack"])


def _receive(queue: LocalQueueRepository, timeout: float = 30) -> ReceivedMessage:
    [message] = queue.receive(visibility_timeout=timeout)
    return message


def test_ack_removes_the_message_and_no_other(backend: Backend) -> None:
    queue = backend.localqueue()
    queue.send_many(["a", "b"])
    queue.ack(_receive(queue).receipt_handle)
    assert backend.sql("localqueue", "SELECT payload_data FROM {messages}") == [("b",)]


def test_nack_makes_the_message_due_at_once_and_keeps_its_attempts_and_receipt(
    backend: Backend, clock: ManualClock
) -> None:
    queue = backend.localqueue(clock=clock)
    queue.send_many(["a", "b"])
    message = _receive(queue)
    clock.advance(1.5)
    queue.nack(message.receipt_handle)
    sql = "SELECT visible_at, enqueued_at, attempt, receipt_handle FROM {messages} WHERE id = ?"
    uuid = message.receipt_handle.partition(":")[2]
    assert backend.sql("localqueue", sql, message.id) == [(1_700_000_001_500, 1_700_000_000_000, 1, uuid)]
    again = _receive(queue)
    assert (again.payload, again.attempt) == ("a", 2)
    assert again.receipt_handle != message.receipt_handle


def test_a_nack_keeps_the_receipt_so_that_an_ack_after_it_is_good(backend: Backend) -> None:
    queue = backend.localqueue()
    queue.send("a")
    handle = _receive(queue).receipt_handle
    queue.nack(handle)
    queue.nack(handle)
    queue.ack(handle)
    assert backend.sql("localqueue", "SELECT * FROM {messages}") == []


@settle_each
def test_a_receipt_of_an_earlier_delivery_is_stale_and_changes_nothing(
    backend: Backend, clock: ManualClock, settle: str
) -> None:
    queue = backend.localqueue(clock=clock)
    queue.send("a")
    late = _receive(queue, 5)
    clock.advance(5)
    current = _receive(queue, 5)
    with unchanged(backend, "localqueue"), pytest.raises(StaleReceipt) as caught:
        getattr(queue, settle)(late.receipt_handle)
    assert (caught.value.id, caught.value.code) == (late.id, "QUEUE_OPERATION_FAILED")
    queue.ack(current.receipt_handle)
    assert queue.receive() == []


@settle_each
def test_a_late_receipt_is_good_while_the_message_was_not_delivered_again(
    backend: Backend, clock: ManualClock, settle: str
) -> None:
    queue = backend.localqueue(clock=clock)
    queue.send("a")
    message = _receive(queue, 5)
    clock.advance(3600)
    getattr(queue, settle)(message.receipt_handle)
    left = backend.sql("localqueue", "SELECT visible_at FROM {messages}")
    assert left == ([] if settle == "ack" else [(1_700_003_600_000,)])


@settle_each
@pytest.mark.parametrize("gone", ["acked", "purged"])
def test_a_message_that_is_gone_is_left_at_that(backend: Backend, settle: str, gone: str) -> None:
    queue = backend.localqueue()
    queue.send("a")
    message = _receive(queue)
    if gone == "acked":
        queue.ack(message.receipt_handle)
    else:
        queue.purge()
    queue.send("b")
    with unchanged(backend, "localqueue"):
        getattr(queue, settle)(message.receipt_handle)


MALFORMED = [
    "",
    ":",
    "{id}",
    "{id}:",
    ":{uuid}",
    "{uuid}",
    "{uuid}:{id}",
    " {id}:{uuid}",
    "{id} :{uuid}",
    "+{id}:{uuid}",
    "-{id}:{uuid}",
    "{id}.0:{uuid}",
    "1e0:{uuid}",
    "0x1:{uuid}",
    "1_0:{uuid}",
    "\u0661:{uuid}",
    "\uff11:{uuid}",
    "\u00b9:{uuid}",
    "\n{id}:{uuid}",
    "\0{id}:{uuid}",
    "9223372036854775808:{uuid}",
    "18446744073709551617:{uuid}",
    "{id}" + "0" * 5000 + ":{uuid}",
]


@settle_each
def test_a_handle_that_was_never_issued_by_its_form_is_left_at_that(checking_backend: Backend, settle: str) -> None:
    queue = checking_backend.localqueue()
    queue.send("a")
    id, _, uuid = _receive(queue).receipt_handle.partition(":")
    assert id == "1"
    for form in MALFORMED:
        with unchanged(checking_backend, "localqueue"):
            getattr(queue, settle)(form.format(id=id, uuid=uuid))


@settle_each
def test_a_handle_of_a_message_that_never_was_is_left_at_that(backend: Backend, settle: str) -> None:
    queue = backend.localqueue()
    queue.send("a")
    uuid = _receive(queue).receipt_handle.partition(":")[2]
    for id in (0, 2, 999, 2**63 - 1):
        with unchanged(backend, "localqueue"):
            getattr(queue, settle)(f"{id}:{uuid}")


OTHERS = ("x", " {uuid}", "{uuid} ", "{uuid}\n", "{UUID}", "{uuid}:", ":{uuid}", "{uuid}\0", "\ud800", "?", "%", "\n")


@settle_each
def test_a_well_formed_handle_with_another_receipt_is_stale(backend: Backend, settle: str) -> None:
    queue = backend.localqueue()
    queue.send("a")
    uuid = _receive(queue).receipt_handle.partition(":")[2]
    for receipt in OTHERS:
        with unchanged(backend, "localqueue"), pytest.raises(StaleReceipt):
            getattr(queue, settle)("1:" + receipt.format(uuid=uuid, UUID=uuid.upper() + "-"))


@settle_each
def test_a_handle_of_a_message_that_was_never_delivered_is_stale(backend: Backend, settle: str) -> None:
    queue = backend.localqueue()
    id = queue.send("a")
    with unchanged(backend, "localqueue"), pytest.raises(StaleReceipt):
        getattr(queue, settle)(f"{id}:None")


def test_a_handle_is_split_at_its_first_colon(backend: Backend) -> None:
    """Another implementation may have stored a receipt that is no UUID."""
    queue = backend.localqueue()
    id = queue.send("a")
    backend.sql("localqueue", "UPDATE {messages} SET receipt_handle = 'a:b', attempt = 1")
    queue.ack(f"{id}:a:b")
    assert backend.sql("localqueue", "SELECT * FROM {messages}") == []


def test_a_receipt_settles_through_any_repository_of_the_store(backend: Backend) -> None:
    sender, receiver, settler = backend.localqueue(), backend.localqueue(), backend.localqueue()
    sender.send("a")
    settler.ack(_receive(receiver).receipt_handle)
    assert backend.sql("localqueue", "SELECT * FROM {messages}") == []


@settle_each
def test_a_stale_receipt_leaves_the_repository_usable(backend: Backend, clock: ManualClock, settle: str) -> None:
    queue = backend.localqueue(clock=clock)
    queue.send("a")
    late = _receive(queue, 5)
    clock.advance(5)
    current = _receive(queue, 5)
    for _ in range(7):  # more than a pool has connections
        with pytest.raises(StaleReceipt):
            getattr(queue, settle)(late.receipt_handle)
    queue.ack(current.receipt_handle)
    assert queue.receive() == []
