"""What the seeds' texts deliver next, in plain Python: the yardsticks of the transport and the queue on a server."""

from __future__ import annotations

from dataclasses import dataclass, field

Fence = tuple[int, str, str, float]
"""seq, group, worker, expiry."""


@dataclass
class Message:
    group: str
    holder: str | None = None
    expiry: float | None = None


@dataclass
class Group:
    priority: int
    stamp: float = 0.0
    waiting: bool = False
    """Whether a claim or a park holds it, until that is given back or noticed to have lapsed."""


@dataclass
class TransportModel:
    """The seed's claim: the group claimed longest ago, with nothing in flight; a stamp that lies ahead counts as now.

    A stamp is set to now when a claim meets one that lies ahead, on a group that waits for nothing; on one that waits
    when the wait is over.
    """

    messages: dict[int, Message] = field(default_factory=dict)
    groups: dict[str, Group] = field(default_factory=dict)

    def publish(self, seq: int, group: str, priority: int) -> None:
        self.messages[seq] = Message(group)
        self.groups.setdefault(group, Group(priority))

    def claim(self, worker: str, visibility: float, floor: int, now: float) -> Fence | None:
        self._settle(now)
        held = {each.group for each in self.messages.values() if each.expiry is not None and each.expiry >= now}
        free = [
            (self.groups[each.group].stamp, seq)
            for seq, each in self.messages.items()
            if each.group not in held and self.groups[each.group].priority >= floor
        ]
        if not free:
            return None
        _, seq = min(free)
        message = self.messages[seq]
        group = self.groups[message.group]
        group.stamp, group.waiting = now, True
        message.holder, message.expiry = worker, now + visibility
        return seq, message.group, worker, now + visibility

    def answer(self, fence: Fence) -> str:
        """Whether a lease is good, stale, or on a message that is gone."""
        seq, _, worker, expiry = fence
        if seq not in self.messages:
            return "gone"
        message = self.messages[seq]
        return "good" if (message.holder, message.expiry) == (worker, expiry) else "stale"

    def ack(self, fence: Fence, now: float) -> str:
        answer = self.answer(fence)
        if answer == "good":
            group = self.messages.pop(fence[0]).group
            if any(each.group == group for each in self.messages.values()):
                self._release(group, now, waiting=False)
            else:
                del self.groups[group]
        return answer

    def relock(self, fence: Fence, holder: str | None, expiry: float | None, now: float) -> str:
        answer = self.answer(fence)
        if answer == "good":
            message = self.messages[fence[0]]
            message.holder, message.expiry = holder, expiry
            self._release(message.group, now, waiting=expiry is not None)
        return answer

    def rows(self) -> list[tuple[int, str, str | None, float | None]]:
        return [(seq, each.group, each.holder, each.expiry) for seq, each in sorted(self.messages.items())]

    def _settle(self, now: float) -> None:
        for message in self.messages.values():
            group = self.groups[message.group]
            if group.waiting and message.expiry is not None and message.expiry < now:
                self._release(message.group, now, waiting=False)
        for group in self.groups.values():
            if not group.waiting:
                group.stamp = min(group.stamp, now)

    def _release(self, name: str, now: float, *, waiting: bool) -> None:
        group = self.groups[name]
        group.stamp, group.waiting = min(group.stamp, now), waiting


@dataclass
class Sent:
    enqueued_at: int
    visible_at: int
    attempt: int = 0
    receipt: str | None = None


@dataclass
class QueueModel:
    """The seed's receive: what is due, in the order in which it was sent."""

    messages: dict[int, Sent] = field(default_factory=dict)

    def due(self, most: int, now: int) -> list[int]:
        due = sorted((each.enqueued_at, id) for id, each in self.messages.items() if each.visible_at <= now)
        return [id for _, id in due[:most]]

    def answer(self, id: int, receipt: str) -> str:
        if id not in self.messages:
            return "gone"
        return "good" if self.messages[id].receipt == receipt else "stale"
