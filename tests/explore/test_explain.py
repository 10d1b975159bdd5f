"""`explain`: why a group, a message or a key is not moving."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from qstore import Event, InvalidInput, TransportRepository, View, open_view
from tests.backends import ManualClock
from tests.explore.looking import NOW


@pytest.mark.parametrize(
    ("group", "state", "parts"),
    [
        (
            "held",
            "in flight",
            ["'worker-1' holds message", "2023-11-14 22:14:20 UTC, in 50 s", "1 message waits behind"],
        ),
        ("parked", "parked", ["put off until 2023-11-14 22:23:20 UTC, in 9 min 50 s", "whole group waits"]),
        ("lapsed", "lapsed", ["is ready, and 1 group comes before it", "'worker-3', whose lease lapsed 9.0 s ago"]),
        ("ready", "ready", ["is next in rotation"]),
        ("nobody", "absent", ["no message waits in it"]),
    ],
)
def test_a_group_is_explained_in_a_sentence_and_with_its_numbers(
    view: View, group: str, state: str, parts: list[str]
) -> None:
    found = view.explain(group)
    assert found.state == state
    assert str(found) == repr(found) == found.sentence
    assert all(part in found.sentence for part in (repr(group), *parts)), found
    assert found.data["group_id"] == group
    if group == "held":
        assert (found.data["holder"], found.data["until"], found.data["messages"]) == ("worker-1", NOW + 60, 2)


def test_a_group_below_the_floor_is_said_to_be_so(view: View) -> None:
    assert "its priority is 0, and claims ask for 3 or more" in str(view.explain("lapsed", min_priority=3))
    assert view.explain("lapsed", min_priority=3).state == "below the floor"
    assert view.explain("ready", min_priority=3).state == "ready"
    assert view.explain("held", min_priority=3).state == "in flight"


def test_a_message_is_explained_by_the_head_of_its_group(view: View) -> None:
    first, second, *_ = view.messages(library="polars", payload=None)["seq"]
    assert str(view.explain(seq=first)).startswith(
        f"Message {first} is the head of its group. Group 'held' is in flight"
    )
    behind = view.explain(seq=second)
    assert str(behind).startswith(f"Message {second} is behind message {first}, the head of its group. Group 'held'")
    assert (behind.state, behind.data["group_state"]) == ("behind", "in flight")
    assert view.explain(seq=10**9).state == "absent"


def test_a_message_of_the_queue_is_explained(view: View) -> None:
    first = int(view.queue(library="polars", payload=None)["id"][0])
    found = [view.explain(id=first + n) for n in range(5)]
    assert [each.state for each in found] == ["in flight", "lapsed", "ready", "ready", "absent"]
    assert "is in flight, on attempt 1, until 2023-11-14 22:14:20 UTC, in 50 s" in str(found[0])
    assert "has been due for 9.0 s, and is received next. It was received 1 time and not acked." in str(found[1])
    assert "is received after 1 message that came before it" in str(found[2])


def test_a_key_is_explained(view: View) -> None:
    found = {key: view.explain(key=key) for key in ("user:1", "user:2", "zone", "absent")}
    assert str(found["user:1"]) == "Key 'user:1' is live, 15 bytes, and never expires."
    assert "is live, 1 byte, and expires at 2023-11-14 22:15:00 UTC, in 1 min 30 s." in str(found["user:2"])
    assert "expired at 2023-11-14 22:13:21 UTC, 9.0 s ago; the next read deletes it" in str(found["zone"])
    assert found["absent"].state == "absent"


def test_what_other_programs_left_is_explained(tmp_path: Path) -> None:
    path = tmp_path / "transport.sqlite"
    TransportRepository.open(path).close()
    with closing(sqlite3.connect(path)) as other:
        other.execute("INSERT INTO messages (group_id, event) VALUES ('orphan', '{}')")
        other.execute("INSERT INTO messages (group_id, event, locked_by) VALUES ('stuck', '{}', 'gone')")
        other.execute("INSERT INTO groups (group_id) VALUES ('stuck'), ('empty')")
        other.commit()
    with open_view(path) as view:
        assert "no row among the groups, so that no claim finds them" in str(view.explain("orphan"))
        assert "locked without an end, which no claim takes" in str(view.explain("stuck"))
        assert "nothing to claim" in str(view.explain("empty"))


@pytest.mark.parametrize("seed", range(3))
def test_the_group_that_is_said_to_be_next_is_the_one_that_a_claim_takes(
    tmp_path: Path, clock: ManualClock, seed: int
) -> None:
    import random

    path = tmp_path / "transport.sqlite"
    chance = random.Random(seed)
    groups = [f"g{n}" for n in range(6)]
    with TransportRepository.open(path, clock=clock) as transport, open_view(path, clock=clock) as view:
        transport.publish_many([(chance.choice(groups), Event(kind="k"), chance.randrange(5)) for _ in range(40)])
        for _ in range(30):
            floor = chance.randrange(5)
            found = [view.explain(group, min_priority=floor) for group in groups]
            turns = {int(each.data["ahead"]): each.data for each in found if "ahead" in each.data}
            assert sorted(turns) == list(range(len(turns)))
            lease = transport.claim("w", 5, min_priority=floor)
            if lease is None:
                assert not turns
            else:
                assert (lease.group_id, lease.seq) == (turns[0]["group_id"], turns[0]["next"])
                chance.choice((transport.ack, transport.nack, lambda it: transport.nack(it, 7), str))(lease)
            clock.advance(chance.choice((0, 1, 6)))


@pytest.mark.parametrize("arguments", [{}, {"group_id": "g", "key": "k"}, {"seq": 1, "id": 1}])
def test_exactly_one_thing_is_explained_at_a_time(tmp_path: Path, arguments: dict[str, Any]) -> None:
    TransportRepository.open(tmp_path / "transport.sqlite").close()
    with open_view(tmp_path) as view, pytest.raises(InvalidInput, match="one of group_id, seq, id and key"):
        view.explain(**arguments)
