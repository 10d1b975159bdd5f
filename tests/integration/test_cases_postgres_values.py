"""H34 and H37 on PostgreSQL, and whatever else ids, keys and payloads may hold; schemas; names that are refused."""

from __future__ import annotations

import random
import string
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, MetaData, create_engine, text
from sqlalchemy.orm import Session

import qstore
from qstore import FormatError, InvalidInput, Naming, PayloadTooLarge, migrate
from tests import postgres
from tests.backends import Backend, backend_of

RANDOM = random.Random(37)
LETTERS = string.ascii_letters + string.digits
"""Random text, as the server compresses what repeats before it looks at its size."""

ODD = [
    "'",
    '"; DROP TABLE qstore_localkv_kv; --',
    "%",
    "%s %(name)s %%",
    ":x :now ::text",
    "$1 $$ ?",
    "\\",
    "\\x00 \\' \\",
    "{messages} {} {{",
    "[1] ARRAY[] {a,b} NULL null",
    "a\nb\r\n\tc",
    " ",
    "😀👩‍👩‍👧‍👦",
    "é e\u0301 ß \u017f \u0130 \u0131",
    "\U0010ffff\uffff\ufeff\u200f",
    "\x01\x7f\x80\x9f",
]
LONG = ["".join(RANDOM.choices(LETTERS, k=1024)), "😀" * 256, "'" * 1024, "\U0010ffff" * 256]


@pytest.fixture(params=["postgres", "postgres session", "async postgres", "asyncpg"])
def backend(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Backend]:
    with backend_of(request.param, tmp_path) as backend:
        yield backend


@pytest.fixture
def engine() -> Iterator[Engine]:
    engine = create_engine(postgres.empty_database())
    yield engine
    engine.dispose()


def test_odd_and_long_ids_events_and_payloads_come_back_as_they_were(backend: Backend) -> None:
    messages, sent = backend.transport(event_type=str), backend.localqueue()
    ids = [*ODD, *LONG]
    for group in ids[::2]:
        messages.publish(group, group)
    messages.publish_many([(group, group) for group in ids[1::2]])
    for worker in ids:
        lease = messages.claim(worker, 60)
        assert lease is not None
        assert lease.event == lease.group_id
        assert lease.worker_id == worker
        lease = messages.extend(lease, 90)
        messages.nack(lease)
    found = {lease.group_id for _ in ids if (lease := messages.claim("w", 60)) is not None}
    assert found == set(ids)
    payloads: list[Any] = [*ids, *({"k": each, each: [each]} for each in ids)]
    for payload in payloads:
        sent.send(payload)
    sent.send_many(ids)
    received = sent.receive(1000)
    assert [message.payload for message in received] == [*payloads, *ids]
    for message in received:
        sent.ack(message.receipt_handle)
    assert sent.purge() == 0


def test_odd_and_long_keys_are_found_alone_and_by_their_prefixes_in_the_order_of_their_bytes(backend: Backend) -> None:
    kv = backend.localkv()
    keys = [*ODD, "".join(RANDOM.choices(LETTERS, k=512)), "😀" * 128, "\U0010ffff" * 128, "\U0010ffff", "~" * 512]
    kv.put_many({key: key.encode() for key in keys[::2]})
    for key in keys[1::2]:
        assert kv.put(key, key.encode(), if_not_exists=True)
    for key in keys:
        assert kv.get(key) == key.encode()
        assert (key, key.encode()) in kv.scan_prefix(key).items
        assert [found for found, _ in kv.iter_prefix(key)] == [
            each for each in sorted(keys, key=str.encode) if each.startswith(key)
        ]
    assert [key for key, _ in kv.scan_prefix("").items] == sorted(keys, key=str.encode)
    for key in keys:
        kv.delete(key)
    assert kv.scan_prefix("").items == []


def test_values_are_any_bytes_of_any_size_up_to_the_limit(backend: Backend) -> None:
    kv = backend.localkv()
    for value in (b"", b"\0", bytes(range(256)) * 3, b"\\x00", b"'" * 9, random.Random(1).randbytes(3_000_000)):
        kv.put("k", value)
        assert kv.get("k") == value


