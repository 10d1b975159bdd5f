"""The transport's model: a list of messages, and what each group remembers. Semantics 13 to 19."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, ClassVar

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule
from pydantic import JsonValue, TypeAdapter

from qstore import Lease, StaleLease
from tests.stateful.machine import Call, OddInt, OddStr, StoreMachine

PARKED = "__parked__"
FAR = 2e9
"""Later than any time that a history should come to."""


@dataclass
class Message:
    group: str
    event: Any
    holder: str | None = None
    expiry: float | None = None


@dataclass
class Group:
    priority: int
    claimed_at: float = 0.0


@dataclass
class TransportModel:
    """What is stored, by seq and by group."""

    messages: dict[int, Message] = field(default_factory=dict)
    groups: dict[str, Group] = field(default_factory=dict)
    last_seq: int = 0

    def publish(self, seq: int, group: str, event: Any, priority: int) -> None:
        assert seq > self.last_seq, "a seq that is not new"
        self.last_seq = seq
        self.messages[seq] = Message(group, event)
        self.groups.setdefault(group, Group(priority))

    def next(self, now: float, floor: int) -> int | None:
        """The seq of what a claim delivers."""
        for group in self.groups.values():
            group.claimed_at = min(group.claimed_at, now)
        held = {each.group for each in self.messages.values() if each.expiry is not None and each.expiry >= now}
        waiting = [
            (self.groups[each.group].claimed_at, seq)
            for seq, each in self.messages.items()
            if each.group not in held and self.groups[each.group].priority >= floor
        ]
        return min(waiting)[1] if waiting else None

    def claim(self, seq: int, worker: str, expiry: float, now: float) -> None:
        message = self.messages[seq]
        message.holder, message.expiry = worker, expiry
        self.groups[message.group].claimed_at = now

    def carries(self, lease: Lease[Any]) -> bool | None:
        """Whether the message is under this lease; None if it is gone."""
        message = self.messages.get(lease.seq)
        if message is None:
            return None
        return (message.holder, message.expiry) == (lease.worker_id, lease.lock_expiry)

    def remove(self, seq: int) -> None:
        group = self.messages.pop(seq).group
        if all(each.group != group for each in self.messages.values()):
            del self.groups[group]


GROUPS = st.sampled_from([*"ab" * 8, "c", "A", "é", " ", "a%", "😀", "'; --", '"', OddStr("b"), OddStr("g" * 1024)])
WORKERS = st.sampled_from(["w", "v", "W", "w ", "é", OddStr("w"), "__PARKED__"])
EVENTS = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    # No surrogates: they are no text.
    | st.text(st.characters(exclude_categories=["Cs"]), max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"]), max_size=3), inner, max_size=3)
    ),
    max_leaves=4,
)
PRIORITIES = st.sampled_from([0, 0, 0, 1, 2, 3, 4, OddInt(2)])
DURATIONS = st.sampled_from(
    [0.125, 0.5, 0.5, 1, 1, 1, 4, 4, 30, timedelta(seconds=1), OddInt(4), 5e-324, 100 * 366 * 86_400]
)
ODD_TEXTS: tuple[Any, ...] = ("", "a\0", "\ud800", "x" * 1025, "é" * 513, None, 1, b"a", OddStr(""))
ODD_DURATIONS: tuple[Any, ...] = (-1, -0.001, float("nan"), float("inf"), True, "1", None, 10**400, timedelta.max, [])
ODD_PRIORITIES: tuple[Any, ...] = (-1, 5, True, 1.0, "1", None, 10**5000)

REFUSED: list[Call] = [
    *(Call("publish", v, 1) for v in ODD_TEXTS),
    *(Call("publish_many", [("a", 1), (v, 1)]) for v in ODD_TEXTS),
    *(Call("claim", v, 1) for v in (*ODD_TEXTS, PARKED, OddStr(PARKED))),
    *(Call("publish", "a", v) for v in (float("nan"), ["\ud800"], object(), {1, float("inf")})),
    *(Call("publish", "a", 1, v) for v in ODD_PRIORITIES),
    *(Call("claim", "w", 1, v) for v in ODD_PRIORITIES),
    *(Call("claim", "w", v) for v in (*ODD_DURATIONS, 0)),
    *(Call("publish_many", v) for v in (None, "ab", ["ab"], [("a",)], [("a", 1, 1, 1)], [("a", 1), None])),
    *(Call("ack", v) for v in (None, 1, ("a", 1))),
]


class TransportMachine(StoreMachine):
    """The transport and its model."""

    store = "transport"
    arguments: ClassVar[dict[str, Any]] = {"event_type": TypeAdapter(JsonValue)}

    def __init__(self) -> None:
        super().__init__()
        self.model = TransportModel()
        self.leases: list[Lease[Any]] = []

    def compare(self) -> None:
        rows = self.backend.sql("transport", "SELECT seq, group_id, locked_by, lock_expiry FROM {messages} ORDER BY 1")
        assert rows == [(seq, each.group, each.holder, each.expiry) for seq, each in self.model.messages.items()]
        groups = self.backend.sql("transport", "SELECT group_id, priority FROM {groups}")
        assert dict(groups) == {name: each.priority for name, each in self.model.groups.items()}

    def instants(self) -> Iterable[int]:
        expiries = [each.expiry for each in self.model.messages.values() if each.expiry is not None]
        return [round(expiry * 1000) for expiry in expiries if round(expiry * 1000) / 1000 == expiry < FAR]

    @rule(by=st.integers(0, 1), group=GROUPS, event=EVENTS, priority=PRIORITIES)
    def publish(self, by: int, group: str, event: Any, priority: int) -> None:
        self.model.publish(self.repositories[by].publish(group, event, priority), group, event, priority)

    @rule(by=st.integers(0, 1), messages=st.lists(st.tuples(GROUPS, EVENTS, PRIORITIES), max_size=5))
    def publish_many(self, by: int, messages: list[tuple[str, Any, int]]) -> None:
        seqs = self.repositories[by].publish_many(iter(messages))
        assert len(seqs) == len(messages)
        for seq, message in zip(seqs, messages, strict=True):
            self.model.publish(seq, *message)

    @rule(by=st.integers(0, 1), worker=WORKERS, visibility=DURATIONS, floor=PRIORITIES)
    def claim(self, by: int, worker: str, visibility: Any, floor: int) -> None:
        expected = self.model.next(self.clock.now, floor)
        lease = self.repositories[by].claim(worker, visibility, floor)
        assert (lease and lease.seq) == expected
        if lease is None:
            return
        message = self.model.messages[lease.seq]
        assert (lease.group_id, lease.event, lease.worker_id) == (message.group, message.event, worker)
        assert lease.lock_expiry == self.clock.now + _seconds(visibility)
        self.model.claim(lease.seq, worker, lease.lock_expiry, self.clock.now)
        self.leases.append(lease)

    @precondition(lambda self: self.leases)
    @rule(by=st.integers(0, 1), number=st.integers(0, 7))
    def ack(self, by: int, number: int) -> None:
        lease = self._lease(number)
        carried = self.model.carries(lease)
        assert _stale(lambda: self.repositories[by].ack(lease)) is (carried is False)
        if carried:
            self.model.remove(lease.seq)

    @precondition(lambda self: self.leases)
    @rule(by=st.integers(0, 1), numbers=st.lists(st.integers(0, 7), max_size=3))
    def ack_many(self, by: int, numbers: list[int]) -> None:
        leases = [self._lease(number) for number in numbers]
        stale = any(self.model.carries(lease) is False for lease in leases)
        assert _stale(lambda: self.repositories[by].ack_many(leases)) is stale
        for seq in {lease.seq for lease in leases} & set(self.model.messages) if not stale else ():
            self.model.remove(seq)

    @precondition(lambda self: self.leases)
    @rule(by=st.integers(0, 1), number=st.integers(0, 7), delay=st.just(0) | DURATIONS)
    def nack(self, by: int, number: int, delay: Any) -> None:
        lease = self._lease(number)
        carried = self.model.carries(lease)
        assert _stale(lambda: self.repositories[by].nack(lease, delay)) is (carried is False)
        if carried:
            message, delay = self.model.messages[lease.seq], _seconds(delay)
            parked = (PARKED, self.clock.now + delay) if delay else (None, None)
            message.holder, message.expiry = parked

    @precondition(lambda self: self.leases)
    @rule(by=st.integers(0, 1), number=st.integers(0, 7), visibility=DURATIONS)
    def extend(self, by: int, number: int, visibility: Any) -> None:
        lease = self._lease(number)
        carried = self.model.carries(lease)
        extended: list[Lease[Any]] = []
        stale = _stale(lambda: extended.append(self.repositories[by].extend(lease, visibility)))
        assert stale is (not carried)  # also of a message that is gone
        for new in extended:
            assert (new.seq, new.worker_id, new.event) == (lease.seq, lease.worker_id, lease.event)
            assert new.lock_expiry == self.clock.now + _seconds(visibility)
            self.model.messages[new.seq].expiry = new.lock_expiry
            self.leases.append(new)

    @rule(by=st.integers(0, 1), call=st.sampled_from(REFUSED))
    def odd_arguments(self, by: int, call: Call) -> None:
        self.refused(lambda: call(self.repositories[by]))

    @precondition(lambda self: self.leases)
    @rule(by=st.integers(0, 1), number=st.integers(0, 7), duration=st.sampled_from(ODD_DURATIONS))
    def odd_durations_of_a_lease(self, by: int, number: int, duration: Any) -> None:
        lease = self._lease(number)
        self.refused(lambda: self.repositories[by].nack(lease, duration))
        self.refused(lambda: self.repositories[by].extend(lease, duration))

    def _lease(self, number: int) -> Lease[Any]:
        """Current, lapsed, stale or settled; more often a recent one."""
        return self.leases[-1 - number % len(self.leases)]


def _seconds(duration: float | timedelta) -> float:
    return duration.total_seconds() if isinstance(duration, timedelta) else float(duration)


def _stale(settle: Callable[[], object]) -> bool:
    try:
        settle()
    except StaleLease:
        return True
    return False
