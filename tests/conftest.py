"""Fixtures that every room of the tests may use. Stores are on real files, always."""

from __future__ import annotations

import gc
import os
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from itertools import count
from pathlib import Path
from shutil import disk_usage
from typing import Any

import pytest
from sqlalchemy import URL, Engine, create_engine

from qstore import LocalKvRepository
from tests import postgres
from tests.backends import (
    CHECKING,
    CHOSEN,
    OF_ANY_BYTES,
    ON_A_SERVER,
    ON_FILES,
    SETTLING,
    SHARED,
    Backend,
    ManualClock,
    backend_of,
)

SERVERS: pytest.StashKey[set[str]] = pytest.StashKey()
"""The servers that a run had, told by every process of it."""


@pytest.fixture
def clock() -> ManualClock:
    """A clock that the test moves."""
    return ManualClock()


def _backends(kinds: Sequence[str], meaning: str) -> Any:
    """A fixture that gives one back end after the other."""

    def each(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Backend]:
        with backend_of(request.param, tmp_path) as backend:
            yield backend

    each.__doc__ = meaning
    return pytest.fixture(params=kinds)(each)


backend = _backends(CHOSEN, "Every way to have a store.")
shared_backend = _backends(SHARED, "Every way to have a store whose repository may be shared between threads.")
file_backend = _backends(ON_FILES, "Every way to have a store on SQLite, for what is about SQLite.")
any_bytes_backend = _backends(OF_ANY_BYTES, "Every way to have a store whose texts may be of any bytes.")
shared_file_backend = _backends(
    [kind for kind in SHARED if kind in ON_FILES], "Every way to have one on SQLite that threads may share."
)
server_backend = _backends(ON_A_SERVER, "Every way to have a store on a server, for what is about a server.")
settling_backend = _backends(
    SETTLING, "Every way to have a store whose claims set right what other groups' rows say of the future."
)
checking_backend = _backends(
    CHECKING, "Every way to have one on files, and one on a server, for what is settled outside of the database."
)


@pytest.fixture
def read_only_file() -> Iterator[Path]:
    """A store's file that others may read and nobody may write, in a directory of that kind."""
    with tempfile.TemporaryDirectory() as directory:
        with LocalKvRepository.open(directory) as kv:
            kv.put("a", b"1")
        path = Path(directory) / "localkv.sqlite"
        path.chmod(0o444)
        Path(directory).chmod(0o555)
        try:
            yield path
        finally:
            Path(directory).chmod(0o755)


@pytest.fixture
def url() -> Iterator[URL]:
    """A server's database, with all stores mounted in it."""
    url = postgres.database()
    yield url
    postgres.drop(url)


@pytest.fixture
def engine(url: URL) -> Iterator[Engine]:
    """An engine on it, as a host makes one."""
    engine = create_engine(url)
    yield engine
    engine.dispose()


MEMORY = Path("/dev/shm")
"""A file system in memory, as Linux has it."""


def pytest_configure(config: pytest.Config) -> None:
    config.stash[SERVERS] = set()
    # Files in memory end with the machine and not with a process, and each commit on a disk waits for it: three
    # quarters of the time. `--basetemp` or the variable itself chooses another place.
    if os.access(MEMORY, os.W_OK) and disk_usage(MEMORY).free > 4 << 30:
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """Two a core: a good part of the time a test waits for a process, a lock or a server."""
    return (os.cpu_count() or 1) * 2


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Stop the server after the last fixture was torn down; a worker hands on which one it was."""
    server = postgres.described()
    postgres.stop()
    if server is not None:
        session.config.stash[SERVERS].add(server)
        if hasattr(session.config, "workeroutput"):
            session.config.workeroutput["server"] = server


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    server = getattr(node, "workeroutput", {}).get("server")
    if server is not None:
        node.config.stash[SERVERS].add(server)


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Say which server the tests ran on."""
    servers = config.stash[SERVERS]
    for server in sorted(servers):
        terminalreporter.write_line(server)


def pytest_collection_finish() -> None:
    """Keep what was imported out of the collections after each test."""
    gc.collect()
    gc.freeze()


_ended = count(1)
"""Counts the tests: after every hundredth, what earlier ones had left is looked at once more."""


@pytest.fixture(autouse=True)
def no_leaked_connections() -> Iterator[None]:
    """Fail a test that leaves a connection to the garbage collector."""
    yield
    if not next(_ended) % 100:
        gc.unfreeze()
    with warnings.catch_warnings():
        warnings.simplefilter("error", ResourceWarning)
        gc.collect()
    gc.freeze()  # what is still there is not looked at after each test: that took a third of the run's time
