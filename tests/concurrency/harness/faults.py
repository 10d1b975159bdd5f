"""What befalls the processes of a round, and what they stand on."""

from __future__ import annotations

import errno
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from tests import postgres
from tests.concurrency.harness import foreign
from tests.concurrency.harness.places import Place
from tests.concurrency.harness.points import POINTS, REVISING
from tests.concurrency.harness.shim import Calls, Files, Mode
from tests.concurrency.harness.storm import Storm
from tests.concurrency.postgres_storm import end_a_session

__all__ = ["FAULTS", "ON_SHIMS", "READ_ONLY", "Fault"]

HOUR, ELEVEN_DAYS = 3600.0, 11 * 86_400.0
FILES = ("transport", "localqueue", "localkv")

CHECKPOINTING = {
    "before the sync of the log": (Mode.DIE, Calls.SYNCS, Files.LOG),
    "before a write to the database": (Mode.DIE, Calls.WRITES, Files.MAIN),
    "half-way through a write to the database": (Mode.DIE_HALF_WAY, Calls.WRITES, Files.MAIN),
    "before the sync of the database": (Mode.DIE, Calls.SYNCS, Files.MAIN),
    "before the log is cut": (Mode.DIE, Calls.WRITES, Files.LOG),
}
"""Where one who writes the log back is killed."""


class Fault(NamedTuple):
    """Something that happens at random. `excuses`: what calls may come to because of it, by how their errors begin."""

    happen: Callable[[Storm], None]
    files: bool = True
    server: bool = True
    turso: bool = False
    excuses: tuple[str, ...] = ()
    weight: float = 1

    def may_be(self, place: type[Place]) -> bool:
        """Whether there is such a thing where stores are of this kind."""
        if place.alone:
            return self.turso
        return self.files if place.on_files else self.server


def _kill(storm: Storm) -> None:
    storm.kill(storm.one())


def _kill_at_a_point(storm: Storm) -> None:
    orders = storm.orders(storm.one())
    orders["count"] = storm.random.randrange(1, 30)
    orders["point"] = storm.random.randrange(1, len(POINTS))


def _stop(storm: Storm) -> None:
    """For longer than a lease."""
    child = storm.one()
    child.signal(signal.SIGSTOP)
    storm.later(storm.random.uniform(0.4, 1.6), lambda: child.signal(signal.SIGCONT))


def _clock(storm: Storm) -> None:
    storm.times.jump(storm.random.choice((HOUR, -HOUR, ELEVEN_DAYS, -ELEVEN_DAYS)))
    if storm.random.random() < 0.8:
        storm.later(storm.random.uniform(0.02, 0.4), storm.times.reset)


def _limit(name: str) -> Callable[[Storm], None]:
    def limit(storm: Storm) -> None:
        orders = storm.orders(storm.one())
        orders[name] = 1
        storm.later(storm.random.uniform(0.1, 0.5), lambda: orders.__setitem__(name, 0))

    return limit


def _disk(storm: Storm) -> None:
    """Another program fills the disk, and removes its file later."""
    if storm.disk is not None:
        storm.disk.fill()
        storm.later(storm.random.uniform(0.05, 0.4), storm.disk.empty)


def _io(storm: Storm) -> None:
    """A few calls on files fail, or one."""
    if storm.shim is not None:
        pid = storm.one().process.pid
        mode = storm.random.choice((Mode.FAIL_ONCE, Mode.FAIL_ON))
        calls = storm.random.choice(list(Calls))
        files = Files(storm.random.randrange(1, 8))
        storm.shim.fail(pid or 0, mode, calls, files, number=errno.EIO, after=storm.random.randrange(1, 30))
        storm.later(storm.random.uniform(0.02, 0.2), storm.shim.relent)


def _read_only(storm: Storm) -> None:
    """As a disk that the system has made read-only: what writes to an open file fails."""
    if storm.shim is not None:
        every = Files.MAIN | Files.LOG | Files.INDEX
        storm.shim.fail(storm.one().process.pid or 0, Mode.FAIL_ON, Calls.WRITES, every, number=errno.EROFS)
        storm.later(storm.random.uniform(0.05, 0.3), storm.shim.relent)


def _ro_mount(storm: Storm) -> None:
    """For those who open their files from now on."""
    if storm.disk is not None:
        storm.disk.cover()
        storm.later(storm.random.uniform(0.1, 0.5), storm.disk.uncover)
        storm.kill(storm.one())


def _ro_disk(storm: Storm) -> None:
    """The file system becomes read-only, as it does after an error of its disk, and what was not synced is lost.

    After a while it is mounted anew, and processes start again.
    """
    if storm.disk is not None:
        storm.undo()
        time.sleep(storm.random.uniform(0.2, 0.6))  # there is to be something that could be lost
        storm.disk.fail()
        time.sleep(storm.random.uniform(0.05, 0.5))
        storm.begin_anew(storm.disk.mount_anew)


def _torn(storm: Storm) -> None:
    """Killed in a write to the log, in the middle of a commit; or to the database, in the middle of a checkpoint."""
    if storm.shim is not None:
        mode = storm.random.choice((Mode.DIE, Mode.DIE_HALF_WAY))
        files = storm.random.choice((Files.MAIN, Files.LOG))
        storm.shim.fail(storm.one().process.pid or 0, mode, Calls.WRITES, files, after=storm.random.randrange(1, 20))


