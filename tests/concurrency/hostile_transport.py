"""The transport's claim against the seed's SELECT, whatever others have written."""

from __future__ import annotations

from random import Random
from typing import Any

from qstore.transport import operations, statements
from tests.concurrency.hostile import CONFLICTS, Command, Hostile
from tests.concurrency.seed import ForgivingSeedTransport, SeedTransport

GROUPS: tuple[Any, ...] = ("a", "b", "c", "é", "", b"a", "g" * 300)
INFINITY = float("inf")


def _named(text: str) -> str:
    text = text.replace("FROM messages", "FROM {messages}").replace("JOIN groups", "JOIN {groups}")
    return "\n".join(line.partition("--")[0] for line in text.split("\n"))


SELECT = _named(SeedTransport.SELECT)
FORGIVING = _named(ForgivingSeedTransport.SELECT)
FUTURE = "SELECT count(*) FROM {groups} WHERE last_claimed_at > ?"


class HostileTransport(Hostile):
    """Messages and groups in states that no implementation of the format would leave."""

    store = "transport"

    def reset(self) -> None:
        self.now = 1000.0
        self.leases: list[tuple[str, int, str, float]] = []
        for table in ("{messages}", "{groups}", "sqlite_sequence"):
            self.them(f"DELETE FROM {table}")

    def step(self, random: Random) -> None:
        chance = random.random()
        if chance < 0.42:
            self.them_at_their_worst(random)
        elif chance < 0.62:
            self.publish(random)
        elif chance < 0.78:
            self.claim(random)
        elif chance < 0.92 and self.leases:
            self.settle(random)
        else:
            self.now += random.choice((0, 0.5, 0.5, 1, 1, 2, 8, -0.5, -2, 500, -500))
            self.steps.append(f"clock {self.now}")

    def compare_once(self, random: Random) -> bool:
        before = self.now
        self.now += random.choice((0, 0, 0, 0.5, -0.5, 1, -1, 8, -8, 1e5, -1e5))
        floor = random.randrange(5)
        expected = self.seeds_choice(floor)
        found = operations.claim(self.tx, "w", random.choice((1e-9, 1, 8)), floor)
        self.steps.append(f"claim at {self.now}, floor {floor}: {found}, {expected}")
        assert (found and found[:2]) == (expected and expected[:2])
        assert self.look(FUTURE, self.now) == (0,), "a stamp still lies in the future"
        self.now = before
        return found is not None

    def seeds_choice(self, floor: int) -> Any:
        expected = self.look(FORGIVING, self.now, self.now, floor, self.now)
        if self.look(FUTURE, self.now) == (0,):
            assert self.look(SELECT, self.now, self.now, floor) == expected
        return expected

    def look(self, statement: str, *values: object) -> Any:
        rows = self.ours.execute(self.names.render(statement), values).fetchall()
        return rows[0] if rows else None

    def publish(self, random: Random) -> None:
        group, how = random.choice(GROUPS[:5]), random.random()
        if how < 0.4:
            self.steps.append(f"publish({group!r})")
            with self.transaction("COMMIT"):
                operations.publish(self.tx, group, "e", random.randrange(5))
            return
        self.them("INSERT INTO {messages} (group_id, event) VALUES (?, 'e')", (group,))
        if how < 0.8:
            priority = random.randrange(5)
            self.them("INSERT OR IGNORE INTO {groups} (group_id, priority) VALUES (?, ?)", (group, priority))

    def claim(self, random: Random) -> None:
        visibility, floor = random.choice((0.5, 1, 2, 8)), random.choice((0, 0, 1, 2, 3, 4))
        if random.random() < 0.5:
            with self.transaction("COMMIT"):
                expected = self.seeds_choice(floor)
                found = operations.claim(self.tx, "w", visibility, floor)
            self.steps.append(f"claim: {found}")
            assert (found and found[:2]) == (expected and expected[:2])
            if found is not None:
                self.leases.append(("w", found[0], found[1], found[3]))
        elif (row := self.look(SELECT, self.now, self.now, floor)) is not None:
            seq, group, _ = row
            if random.random() < 0.9:
                self.them("UPDATE {groups} SET last_claimed_at = ? WHERE group_id = ?", (self.now, group))
            until = self.now + visibility
            self.them("UPDATE {messages} SET locked_by = 's', lock_expiry = ? WHERE seq = ?", (until, seq))
            self.leases.append(("s", seq, group, until))

    def settle(self, random: Random) -> None:
        worker, seq, group, until = self.leases.pop(random.randrange(len(self.leases)))
        how = random.randrange(5)
        if how == 0:
            self.steps.append(f"ack({seq})")
            with self.transaction("COMMIT"):
                if self.tx.change(statements.ACK, seq=seq, worker_id=worker, lock_expiry=until):
                    self.tx.change(statements.ACK_GROUP, group_id=group)
        elif how == 1:
            self.steps.append(f"relock({seq})")
            with self.transaction("COMMIT"):
                operations._relock(
                    self.tx, (seq, group, worker, until), *random.choice(((None, None), (worker, self.now + 4)))
                )
        elif how == 2:
            values = ("__parked__", self.now + 2, seq)
            self.them("UPDATE {messages} SET locked_by = ?, lock_expiry = ? WHERE seq = ?", values)
        else:
            self.them("DELETE FROM {messages} WHERE seq = ?", (seq,))
            if how == 3:
                empty = "NOT EXISTS (SELECT 1 FROM {messages} WHERE group_id = ?)"
                self.them(f"DELETE FROM {{groups}} WHERE group_id = ? AND {empty}", (group, group))

    def hostile(self, random: Random) -> Command:
        conflict, seq, group = random.choice(CONFLICTS), self.one_of(random, "seq"), self.group(random)
        lock = [self.worker(random), self.instant(random)]
        match random.randrange(16):
            case 0 | 1 | 2:
                rows = [
                    (self.one_of(random, "seq") if random.random() < 0.5 else None, self.group(random), *lock)
                    for _ in range(random.choice((1, 1, 1, 2, 3)))
                ]
                places = ", ".join(["(?, ?, 'e', ?, ?)"] * len(rows))
                columns = "(seq, group_id, event, locked_by, lock_expiry)"
                return f"INSERT {conflict}INTO {{messages}} {columns} VALUES {places}", [
                    it for row in rows for it in row
                ]
            case 3:
                upsert = "ON CONFLICT (seq) DO UPDATE SET group_id = excluded.group_id, locked_by = ?, lock_expiry = ?"
                insert = f"INSERT {conflict}INTO {{messages}} (seq, group_id, event) VALUES (?, ?, 'e')"
                return f"{insert} {upsert}", [seq, group, *lock]
            case 4 | 5:
                return f"UPDATE {conflict}{{messages}} SET locked_by = ?, lock_expiry = ? WHERE seq = ?", [*lock, seq]
            case 6:
                where, which = random.choice(
                    (("group_id = ?", [group]), ("seq > ?", [seq]), ("locked_by IS NOT NULL", []))
                )
                change, to = random.choice(
                    (
                        ("lock_expiry = ?", lock[1:]),
                        ("locked_by = ?", lock[:1]),
                        ("locked_by = NULL, lock_expiry = NULL", []),
                        ("event = 'q'", []),
                        ("lock_expiry = lock_expiry + 1", []),
                    )
                )
                return f"UPDATE {conflict}{{messages}} SET {change} WHERE {where}", [*to, *which]
            case 7:
                return f"UPDATE {conflict}{{messages}} SET group_id = ? WHERE seq = ?", [group, seq]
            case 8:
                change, to = random.choice(
                    (
                        ("seq = ?", [self.one_of(random, "seq")]),
                        ("seq = seq + 1", []),
                        ("seq = -seq", []),
                        ("seq = ?, group_id = ?", [self.one_of(random, "seq"), group]),
                        ("seq = ?, locked_by = ?, lock_expiry = ?", [self.one_of(random, "seq"), *lock]),
                    )
                )
                where, which = random.choice((("seq = ?", [seq]), ("group_id = ?", [group]), ("1", [])))
                return f"UPDATE {conflict}{{messages}} SET {change} WHERE {where}", [*to, *which]
            case 9:
                if random.random() < 0.05:
                    return "DELETE FROM {messages}", []
                where, which = random.choice((("seq = ?", [seq]), ("seq = ?", [seq]), ("group_id = ?", [group])))
                return f"DELETE FROM {{messages}} WHERE {where}", which
            case 10 | 11:
                columns = "(group_id, last_claimed_at, priority) VALUES (?, ?, ?)"
                return f"INSERT {conflict}INTO {{groups}} {columns}", [group, self.stamp(random), self.priority(random)]
            case 12:
                upsert = "ON CONFLICT (group_id) DO UPDATE SET priority = excluded.priority, last_claimed_at = ?"
                values = [group, self.priority(random), self.stamp(random)]
                return f"INSERT {conflict}INTO {{groups}} (group_id, priority) VALUES (?, ?) {upsert}", values
            case 13:
                change, to = random.choice(
                    (
                        ("last_claimed_at = ?", [self.stamp(random)]),
                        ("priority = ?", [self.priority(random)]),
                        ("group_id = ?", [self.group(random)]),
                        ("last_claimed_at = NULL", []),
                        ("group_id = group_id", []),
                    )
                )
                where, which = random.choice((("group_id = ?", [group]), ("group_id = ?", [group]), ("1", [])))
                return f"UPDATE {conflict}{{groups}} SET {change} WHERE {where}", [*to, *which]
            case 14:
                return "DELETE FROM {groups} WHERE group_id = ?", [group]
            case _:
                return "REPLACE INTO {groups} (group_id, priority) VALUES (?, ?)", [group, self.priority(random)]

    def group(self, random: Random) -> Any:
        return random.choice(GROUPS[:4] if random.random() < 0.8 else (*GROUPS, None))

    def worker(self, random: Random) -> Any:
        return random.choice((None, None, None, "x", "y", "__parked__", "", b"w", 7))

    def priority(self, random: Random) -> Any:
        return random.choice((0, 0, 1, 2, 3, 4, 4, -1, 5, 7, 2.5, -0.5, "hi", b"p", "3", 3.999, 10**15, -(10**15)))

    def instant(self, random: Random) -> Any:
        if random.random() < 0.75:
            return self.now + random.choice((-8, -2, -1, -0.5, 0, 0, 0.5, 1, 2, 8, 30))
        odd = (
            None,
            INFINITY,
            -INFINITY,
            0,
            -5,
            5,
            1e308,
            -1e308,
            "abc",
            "1001",
            "",
            b"x",
            b"",
            10**18,
            -(10**18),
            1e-9,
        )
        return random.choice(odd)

    def stamp(self, random: Random) -> Any:
        stamp = self.instant(random)
        return 0.0 if stamp is None or random.random() < 0.3 else stamp
