"""A store in one hand and a plain model of it in the other, led through random histories by hypothesis.

The models say what semantics 6 to 8 and 13 to 28 say, and know nothing of how the stores do it. A history has two
repositories on one store, a clock that the history moves, both ways, and restarts. A short run is part of the suite;
QSTORE_TEST_HISTORIES makes it a long one, and QSTORE_TEST_HISTORY chooses other histories, by a seed:

    QSTORE_TEST_HISTORIES=5000 QSTORE_TEST_HISTORY=7 python -m pytest tests/stateful --timeout 0
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from datetime import timedelta
from fractions import Fraction
from math import ceil
from pathlib import Path
from shutil import copyfile
from tempfile import TemporaryDirectory, mkdtemp
from typing import Any, ClassVar

from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test
from sqlalchemy import URL

from qstore import InvalidInput
from qstore.errors import shown
from tests.backends import BACKENDS, MOUNTED, Backend, ManualClock, ServerBackend
from tests.concurrency.histories import HISTORIES, HISTORY
from tests.postgres import connect

START = 1_700_000_000_000
"""Epoch milliseconds, at which each history begins."""


class OddStr(str):
    """Text that says something else of itself, and is cut where it is long."""

    __slots__ = ()

    def __str__(self) -> str:
        return "something else"

    def __repr__(self) -> str:
        return shown(str.__str__(self))


class OddInt(int):
    """A number that is written as something else."""

    def __str__(self) -> str:
        return "something else"

    __repr__ = __str__


class Call:
    """A call on a repository, with arguments that may be too odd to be written out."""

    def __init__(self, method: str, *args: Any, **keywords: Any) -> None:
        self._method, self._args, self._keywords = method, args, keywords

    def __call__(self, repository: Any) -> Any:
        return getattr(repository, self._method)(*self._args, **self._keywords)

    def __repr__(self) -> str:
        return f"{self._method}({shown(self._args)}, {shown(self._keywords)})"


class StoreMachine(RuleBasedStateMachine):
    """What the machines of all stores have. One history is one of these."""

    kind = "opened"
    directory: Path
    url: URL | None = None
    store = ""
    arguments: ClassVar[dict[str, Any]] = {}

    def __init__(self) -> None:
        super().__init__()
        self.clock = ManualClock(START / 1000)
        self.milliseconds = START
        self._files = TemporaryDirectory(dir=self.directory)
        self.backend = self._make_backend()
        self.open_all()

    def _make_backend(self) -> Backend:
        kind = BACKENDS[self.kind]
        if self.url is None:
            return kind(Path(mkdtemp(dir=self._files.name)))
        assert issubclass(kind, ServerBackend)
        tables = {"transport": "{messages}, {groups}", "localkv": "{kv}", "localqueue": "{messages}"}[self.store]
        with connect(self.url) as connection:
            connection.execute(MOUNTED.of(self.store).render(f"TRUNCATE {tables} RESTART IDENTITY").encode())
        return kind(Path(self._files.name), self.url)

    def open(self, **arguments: Any) -> Any:
        """Another repository on the store."""
        return getattr(self.backend, self.store)(clock=self.clock, **self.arguments, **arguments)

    def open_all(self) -> None:
        """Open all repositories of a process that begins."""
        self.repositories = [self.open(), self.open()]

    def compare(self) -> None:
        """Compare what the store holds with the model."""
        raise NotImplementedError

    def instants(self) -> Iterable[int]:
        """When something lapses, expires or is due, in epoch milliseconds."""
        raise NotImplementedError

    @invariant()
    def the_store_is_as_the_model(self) -> None:
        self.compare()

    @rule(milliseconds=st.sampled_from((0, 1, 125, 125, 500, 1000, 1000, 4000, 30_000, 3_600_000)))
    def time_passes(self, milliseconds: int) -> None:
        self._set_clock(self.milliseconds + milliseconds)

    @rule(aside=st.sampled_from((-1, 0, 0, 0, 1)), number=st.integers(0, 3))
    def time_comes(self, aside: int, number: int) -> None:
        """The very instant of an expiry, or the millisecond before or after it."""
        ahead = sorted({instant for instant in self.instants() if instant > self.milliseconds})
        if ahead:
            self._set_clock(ahead[number % len(ahead)] + aside)

    @rule(milliseconds=st.sampled_from((1, 500, 2000, 3_600_000, 11 * 86_400_000)))
    def the_clock_is_set_back(self, milliseconds: int) -> None:
        if self.url is None or self.store != "transport":  # on a server see tests/concurrency: stamps settle later
            self._set_clock(self.milliseconds - milliseconds)

    @rule(which=st.integers(0, 1))
    def restart(self, which: int) -> None:
        """Close a repository and open another one: nothing but the store is left."""
        self.repositories[which].close()
        self.repositories[which] = self.open()

    @precondition(lambda self: self.url is None)
    @rule()
    def crash(self) -> None:
        """Begin again with a copy of the files as they are while they are open, without what SQLite shares of them."""
        left = self.backend
        self.backend = self._make_backend()
        for path in left.directory.iterdir():
            if not path.name.endswith("-shm"):
                copyfile(path, self.backend.directory / path.name)
        left.close()
        self.open_all()

    def _set_clock(self, milliseconds: int) -> None:
        self.milliseconds = milliseconds
        self.clock.now = milliseconds / 1000

    def refused(self, call: Callable[[], Any]) -> None:
        """Call with what no store takes. That nothing is changed, the invariant sees."""
        try:
            found = call()
        except InvalidInput:
            return
        raise AssertionError(f"not refused, but {found!r}")

    def teardown(self) -> None:
        self.backend.close()
        self._files.cleanup()


def whole_milliseconds(duration: float | timedelta) -> int:
    """A duration in milliseconds, rounded up."""
    exact = duration.total_seconds() if isinstance(duration, timedelta) else duration
    return ceil(Fraction(int(exact) if isinstance(exact, int) else repr(exact)) * 1000)


def run(
    machine: type[StoreMachine], kind: str, url: URL | None, directory: Path, *, histories: int, steps: int = 40
) -> None:
    """Lead a store of a kind through histories, until one of them goes wrong."""
    number = int(os.environ.get(HISTORY, "0"))
    histories = int(os.environ.get(HISTORIES, histories))
    chosen = type(machine.__name__, (machine,), {"kind": kind, "directory": directory, "url": url})
    try:
        run_state_machine_as_test(
            seed(number)(chosen),
            settings=settings(
                max_examples=histories,
                stateful_step_count=steps,
                database=None,
                deadline=None,
                report_multiple_bugs=False,
                phases=[Phase.generate, Phase.shrink] if HISTORIES in os.environ else [Phase.generate],
                suppress_health_check=list(HealthCheck),  # files are slow, and how slow is not what is tested
            ),
        )
    except BaseException as error:
        error.add_note(f"replay with {HISTORY}={number} {HISTORIES}={histories}, which also shortens the history")
        raise
