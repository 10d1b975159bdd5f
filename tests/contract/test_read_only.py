"""A read-only handle never writes, lazy expiry included. Semantics 22."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from qstore import BackendUnsupported, LocalKvRepository, open_engine
from tests.backends import Backend, ManualClock
from tests.contract.contents import unchanged


@pytest.fixture
def reader(tmp_path: Path, clock: ManualClock) -> Iterator[tuple[Backend, LocalKvRepository]]:
    """A store with a live and an expired key, and a read-only repository on it."""
    with closing(Backend(tmp_path)) as backend:
        writer = backend.localkv(clock=clock)
        writer.put("live", b"v")
        writer.put("expired", b"v", ttl=1)
        clock.advance(1)
        engine = open_engine(backend.path("localkv"), read_only=True)
        try:
            yield backend, LocalKvRepository(engine, clock=clock)
        finally:
            engine.dispose()


def test_reads_of_live_and_expired_keys_change_nothing(reader: tuple[Backend, LocalKvRepository]) -> None:
    backend, kv = reader
    with unchanged(backend, "localkv"):
        assert (kv.get("live"), kv.get("expired")) == (b"v", None)
        assert (kv.exists("live"), kv.exists("expired")) == (True, False)
        assert kv.scan_prefix("").items == list(kv.iter_prefix("")) == [("live", b"v")]


def test_a_write_is_refused_by_name(reader: tuple[Backend, LocalKvRepository]) -> None:
    backend, kv = reader
    with unchanged(backend, "localkv"):
        for write in (lambda: kv.put("k", b""), lambda: kv.delete("live"), kv.purge_expired):
            with pytest.raises(BackendUnsupported, match="read-only"):
                write()