@pytest.mark.parametrize(
    "bad", ["", "a\0b", "\ud800", "".join(RANDOM.choices(LETTERS, k=9000)), "😀" * 257], ids=range(5)
)
def test_ids_that_the_other_back_end_would_refuse_are_refused_here_before_the_store_is_touched(
    backend: Backend, bad: str
) -> None:
    messages, kv = backend.transport(event_type=str), backend.localkv()
    for call in (
        lambda: messages.publish(bad, "e"),
        lambda: messages.publish_many([("good", "e"), (bad, "e")]),
        lambda: messages.claim(bad, 1),
        lambda: kv.put(bad, b"v"),
        lambda: kv.put_many({"good": b"v", bad: b"v"}),
        lambda: kv.get(bad),
    ):
        with pytest.raises(InvalidInput):
            call()
    assert messages.claim("w", 1) is None
    assert kv.scan_prefix("").items == []


def test_payloads_are_kept_to_the_digit_or_refused(backend: Backend) -> None:
    """H34, H37."""
    sent = backend.localqueue()
    number: dict[str, Any] = {"z": 10**40 + 1, "a": 1.0, "e": "😀", "n": None, "u": "\u2028"}
    sent.send(number)
    [message] = sent.receive()
    assert message.payload == number
    assert list(message.payload) == list(number)
    assert (
        message.payload_data == '{"z":10000000000000000000000000000000000000001,"a":1.0,"e":"😀","n":null,"u":"\u2028"}'
    )
    for bad in (float("nan"), {"v": [float("inf")]}, "a\0b", "\ud800", {"v": "\ud800"}):
        with pytest.raises(InvalidInput):
            sent.send(bad)
    sent.send("😀" * 16_384)
    with pytest.raises(PayloadTooLarge) as caught:
        sent.send("😀" * 16_384 + "a")
    assert (caught.value.size, caught.value.limit) == (65_537, 65_536)
    assert [len(message.payload_data) for message in sent.receive(5)] == [16_384]


def test_nul_within_json_is_kept_as_its_escape(backend: Backend) -> None:
    sent, messages = backend.localqueue(), backend.transport()
    sent.send({"v": "a\0b"})
    messages.publish("g", qstore.Event(kind="k", data={"v": "a\0b"}))
    assert sent.receive()[0].payload == {"v": "a\0b"}
    lease = messages.claim("w", 60)
    assert lease is not None
    assert lease.event.data == {"v": "a\0b"}


@pytest.mark.parametrize("name", ['a"b_', "a'b_", "a b_", "a;b_", "a%s_", "a:b_", "é_", "a" * 31, "", "1a_", "pg{x}_"])
def test_a_prefix_or_schema_that_would_need_quoting_is_refused(name: str) -> None:
    with pytest.raises(InvalidInput):
        Naming(name)
    with pytest.raises(InvalidInput):
        qstore.mount(MetaData(), prefix=name)
    if len(name) != 31:
        with pytest.raises(InvalidInput):
            qstore.mount(MetaData(), schema=name)


@pytest.mark.parametrize(
    ("prefix", "schema"), [("select_", "user"), ("Qstore_", "Order"), ("a" * 30, None), ("qstore_", "public")]
)
@pytest.mark.parametrize("made", ["by revisions", "by create_all"])
def test_stores_in_any_schema_under_any_prefix_work_beside_others(
    engine: Engine, prefix: str, schema: str | None, made: str
) -> None:
    metadata = MetaData()
    stores = qstore.mount(metadata, prefix=prefix, schema=schema)
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE messages (a int)"))
        connection.execute(text(f'CREATE SCHEMA IF NOT EXISTS "{schema or "public"}"'))
    if made == "by revisions":
        migrate.upgrade(engine, naming=stores.naming)
    else:
        metadata.create_all(engine)
    with Session(engine) as session:
        for bind in (engine, session):
            messages, sent, kv = stores.transport(bind, event_type=str), stores.localqueue(bind), stores.localkv(bind)
            messages.publish_many([("g", "1"), ("g", "2")])
            for event in "12":
                lease = messages.claim("w", 60)
                assert lease is not None
                assert lease.event == event
                messages.ack(messages.extend(lease, 60))
            sent.send_many(["p"])
            for message in sent.receive():
                sent.ack(message.receipt_handle)
            assert kv.put("k", b"v", if_not_exists=True)
            assert kv.scan_prefix("k").items == [("k", b"v")]
            kv.delete("k")
            session.commit()
    with pytest.raises(FormatError):
        qstore.LocalKvRepository(engine, naming=Naming(prefix, "elsewhere")).get("k")
