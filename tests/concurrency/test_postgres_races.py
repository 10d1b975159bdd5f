"""Two operations of the transport that meet on one group on a server, in every order. Issue 5, design 9."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from threading import Barrier
from typing import Any

import pytest
from sqlalchemy import URL, Engine, create_engine
from sqlalchemy.orm import Session

from qstore import StaleLease, TransportRepository
from qstore.statement import Statement
from qstore.transport import statements_postgresql as statements
from tests import postgres
from tests.backends import MOUNTED
from tests.concurrency.postgres_account import wrong_states

LEVELS = ("read committed", "repeatable read", "serializable")


class Server:
    """A database with a default isolation, an engine on it, and threads in which operations wait."""

    def __init__(self, url: URL, threads: ThreadPoolExecutor) -> None:
        self.url = url
        self.engine: Engine = create_engine(url)
        self.transport = self.bound(self.engine)
        self._threads = threads

    def bound(self, bind: Any) -> TransportRepository[str]:
        return TransportRepository(bind, event_type=str, naming=MOUNTED)

    def started(self, call: Callable[[], Any]) -> Future[Any]:
        """Call it in a thread, and return once it waits for a lock."""
        future = self._threads.submit(call)
        deadline = time.monotonic() + 10
        with postgres.connect(self.url) as connection:
            waiting = "SELECT count(*) FROM pg_locks WHERE NOT granted"
            while connection.execute(waiting).fetchone() == (0,) and not future.done():
                assert time.monotonic() < deadline
                time.sleep(0.005)
        return future

    def contents(self) -> tuple[list[str], list[str]]:
        """The groups, and the events in order."""
        names = MOUNTED.of("transport")
        with postgres.connect(self.url) as connection:
            groups = connection.execute(names.render("SELECT group_id FROM {groups} ORDER BY 1").encode()).fetchall()
            events = connection.execute(names.render("SELECT event FROM {messages} ORDER BY seq").encode()).fetchall()
        return [group for (group,) in groups], [event.strip('"') for (event,) in events]

    def claimed(self) -> Any:
        lease = self.transport.claim("w", 60)
        assert lease is not None
        return lease


@pytest.fixture(scope="module", params=LEVELS)
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    url = postgres.database()
    with postgres.connect(url) as connection:
        level = f"ALTER DATABASE {url.database} SET default_transaction_isolation = '{request.param}'"
        connection.execute(level.encode())
    with ThreadPoolExecutor(2) as threads:
        server = Server(url, threads)
        yield server
        server.engine.dispose()


@pytest.fixture
def committed(server: Server) -> Iterator[Server]:
    """The server with an empty transport, whose state must be what its messages say at the end."""
    with postgres.connect(server.url) as connection:
        connection.execute(MOUNTED.of("transport").render("TRUNCATE {groups}, {messages}").encode())
    yield server
    assert wrong_states(server.url) == []


ENDS = pytest.mark.parametrize("end", ["commit", "rollback"])


@ENDS
def test_the_ack_of_the_last_message_waits_for_a_publish_that_is_under_way_and_keeps_its_message(
    committed: Server, end: str
) -> None:
    committed.transport.publish("g", "first")
    lease = committed.claimed()
    with Session(committed.engine) as session:
        committed.bound(session).publish("g", "second")
        acking = committed.started(lambda: committed.transport.ack(lease))
        getattr(session, end)()
    acking.result(20)
    assert committed.contents() == ((["g"], ["second"]) if end == "commit" else ([], []))


@ENDS
def test_a_publish_waits_for_the_ack_that_empties_its_group_and_makes_the_group_again(
    committed: Server, end: str
) -> None:
    committed.transport.publish("g", "first", 3)
    lease = committed.claimed()
    with Session(committed.engine) as session:
        committed.bound(session).ack(lease)
        publishing = committed.started(lambda: committed.transport.publish("g", "second", 1))
        getattr(session, end)()
    publishing.result(20)
    assert committed.contents() == (["g"], ["second"] if end == "commit" else ["first", "second"])
    if end == "rollback":
        committed.transport.ack(lease)
    # The priority is that of the publish that made the group.
    found = committed.transport.claim("w", 60, 2)
    assert (found is None) == (end == "commit")


@ENDS
def test_two_publishes_that_make_one_group_keep_their_order(committed: Server, end: str) -> None:
    with Session(committed.engine) as session:
        committed.bound(session).publish("g", "first")
        publishing = committed.started(lambda: committed.transport.publish("g", "second"))
        getattr(session, end)()
    publishing.result(20)
    assert committed.contents() == (["g"], ["first", "second"] if end == "commit" else ["second"])


@ENDS
def test_two_publish_many_over_the_same_groups_in_other_orders_do_not_deadlock(committed: Server, end: str) -> None:
    with Session(committed.engine) as session:
        committed.bound(session).publish_many([("b", "1"), ("a", "2")])
        publishing = committed.started(lambda: committed.transport.publish_many([("a", "3"), ("b", "4"), ("a", "5")]))
        getattr(session, end)()
    publishing.result(20)
    assert committed.contents() == (["a", "b"], ["1", "2", "3", "4", "5"] if end == "commit" else ["3", "4", "5"])


@ENDS
def test_one_lease_that_is_acked_twice_at_once_is_acked_once(committed: Server, end: str) -> None:
    committed.transport.publish_many([("g", "first"), ("g", "second")])
    lease = committed.claimed()
    with Session(committed.engine) as session:
        committed.bound(session).ack(lease)
        acking = committed.started(lambda: committed.transport.ack(lease))
        getattr(session, end)()
    acking.result(20)
    assert committed.contents() == (["g"], ["second"])


def test_an_ack_that_waits_for_the_extension_of_its_lease_is_stale(committed: Server) -> None:
    committed.transport.publish("g", "first")
    lease = committed.claimed()
    with Session(committed.engine) as session:
        committed.bound(session).extend(lease, 90)
        acking = committed.started(lambda: committed.transport.ack(lease))
        session.commit()
    with pytest.raises(StaleLease):
        acking.result(20)
    assert committed.contents() == (["g"], ["first"])


def test_a_group_that_a_callers_open_transaction_has_claimed_is_passed_over(committed: Server) -> None:
    """H30: SKIP LOCKED must skip the group, and not slide to its second message."""
    committed.transport.publish_many([("g", "1"), ("g", "2"), ("h", "3")])
    with Session(committed.engine) as session:
        first = committed.bound(session).claim("a", 60)
        assert first is not None
        assert first.event == "1"
        assert committed.claimed().event == "3"
        assert committed.transport.claim("b", 60) is None
        session.rollback()
    assert committed.claimed().event == "1"


def emptied_and_published(server: Server, rounds: int) -> None:
    """An ack of a group's last message and a publish to it at the same instant, again and again."""
    start = Barrier(2)
    with ThreadPoolExecutor(2) as threads:
        for number in range(rounds):
            if number == 0:
                server.transport.publish("g", "0")
            lease = server.claimed()
            assert lease.event == str(number)

            def at_once(call: Callable[[], Any]) -> None:
                start.wait(10)
                call()

            calls = partial(server.transport.ack, lease), partial(server.transport.publish, "g", str(number + 1))
            for future in [threads.submit(at_once, call) for call in calls]:
                future.result(20)
    assert server.contents() == (["g"], [str(rounds)])


def test_a_publish_at_the_instant_of_the_ack_that_empties_its_group_is_never_lost(committed: Server) -> None:
    emptied_and_published(committed, 150)


def test_the_rounds_catch_an_ack_that_drops_a_group_with_a_message(
    committed: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    tail = "AND g.tail = CAST(:seq AS bigint)"
    assert tail in statements.ACK._text
    monkeypatch.setattr(statements, "ACK", Statement(statements.ACK._text.replace(tail, "")))
    with pytest.raises(AssertionError):
        emptied_and_published(committed, 1000)
    with postgres.connect(committed.url) as connection:
        connection.execute(MOUNTED.of("transport").render("TRUNCATE {groups}, {messages}").encode())
