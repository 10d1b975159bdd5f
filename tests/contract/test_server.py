"""What a server's tables have besides the seeds', and a database that only reads. Semantics 2, 22 and 26."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import cast

import pytest

from qstore import BackendUnsupported
from tests.backends import BACKENDS, ON_A_SERVER, STORES, Backend, ManualClock, PostgresBackend, ServerBackend
from tests.contract.contents import contents, unchanged
from tests.contract.events import claim, event
from tests.contract.filled import WRITES, fill


@pytest.mark.parametrize("write", [write for write, (store, _) in WRITES.items() if store == "transport"])
def test_after_each_write_a_groups_row_says_what_its_messages_are(
    server_backend: Backend, clock: ManualClock, write: str
) -> None:
    filled = fill(server_backend, clock)
    _, call = WRITES[write]
    call(server_backend.transport(clock=clock), filled)
    _is_what_a_repair_makes(server_backend)


def test_in_any_history_of_writes_the_groups_rows_say_what_their_messages_are(
    server_backend: Backend, clock: ManualClock
) -> None:
    transport = server_backend.transport(clock=clock)
    transport.publish_many((f"g{n % 3}", event(str(n)), n % 5) for n in range(9))
    for n in range(12):
        lease = claim(transport, visibility=60)
        (transport.ack, transport.nack, lambda lease: transport.nack(lease, 10))[n % 3](lease)
        transport.publish(f"g{n % 4}", event("later"))
        _is_what_a_repair_makes(server_backend)
        clock.advance(11)
        if n % 2:
            claim(transport, visibility=1)
            clock.advance(2)


def _is_what_a_repair_makes(backend: Backend) -> None:
    """But for `ready`, which a claim sets again once it has seen that a lease lapsed."""
    before = contents(backend, "transport")
    sql = "SELECT count(*) FROM {groups} WHERE NOT ready AND until IS NULL"
    assert backend.sql("transport", sql) == [(0,)]
    backend.by_hand("transport", "UPDATE {groups} SET head = -1, tail = -1, holder = 'x', until = 0")
    after = contents(backend, "transport")
    assert after["messages"] == before["messages"]
    assert [row[:-1] for row in after["groups"]] == [row[:-1] for row in before["groups"]]


@pytest.mark.parametrize("kind", ON_A_SERVER)
def test_a_database_that_only_reads_is_read_and_refuses_writes_by_name(
    tmp_path: Path, clock: ManualClock, kind: str
) -> None:
    """As a standby, or one that its owner has set so. The lazy delete is left to somebody else."""
    with closing(PostgresBackend(tmp_path)) as backend:
        filled = fill(backend, clock)
        backend.sql("transport", f"ALTER DATABASE {backend.url.database} SET default_transaction_read_only = on")
        with closing(cast(type[ServerBackend], BACKENDS[kind])(tmp_path, backend.url)) as reader:
            kv = reader.localkv(clock=clock)
            with unchanged(backend, *STORES):
                assert (kv.get("live"), kv.get("expired")) == (b"v", None)
                assert (kv.exists("live"), kv.exists("expired")) == (True, False)
                assert kv.scan_prefix("").items == list(kv.iter_prefix("")) == [("live", b"v")]
                for store, call in WRITES.values():
                    with pytest.raises(BackendUnsupported, match="read-only"):
                        call(getattr(reader, store)(clock=clock), filled)
