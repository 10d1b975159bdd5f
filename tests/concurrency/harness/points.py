"""Named points of an operation, or of a revision, at which a process kills itself, when it is told to."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

from qstore.engines.holding import Held
from qstore.served import ServedTransaction

__all__ = ["AFTER_A_COMMIT", "POINTS", "REVISING", "dying_at", "install"]

POINTS = ("", "before a statement", "before the commit", "after the commit")

AFTER_A_COMMIT = "after COMMIT"

REVISING = (
    *("DROP TRIGGER", "DROP INDEX", "DROP TABLE", "UPDATE qstore_alembic_version"),
    *("CREATE TABLE", "CREATE INDEX", "CREATE TRIGGER", "DELETE FROM", "INSERT INTO", "COMMIT", AFTER_A_COMMIT),
)
"""How the statements begin between which a revision is left."""


class Orders(Protocol):
    """Where it is told so."""

    def __getitem__(self, order: str) -> int: ...

    def __setitem__(self, order: str, number: int) -> None: ...


def install(orders: Orders, *, files: bool) -> None:
    """Make them points of this process."""

    def reached(point: str) -> None:
        if orders["point"] == POINTS.index(point):
            orders["count"] -= 1
            if orders["count"] <= 0:
                os.kill(os.getpid(), signal.SIGKILL)

    if files:
        _on_files(orders, reached)
    else:
        _on_a_server(reached)


def dying_at(point: str, times: int) -> Callable[[str], None]:
    """What a connection tells its statements to, before each: it kills this process at the so-manieth of this point."""
    last = ""

    def trace(statement: str) -> None:
        nonlocal times, last
        here = last == "COMMIT" if point == AFTER_A_COMMIT else statement.startswith(point)
        last = statement
        times -= here
        if here and times <= 0:
            os.kill(os.getpid(), signal.SIGKILL)

    return trace


class _Driver:
    """A driver's connection whose commits are points, and which fills up when it is told so."""

    def __init__(self, driver: Any, orders: Orders, reached: Callable[[str], None]) -> None:
        self._driver, self._orders, self._reached = driver, orders, reached
        self._full = False
        if hasattr(driver, "set_trace_callback"):
            driver.set_trace_callback(self._trace)
        else:  # turso's
            driver._run = partial(self._traced, driver._run)

    def execute(self, sql: str, *values: Any) -> Any:
        if sql == "BEGIN IMMEDIATE":
            self._limit()
        if sql != "COMMIT":
            return self._driver.execute(sql, *values)
        self._reached("before the commit")
        result = self._driver.execute(sql)
        self._reached("after the commit")
        return result

    def _limit(self) -> None:
        if self._full != bool(self._orders["pages"]):
            self._full = not self._full
            [pages] = self._driver.execute("PRAGMA page_count").fetchone()
            self._driver.execute(f"PRAGMA max_page_count = {pages if self._full else 4294967294}").fetchall()

    def _traced(self, run: Callable[..., Any], statement: str, *values: Any) -> Any:
        self._trace(statement)
        return run(statement, *values)

    def _trace(self, statement: str) -> None:
        if statement not in ("BEGIN IMMEDIATE", "COMMIT"):
            self._reached("before a statement")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._driver, name)


def _on_files(orders: Orders, reached: Callable[[str], None]) -> None:
    hold = Held.__init__

    def held(self: Held, *args: Any) -> None:
        hold(self, *args)
        self.driver = _Driver(self.driver, orders, reached)

    setattr(Held, "__init__", held)  # noqa: B010  of this process, which is nothing else


def _on_a_server(reached: Callable[[str], None]) -> None:
    """Each statement is committed by itself."""
    for name in ("rows", "change"):
        run: Callable[..., Any] = getattr(ServedTransaction, name)

        def pointed(self: ServedTransaction, *args: Any, run: Callable[..., Any] = run, **binds: Any) -> Any:
            reached("before a statement")
            reached("before the commit")
            result = run(self, *args, **binds)
            reached("after the commit")
            return result

        setattr(ServedTransaction, name, pointed)
