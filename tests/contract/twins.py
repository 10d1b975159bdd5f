"""Both twins of a repository, opened and called alike by a test that is not async."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine

from qstore import LocalKvRepository, LocalQueueRepository, TransportRepository, open_async_engine, open_engine
from qstore.engines import companion
from tests.awaiting import EventLoop
from tests.backends import TWINS

KINDS: dict[str, Any] = {
    "transport": TransportRepository,
    "localkv": LocalKvRepository,
    "localqueue": LocalQueueRepository,
}
each_twin = pytest.mark.parametrize("twin", ["sync", "async"])


@contextmanager
def opened(twin: str, store: str, target: object, **arguments: Any) -> Iterator[Any]:
    """A store's repository, in `with` or `async with`."""
    if twin == "sync":
        with KINDS[store].open(target, **arguments) as repository:
            yield repository
        return
    with closing(EventLoop()) as loop:
        opening = TWINS[KINDS[store]].open(target, **arguments)
        repository = loop.run(opening.__aenter__())
        try:
            yield loop.sync(repository)
        finally:
            loop.run(opening.__aexit__(None, None, None))


@contextmanager
def on_engine(twin: str, store: str, path: Path, *, read_only: bool = False, **arguments: Any) -> Iterator[Any]:
    """A store's repository on an engine of qstore's, and the engine whose connections its operations have."""
    if twin == "sync":
        engine = open_engine(path, read_only=read_only)
        try:
            yield KINDS[store](engine, **arguments), engine
        finally:
            engine.dispose()
        return
    with closing(EventLoop()) as loop:
        async_engine = open_async_engine(path, read_only=read_only)
        try:
            yield loop.sync(TWINS[KINDS[store]](async_engine, **arguments)), behind(async_engine.sync_engine)
        finally:
            loop.run(async_engine.dispose())


def behind(engine: Engine) -> Engine:
    """The engine whose connections operations have that are awaited on an async one of qstore's."""
    found = companion(engine)
    assert found is not None
    return found.engine
