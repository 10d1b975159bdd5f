"""The queue's receive against the seed's SELECT, whatever others have written."""

from __future__ import annotations

from random import Random
from typing import Any

from qstore.localqueue import operations
from tests.concurrency.hostile import CONFLICTS, Command, Hostile

DUE = "SELECT id FROM {messages} WHERE visible_at <= ? ORDER BY enqueued_at, id LIMIT ?"
INFINITY = float("inf")


class HostileQueue(Hostile):
    """Messages in states that no implementation of the format would leave."""

    store = "localqueue"

    def reset(self) -> None:
        self.now = 1000.0
        self.them("DELETE FROM {messages}")
        self.them("DELETE FROM sqlite_sequence")

    @property
    def milliseconds(self) -> int:
        return round(self.now * 1000)

    def step(self, random: Random) -> None:
        chance, now = random.random(), self.milliseconds
        if chance < 0.2:
            self.steps.append("send")
            with self.transaction("COMMIT"):
                self.try_to_send()
        elif chance < 0.5:
            with self.transaction("COMMIT"):
                self.receive(random, random.choice((0, 1, 5, 30, 1000)))
        elif chance < 0.55:
            for (id,) in self.ours.execute(self.names.render(DUE), (now, random.choice((1, 2, 10)))).fetchall():
                change = "visible_at = ?, attempt = attempt + 1, receipt_handle = 's'"
                self.them(f"UPDATE {{messages}} SET {change} WHERE id = ?", (now + random.choice((0, 5, 30)), id))
        elif chance < 0.62:
            self.them("UPDATE {messages} SET visible_at = ? WHERE id = ?", (now, self.one_of(random, "id")))
        elif chance < 0.68:
            self.them("DELETE FROM {messages} WHERE id = ?", (self.one_of(random, "id"),))
        elif chance < 0.685:
            self.them("DELETE FROM {messages}")
        elif chance < 0.75:
            self.now += random.choice((0, 1, 1, 5, 30, 1000, -1, -30, -5000)) / 1000
            self.steps.append(f"clock {self.milliseconds}")
        else:
            self.them_at_their_worst(random)

    def compare_once(self, random: Random) -> bool:
        before = self.now
        self.now += random.choice((0, 0, 0, 1, -1, 5, 30, -30, 5000, -5000)) / 1000
        found = self.receive(random, random.choice((0, 5)))
        self.now = before
        return found

    def receive(self, random: Random, timeout: int) -> bool:
        most = random.choice((1, 1, 2, 5, 10, 1000))
        expected = self.ours.execute(self.names.render(DUE), (self.milliseconds, most)).fetchall()
        found = [(each[0],) for each in operations.receive(self.tx, most, timeout)]
        self.steps.append(f"receive({most}) at {self.milliseconds}: {found}, {expected}")
        assert found == expected
        return bool(found)

    def try_to_send(self) -> None:
        highest = self.ours.execute("SELECT max(seq) FROM sqlite_sequence").fetchone()[0]
        if highest is None or highest < 2**62:  # AUTOINCREMENT has no id after the highest
            operations.send(self.tx, "text", "p")

    def hostile(self, random: Random) -> Command:
        conflict, id, at = random.choice(CONFLICTS), self.one_of(random, "id"), self.instant(random)
        receipt = random.choice((None, "u1", "u2"))
        match random.randrange(7):
            case 0 | 1:
                rows: list[Any] = []
                for _ in range(random.choice((1, 1, 3))):
                    enqueued_at = self.instant(random)
                    visible_at = enqueued_at if random.random() < 0.4 else self.instant(random)
                    id = self.one_of(random, "id") if random.random() < 0.6 else None
                    rows += [id, enqueued_at, visible_at, receipt]
                columns = "(id, payload_type, payload_data, enqueued_at, visible_at, receipt_handle)"
                places = ", ".join(["(?, 't', 'd', ?, ?, ?)"] * (len(rows) // 4))
                return f"INSERT {conflict}INTO {{messages}} {columns} VALUES {places}", rows
            case 2:
                change = "visible_at = ?, receipt_handle = ?"
                return f"UPDATE {conflict}{{messages}} SET {change} WHERE id = ?", [at, receipt, id]
            case 3:
                return f"UPDATE {conflict}{{messages}} SET enqueued_at = ? WHERE id = ?", [at, id]
            case 4:
                values = [self.one_of(random, "id"), at, id]
                return f"UPDATE {conflict}{{messages}} SET id = ?, visible_at = ? WHERE id = ?", values
            case 5:
                whole = ("visible_at = enqueued_at", "id = id + 1", "id = -id", "visible_at = visible_at + 1")
                return f"UPDATE {conflict}{{messages}} SET {random.choice(whole)}", []
            case _:
                columns = "(id, payload_type, payload_data, enqueued_at, visible_at)"
                return f"REPLACE INTO {{messages}} {columns} VALUES (?, 't', 'd', ?, ?)", [id, at, self.instant(random)]

    def instant(self, random: Random) -> Any:
        now = self.milliseconds
        if random.random() < 0.85:
            return now + random.choice((-3000, -30, -5, -1, 0, 0, 0, 1, 5, 30, 1000))
        odd = (0, -5, INFINITY, -INFINITY, 1.5, now + 0.5, "abc", "1000005", "", b"x", 10**18, -(10**18), 2**63 - 1)
        return random.choice(odd)
