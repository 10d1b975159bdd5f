"""A read-only handle never writes, lazy expiry included. Semantics 22."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from qstore import BackendUnsupported, LocalKvRepository
from tests.backends import Backend, ManualClock
from tests.contract.contents import unchanged
from tests.contract.twins import on_engine


@pytest.fixture(params=["sync", "async"])
def reader(
    request: pytest.FixtureRequest, tmp_path: Path, clock: ManualClock
) -> Iterator[tuple[Backend, LocalKvRepository]]:
    """A store with a live and an expired key, and a read-only repository on it."""
    with closing(Backend(tmp_path)) as backend:
        writer = backend.localkv(clock=clock)
        writer.put("live", b"v")
        writer.put("expired", b"v", ttl=1)
        clock.advance(1)
        with on_engine(request.param, "localkv", backend.path("localkv"), read_only=True, clock=clock) as (kv, _):
            yield backend, kv


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
