"""localkv.v1: the seed's sentences and semantics.md 20 to 24."""

from __future__ import annotations

from tests.backends import Backend, ManualClock


def test_put_if_not_exists_wins_on_an_expired_key_at_exactly_its_expiry(backend: Backend, clock: ManualClock) -> None:
    kv = backend.localkv(clock=clock)
    assert kv.put("k", b"first", ttl=1, if_not_exists=True) is True
    clock.advance(0.999)
    assert kv.put("k", b"second", if_not_exists=True) is False
    clock.advance(0.001)
    assert kv.put("k", b"third", if_not_exists=True) is True
    assert kv.get("k") == b"third"