def _pin(storm: Storm) -> None:
    if storm.plan.place.on_files:
        path = storm.directory / f"{storm.random.choice(FILES)}.sqlite"
        storm.beside(foreign.pin, path, storm.random.uniform(0.5, 4))
    else:
        storm.beside(foreign.pin_on_a_server, storm.plan.place.where, storm.random.uniform(0.5, 4))


def _lock(storm: Storm) -> None:
    """Seldom for ten seconds."""
    seconds = 10.0 if storm.random.random() < 0.15 else storm.random.uniform(0.1, 1)
    if storm.plan.place.on_files:
        storm.beside(foreign.lock_write, storm.directory / f"{storm.random.choice(FILES)}.sqlite", seconds)
    else:
        storm.beside(foreign.lock_on_a_server, storm.plan.place.where, min(seconds, 2))


def _migrate(storm: Storm) -> None:
    """To and fro; and as often as not it is killed in it."""
    path = storm.directory / f"{storm.random.choice(FILES[:2])}.sqlite"
    child = storm.beside(foreign.migrate_to_and_fro, path, 0.5)
    if storm.random.random() < 0.6:
        storm.later(storm.random.uniform(0.01, 1), lambda: storm.kill(child))


def _migrate_point(storm: Storm) -> None:
    """A revision is left between two of its statements, or right after it was committed."""
    if storm.crowded:
        return
    path, random = storm.directory / f"{storm.random.choice(FILES[:2])}.sqlite", storm.random
    point = random.choice(REVISING), random.randrange(1, 4)
    after = _looking_after(storm, path, f"killed in a revision: {point[0]}")
    storm.beside(foreign.migrate_to_and_fro, path, 5, point, storm.plan.variant, after=after)


def _checkpoint(storm: Storm) -> None:
    """The log is written back into the database, and whoever does so is killed at one of its calls."""
    if storm.shim is None or storm.crowded:
        return
    path, random, shim = storm.directory / f"{storm.random.choice(FILES)}.sqlite", storm.random, storm.shim
    call, times = random.choice(list(CHECKPOINTING)), random.choice((1, 1, 2, 20))
    how = random.choice(("PASSIVE", "FULL", "RESTART", "TRUNCATE", "TRUNCATE"))
    after = _looking_after(storm, path, f"killed in a checkpoint: {call}")
    storm.beside(
        foreign.write_back,
        path,
        how,
        first=lambda pid: shim.fail(pid, *CHECKPOINTING[call], after=times if "write" in call else 1),
        after=after,
    )


def _looking_after(storm: Storm, path: Path, what: str) -> Callable[[], object]:
    """Count it, and have another program look at what was left."""

    def after() -> None:
        storm.counts[what] += 1
        storm.beside(foreign.look_after, path)

    return after


def _session(storm: Storm) -> None:
    end_a_session(storm.url, storm.random)


def _restart(storm: Storm) -> None:
    postgres.restart()


FULL = ("StoreFull",)
OF_TURSO = tuple(f"OperationalError: {call}: " for call in ("pread", "pwrite", "pwritev", "sync"))
FAILING = ("OperationalError: disk I/O error", "FormatError", *OF_TURSO, *FULL)
READ_ONLY = ("BackendUnsupported", *FAILING)
"""What is said of a disk that is."""
LOST = (
    *("OperationalError", "InterfaceError", "DBAPIError", "InternalError"),
    *("ConnectionRefusedError", "FileNotFoundError"),
)

FAULTS = {
    "kill": Fault(_kill, turso=True, weight=3),
    "point": Fault(_kill_at_a_point, turso=True, weight=3),
    "stop": Fault(_stop, turso=True),
    "clock": Fault(_clock, turso=True, weight=2),
    "pages": Fault(_limit("pages"), server=False, turso=True, excuses=FULL),
    "size": Fault(_limit("size"), server=False, turso=True, excuses=FULL),
    "disk": Fault(_disk, server=False, turso=True, excuses=FULL),
    "files": Fault(_limit("files"), excuses=("FormatError", *LOST, "OSError")),
    "memory": Fault(_limit("memory"), excuses=("MemoryError", "RuntimeError: can't start new thread", *FAILING, *LOST)),
    "io": Fault(_io, server=False, turso=True, excuses=FAILING, weight=2),
    "read-only": Fault(_read_only, server=False, turso=True, excuses=READ_ONLY),
    "ro-mount": Fault(_ro_mount, server=False, turso=True),
    "ro-disk": Fault(_ro_disk, server=False, turso=True, weight=0.3),
    "torn": Fault(_torn, server=False, turso=True, weight=2),
    "pin": Fault(_pin),
    "lock": Fault(_lock, excuses=("StoreBusy",), weight=0.7),
    "fork": Fault(lambda _: None, weight=0),
    "migrate": Fault(_migrate, server=False),
    "migrate-point": Fault(_migrate_point, server=False, weight=0.7),
    "checkpoint": Fault(_checkpoint, server=False),
    "session": Fault(_session, files=False, excuses=LOST, weight=2),
    "restart": Fault(_restart, files=False, excuses=LOST, weight=0.2),
}
"""`fork` is what one of the processes does all the time."""

ON_SHIMS = ("io", "read-only", "torn", "checkpoint")
"""The faults that need the shim."""
