"""Fixtures of the contract suite."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.backends import Backend
from tests.contract.hosts import ASYNC_HOSTS, SYNC_HOSTS, Host, host_of
from tests.contract.locks import IMPATIENT


@pytest.fixture(params=IMPATIENT)
def impatient_backend(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Backend]:
    """Every way to have a store, with a short wait for the write lock."""
    with closing(IMPATIENT[request.param](tmp_path)) as backend:
        yield backend


@pytest.fixture(
    params=[*SYNC_HOSTS, *ASYNC_HOSTS],
    ids=lambda param: f"{param[0]}, {param[1].__name__}",
)
def host(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Host]:
    """A host's own transaction, of every kind that a repository can join."""
    with closing(host_of(tmp_path, *request.param)) as host:
        yield host
