"""Stores at their newest revision that others write to in every way that SQLite has, beside the seed's own queries."""

from __future__ import annotations

import sqlite3
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

from qstore import Naming
from qstore.formats import ADDITIONS, Addition
from qstore.transaction import DriverTransaction, Seen, Store
from tests.concurrency import histories

CONFLICTS = ("", "", "OR IGNORE ", "OR REPLACE ", "OR REPLACE ", "OR FAIL ", "OR ABORT ", "OR ROLLBACK ")

Command = tuple[str, Sequence[Any]]


class Hostile(ABC):
    """One file, with a connection of qstore's and one of somebody else's, led through random histories."""

    store: str

    def __init__(self, path: Path, naming: Naming) -> None:
        self.names = naming.of(self.store)
        self.addition: Addition = ADDITIONS[self.store]
        self.ours = sqlite3.connect(path, isolation_level=None)
        self.theirs = sqlite3.connect(path, isolation_level=None)
        self.ours.execute("PRAGMA journal_mode = WAL").fetchall()
        for connection in (self.ours, self.theirs):
            connection.execute("PRAGMA synchronous = OFF")
        for statement in (*self.addition.format.statements(self.names, "sqlite"), *self.addition.ddl(self.names)):
            self.ours.execute(statement)
        self.refill()
        self.now = 0.0
        self.steps: list[str] = []
        self.comparisons = 0
        self.found = 0
        held: Any = SimpleNamespace(driver=self.ours)
        self.tx = DriverTransaction(held, Store(self.names, lambda: self.now), Seen())

    def close(self) -> None:
        self.ours.close()
        self.theirs.close()

    def run(self, seed: int, length: int = 40) -> None:
        self.steps.clear()
        self.reset()
        with histories.replayable(seed, self.steps) as random:
            for _ in range(length):
                self.step(random)
                self.compare(random)

    @abstractmethod
    def reset(self) -> None:
        """Begin with nothing."""

    @abstractmethod
    def step(self, random: Random) -> None:
        """Change something, in qstore's way, the seed's or any other."""

    @abstractmethod
    def compare_once(self, random: Random) -> bool:
        """Hold what qstore would do against the seed's query, in the open transaction. Whether there was anything."""

    @abstractmethod
    def hostile(self, random: Random) -> Command:
        """A statement that no implementation of the format would run."""

    def compare(self, random: Random) -> None:
        self.check()
        if random.random() < 0.03:
            self.steps.append("repair")
            self.refill()
            self.check()
        for _ in range(4):
            with self.transaction("COMMIT" if random.random() < 0.2 else "ROLLBACK"):
                self.found += self.compare_once(random)
                self.comparisons += 1
            self.check()

    def check(self) -> None:
        [faults] = self.addition.rendered(self.names, (self.addition.faults,))
        assert self.ours.execute(faults).fetchall() == [], "the side table differs"

    def refill(self) -> None:
        with self.transaction("COMMIT"):
            for statement in self.addition.rendered(self.names, self.addition.fill):
                self.ours.execute(statement)

    @contextmanager
    def transaction(self, end: str) -> Iterator[None]:
        self.ours.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            self.ours.execute("ROLLBACK")
            raise
        self.ours.execute(end)

    def them(self, statement: str, values: Sequence[Any] = ()) -> None:
        """Let the others run a statement, which SQLite may refuse."""
        self.steps.append(f"{statement} {values}")
        try:
            self.theirs.execute(self.names.render(statement), values).fetchall()
        except sqlite3.IntegrityError as error:
            self.steps.append(f"  {error}")
        except sqlite3.OperationalError as error:  # AUTOINCREMENT has no id after the highest
            if error.sqlite_errorcode != sqlite3.SQLITE_FULL:
                raise

    def them_at_their_worst(self, random: Random) -> None:
        """Hostile statements, alone or in a savepoint that is undone, with triggers of a REPLACE or without."""
        chance = random.random()
        self.theirs.execute(f"PRAGMA recursive_triggers = {int(chance < 0.1)}")
        if chance > 0.85:
            self.theirs.execute("BEGIN")
            self.theirs.execute("SAVEPOINT z")
            for _ in range(random.randrange(1, 4)):
                self.them(*self.hostile(random))
            if self.theirs.in_transaction:
                self.them(random.choice(("ROLLBACK TO z", "RELEASE z")))
                self.theirs.execute("COMMIT")
        else:
            self.them(*self.hostile(random))
        self.theirs.execute("PRAGMA recursive_triggers = 0")

    def one_of(self, random: Random, column: str) -> Any:
        """A value that is there, more often than not."""
        if random.random() < 0.7 and (
            rows := self.theirs.execute(self.names.render(f"SELECT {column} FROM {{messages}}")).fetchall()
        ):
            return random.choice(rows)[0]
        return random.choice((1, 2, 3, 5, 8, -1, -7, 0, 20, 2**40))
