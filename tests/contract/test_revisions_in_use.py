"""A claim and a receive ask the side tables where the store has all of its newest revision, and only there."""

from __future__ import annotations

import pytest
from sqlalchemy import text

from qstore.formats import ADDITIONS
from tests.backends import MOUNTED, Backend, ManualClock
from tests.contract.events import event
from tests.contract.hosts import Host


@pytest.fixture
def newest(file_backend: Backend) -> Backend:
    file_backend.transport()
    file_backend.localqueue()
    if not file_backend.sql("transport", "SELECT 1 FROM sqlite_master WHERE name LIKE '%turns'"):
        pytest.skip("a store at v1")
    return file_backend


@pytest.mark.parametrize("part", ["TRIGGER {turns_message_lock}", "INDEX {idx_messages_group}", "TABLE {turns}"])
def test_a_claim_asks_the_turns_while_all_of_the_revision_is_there(newest: Backend, part: str) -> None:
    transport = newest.transport()
    transport.publish("g", event("e"))
    newest.sql("transport", "DELETE FROM {turns} WHERE id <> 0")
    assert transport.claim("w", 5) is None
    if "TABLE" in part:
        for trigger in ADDITIONS["transport"].triggers:
            newest.sql("transport", f"DROP TRIGGER {{{trigger}}}")
    newest.sql("transport", f"DROP {part}")
    assert transport.claim("w", 5) is not None


@pytest.mark.parametrize("part", ["TRIGGER {redeliveries_update}", "INDEX {idx_messages_fresh}"])
def test_a_receive_asks_the_redeliveries_while_all_of_the_revision_is_there(
    newest: Backend, clock: ManualClock, part: str
) -> None:
    queue = newest.localqueue(clock=clock)
    queue.send("m")
    clock.advance(1)
    for _ in range(2):
        assert len(queue.receive(visibility_timeout=0)) == 1
    newest.sql("localqueue", "DELETE FROM {redeliveries}")
    assert queue.receive() == []
    newest.sql("localqueue", f"DROP {part}")
    assert len(queue.receive()) == 1


def test_in_a_callers_transaction_it_is_what_that_sees(host: Host) -> None:
    """The callers may have changed the schema themselves, and undo it."""
    trigger = MOUNTED.of("transport").render("DROP TRIGGER {turns_message_lock}")
    transport = host.joined("transport")
    transport.publish("g", event("e"))
    host.bind.commit()
    host.sql("transport", "DELETE FROM {turns} WHERE id <> 0")
    for _ in range(2):
        assert transport.claim("w", 5) is None
        host.bind.execute(text(trigger))
        assert transport.claim("w", 5) is not None
        host.bind.rollback()
