"""Other processes that use a file with turso: what plain sqlite3 is to the stores on SQLite."""

from __future__ import annotations

import atexit
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from functools import cache
from pathlib import Path
from threading import Lock
from typing import Any

from qstore.engines.turso.driver import Connection
from tests.concurrency.processes import CONTEXT
from tests.write_lock import can_begin

__all__ = ["is_free", "locked", "rows"]


def rows(path: Path, statement: str, values: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Run a statement in another process."""
    found: list[tuple[Any, ...]] = _looking().ask("rows", path, statement, values)
    return found


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the write lock in another process."""
    _locking().ask("lock", path)
    yield
    _locking().ask("unlock")


def is_free(path: Path) -> bool:
    """Whether another process could have the write lock at once."""
    return bool(_looking().ask("is_free", path))


class _Hand:
    """A process that does what it is asked."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._pipe, theirs = CONTEXT.Pipe()
        self._process = CONTEXT.Process(target=_serve, args=(theirs,), daemon=True)
        self._process.start()
        theirs.close()
        atexit.register(self._close)

    def ask(self, *asked: Any) -> Any:
        with self._lock:
            self._pipe.send(asked)
            assert self._pipe.poll(60), f"no answer to {asked}"
            answer, error = self._pipe.recv()
        if error is not None:
            raise error
        return answer

    def _close(self) -> None:
        with suppress(OSError):
            self._pipe.close()
        self._process.join(10)


@cache
def _looking() -> _Hand:
    return _Hand()


@cache
def _locking() -> _Hand:
    return _Hand()


def _serve(pipe: Any) -> None:
    held: list[Connection] = []
    with suppress(EOFError):
        while True:
            asked, *arguments = pipe.recv()
            try:
                answer = _done(held, asked, *arguments)
            except Exception as error:  # noqa: BLE001  it is raised where it was asked
                pipe.send((None, error))
            else:
                pipe.send((answer, None))


def _done(held: list[Connection], asked: str, *arguments: Any) -> Any:
    if asked == "unlock":
        held.pop().close()
        return None
    path, *rest = arguments
    connection = Connection(str(path))
    if asked == "lock":
        connection.execute("BEGIN IMMEDIATE")
        held.append(connection)
        return None
    with closing(connection):
        if asked == "rows":
            return connection.execute(*rest).fetchall()
        connection.execute("PRAGMA busy_timeout = 0")
        return can_begin(connection)
