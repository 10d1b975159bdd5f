"""Fixtures that every room of the tests may use. Stores are on real files, always."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.backends import BACKENDS, SHARED, Backend, ManualClock, backend_of


@pytest.fixture
def clock() -> ManualClock:
    """A clock that the test moves."""
    return ManualClock()


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Backend]:
    """Every way to have a store."""
    with backend_of(request.param, tmp_path) as backend:
        yield backend


@pytest.fixture(params=SHARED)
def shared_backend(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Backend]:
    """Every way to have a store whose repository may be shared between threads."""
    with backend_of(request.param, tmp_path) as backend:
        yield backend


def pytest_collection_finish() -> None:
    """Keep what was imported out of the collections after each test: they take a fifth of the time then."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def no_leaked_connections() -> Iterator[None]:
    """Fail a test that leaves a connection to the garbage collector."""
    yield
    with warnings.catch_warnings():
        warnings.simplefilter("error", ResourceWarning)
        gc.collect()
