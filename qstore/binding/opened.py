"""Bound to an engine that qstore opened on a file: statements run on held connections, and writers share commits."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar, TypeVarTuple

from sqlalchemy import Engine
from typing_extensions import override

from qstore import engines
from qstore.binding.binding import Binding, raise_known
from qstore.binding.engine import EngineBinding
from qstore.engines import File, listened_to
from qstore.engines.holding import Held
from qstore.engines.line import Write
from qstore.engines.results import BUSY_TIMEOUT, busy, kept_out, unsure
from qstore.errors import QstoreError
from qstore.transaction import DriverTransaction, Store, Transaction, seen_on

__all__ = ["OpenedBinding"]

Ts = TypeVarTuple("Ts")
R = TypeVar("R")

MOMENT = 0.05
"""Seconds for which a read takes the file to be the one that it was, and the log to be wanted or not."""


class OpenedBinding(Binding):
    """Statements run on the driver's connection, unless somebody listens to them."""

    def __init__(self, engine: Engine, store: Store) -> None:
        self._listened = EngineBinding(engine, store)
        self._engine = engine
        self._store = store
        self._file: File = engine.get_execution_options()["qstore_file"]
        self._seen = seen_on(engine, store.names)

    def __str__(self) -> str:
        return str(self._listened)

    @override
    def read(self, operation: Callable[[Transaction, *Ts], R], *args: *Ts) -> R:
        engine = self._engine
        try:
            if time.monotonic() >= self._file.look_again:
                self._look()
            if engine._has_events or engine.dialect._has_events or self._file.logged:
                return self._listened.read(operation, *args)
            pool: Any = engine.pool
            held = pool.take()
            try:
                result = operation(self._on(held), *args)
            except BaseException:
                held.end()
                raise
            pool.give(held)
            return result
        except engines.ERRORS as error:
            if busy(error):  # held connections do not wait; this one does
                return self._listened.read(operation, *args)
            raise_known(error, self._engine, self._store)

    @override
    def write(self, operation: Callable[[Transaction, *Ts], R], *args: *Ts) -> R:
        if listened_to(self._engine):
            return self._listened.write(operation, *args)
        who: object = object()
        try:
            if not self._file.line.enter(who):
                mine: Write[R] = Write(lambda held: operation(self._on(held), *args))
                who = mine
                if not self._comes_to_lead(mine):
                    if mine.failure is not None:
                        raise mine.failure
                    return mine.result  # type: ignore[no-any-return]  # it is this operation's, run by another thread
            return self._committed(operation, *args)
        except engines.ERRORS as error:
            raise_known(error, self._engine, self._store)
        finally:
            self._leave(who)

    @override
    def tidy(self, operation: Callable[[Transaction, *Ts], R], *args: *Ts) -> None:
        if listened_to(self._engine):
            self._listened.tidy(operation, *args)
        elif not self._file.read_only:
            who = object()
            try:
                if self._file.line.enter(who):
                    with suppress(QstoreError, *engines.ERRORS):
                        self._committed(operation, *args, waits=False)
            finally:
                self._leave(who)

    def _look(self) -> None:
        """Look at what a read does not look at each time: either takes as long as one."""
        self._file.check()
        self._file.logged = listened_to(self._engine)
        self._file.look_again = time.monotonic() + MOMENT

    def _leave(self, who: object) -> None:
        """Lead no more, whatever interrupts this: nobody else could write."""
        line = self._file.line
        try:
            line.leave(who)
        except BaseException:
            line.leave(who)
            raise

    def _comes_to_lead(self, mine: Write[R]) -> bool:
        """Wait behind others, until it is taken along (False) or its turn to lead."""
        line = self._file.line
        try:
            line.join(mine)
            in_time = mine.wait(BUSY_TIMEOUT)
            late = not in_time and line.withdraw(mine)
            if not in_time and not late:
                mine.wait()
        except BaseException:
            line.abandon(mine)
            raise
        if late:
            raise kept_out(self._file.path)
        return not mine.ended

    def _committed(self, operation: Callable[[Transaction, *Ts], R], *args: *Ts, waits: bool = True) -> R:
        """Run an operation in a transaction, and with it the writes that wait behind."""
        self._file.check()
        pool: Any = self._engine.pool
        line, held = self._file.line, pool.take()
        execute = held.driver.execute
        along: list[Write[Any]] = []
        alone = not waits
        apart = committing = False
        try:
            while True:
                self._file.turns.begin(held.driver, held.patience if waits else 0)
                try:
                    result = operation(self._on(held), *args)
                    if line.waiting and not alone:
                        along += line.take()
                    self._take_along(along, execute, held, apart=apart)
                    committing = True
                    execute("COMMIT")
                    break
                except Exception as error:
                    if not along:
                        raise
                    if committing and unsure(error):  # so are all of them, but for one that had failed by itself
                        for each in along:
                            each.failure = each.failure or error
                        line.end(along)
                        raise
                    # It need not have been this one's fault. Nothing has happened yet: once more, with a savepoint for
                    # each one; and where it is the whole that fails, each one by itself.
                    held.undo()
                    if apart or committing:
                        line.put_back(along)
                        alone, along = True, []
                    apart, committing = True, False
        except BaseException:
            if committing and not held.driver.in_transaction:  # it was interrupted when all was done
                line.end(along)
            else:
                line.put_back(along)
            held.end()
            raise
        try:
            pool.give(held)
        finally:
            line.end(along)
        return result

    def _take_along(
        self, along: list[Write[Any]], execute: Callable[[str], object], held: Held, *, apart: bool
    ) -> None:
        """Run the writes of others in this transaction. `apart`: an error of one of them is its own."""
        for each in along:
            if apart:
                self._run_apart(each, execute, held)
                continue
            try:
                each.failure = None
                each.result = each.run(held)
            except KeyboardInterrupt:
                raise  # nobody's error: it came to this thread
            except BaseException as error:
                raise sqlite3.OperationalError("one of several writes failed") from error

    def _run_apart(self, each: Write[Any], execute: Callable[[str], object], held: Held) -> None:
        execute("SAVEPOINT qstore_operation")
        try:
            each.failure = None
            each.result = each.run(held)
        except KeyboardInterrupt:
            raise  # as above
        except BaseException as error:
            each.failure = error
            if not held.driver.in_transaction:
                each.end()
                raise sqlite3.OperationalError("undone by SQLite") from error
            execute("ROLLBACK TO qstore_operation")
        execute("RELEASE qstore_operation")

    def _on(self, held: Held) -> DriverTransaction:
        """The handle on a connection, which keeps it for as long as it is this store that uses it."""
        handle: DriverTransaction | None = held.handle
        if handle is None or handle._store is not self._store:
            handle = held.handle = DriverTransaction(held, self._store, self._seen)
        return handle
