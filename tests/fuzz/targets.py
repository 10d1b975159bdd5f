"""What is opened and parsed: where inputs begin, and what must hold of any."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from itertools import islice
from pathlib import Path
from random import Random
from shutil import copyfile, rmtree
from typing import Any, NamedTuple

from pydantic import TypeAdapter

from qstore import Event, LocalKvRepository, LocalQueueRepository, QstoreError, TransportRepository
from qstore.engines.target import in_directory, of_file
from qstore.exporting import export, import_
from qstore.payload import as_text, decode, decode_json
from tests.made_files import made, made_v1

__all__ = ["TARGETS", "Target"]

OPEN: dict[str, Callable[..., Any]] = {
    "transport": TransportRepository.open,
    "localkv": LocalKvRepository.open,
    "localqueue": LocalQueueRepository.open,
}

FILL: dict[str, Callable[[Any], object]] = {
    "transport": lambda it: it.publish_many([(f"g{n % 7}", Event(id="e", kind="x" * n)) for n in range(60)]),
    "localkv": lambda it: it.put_many({f"k{n}": b"x" * n * 9 for n in range(60)}),
    "localqueue": lambda it: it.send_many(["x" * n * 9 for n in range(60)]),
}

USE: dict[str, tuple[Callable[[Any], object], ...]] = {
    "transport": (
        lambda it: [(it.ack(lease), lease.event) for lease in islice(iter(lambda: it.claim("w", 5), None), 8)],
        lambda it: it.publish("g1", Event(kind="new")),
        lambda it: it.claim("w", 5, 2),
    ),
    "localkv": (
        lambda it: it.scan_prefix(""),
        lambda it: it.scan_prefix("k", limit=7, cursor="7"),
        lambda it: list(it.iter_prefix("")),
        lambda it: (it.get("k5"), it.exists("k6"), it.put("k5", b""), it.put("k", b"", if_not_exists=True)),
        lambda it: it.purge_expired(),
    ),
    "localqueue": (
        lambda it: [(it.ack(each.receipt_handle), each.payload) for each in it.receive(9)],
        lambda it: it.send("new"),
        lambda it: it.purge(),
    ),
}


class Target(NamedTuple):
    """Something that takes bytes."""

    seeds: Callable[[Path], list[bytes]]
    run: Callable[[bytes, Path], None]
    """Raises if anything is not as it must be."""


def _use(store: str, directory: Path) -> None:
    """Open what is there, and use it. If it is refused, all is as it was."""
    before = {path.name: path.read_bytes() for path in directory.iterdir()}
    create = sum(map(len, before.values())) % 2 == 0
    try:
        repository = OPEN[store](directory, create=create)
    except QstoreError:
        after = {path.name: path.read_bytes() for path in directory.iterdir()}
        # What a log's readers share among them is nobody's content.
        assert {name: it for name, it in after.items() if not name.endswith("-shm")} == before, "it was changed"
        return
    with repository:
        for use in USE[store]:
            with suppress(QstoreError):
                use(repository)


def _emptied(directory: Path) -> Path:
    place = directory / "place"
    rmtree(place, ignore_errors=True)
    place.mkdir()
    return place


def _filled(store: str, revision: Callable[[str], Path], directory: Path) -> Path:
    path = _emptied(directory) / f"{store}.sqlite"
    copyfile(revision(store), path)
    with OPEN[store](path.parent) as repository:
        FILL[store](repository)
    return path


def _file(store: str) -> Target:
    def run(given: bytes, directory: Path) -> None:
        place = _emptied(directory)
        (place / f"{store}.sqlite").write_bytes(given)
        _use(store, place)

    return Target(lambda directory: [_filled(store, it, directory).read_bytes() for it in (made, made_v1)], run)


def _log(store: str) -> Target:
    """The database is as it was before a log was written; the input is the log."""

    def seeds(directory: Path) -> list[bytes]:
        path = _filled(store, made, directory)
        copyfile(path, directory / "before")
        with OPEN[store](path.parent) as repository:
            FILL[store](repository)
            repository.put("new", b"new") if store == "localkv" else None
            log = Path(f"{path}-wal").read_bytes()
        assert log
        return [log]

    def run(given: bytes, directory: Path) -> None:
        place = _emptied(directory)
        copyfile(directory / "before", place / f"{store}.sqlite")
        (place / f"{store}.sqlite-wal").write_bytes(given)
        _use(store, place)

    return Target(seeds, run)


def _schema(store: str, table: str) -> Target:
    """The input is what a table's declaration says."""

    def seeds(directory: Path) -> list[bytes]:
        with closing(sqlite3.connect(_filled(store, made, directory))) as connection:
            [(text,)] = connection.execute("SELECT sql FROM sqlite_master WHERE name = ?", (table,)).fetchall()
        return [text.encode()]

    def run(given: bytes, directory: Path) -> None:
        path = _emptied(directory) / f"{store}.sqlite"
        copyfile(made(store), path)
        with closing(sqlite3.connect(path, isolation_level=None)) as connection:
            connection.execute("PRAGMA writable_schema = ON")
            connection.execute(
                "UPDATE sqlite_master SET sql = CAST(? AS TEXT) WHERE name = ?", (given, table)
            ).fetchall()
        _use(store, path.parent)

    return Target(seeds, run)


TABLES = {
    "transport": (
        ("messages", "seq group_id event locked_by lock_expiry"),
        ("groups", "group_id last_claimed_at priority"),
    ),
    "localkv": (("kv", "key value expires_at"), ("meta", "key value")),
    "localqueue": (
        ("messages", "id payload_type payload_data enqueued_at visible_at attempt receipt_handle"),
        ("meta", "key value"),
    ),
}

VALUES = ("CAST(? AS TEXT)", "?", "CAST(? AS INTEGER)", "CAST(? AS REAL)", "NULL", "9e999", "-9e999", "char(0)")


def _rows(store: str) -> Target:
    """The input says which fields of rows, of the marker, and of what a migration has noted, hold what."""

    def run(given: bytes, directory: Path) -> None:
        path = _emptied(directory) / f"{store}.sqlite"
        copyfile(directory / "before", path)
        tables = (*TABLES[store], ("qstore_alembic_version", "version_num"))
        random = Random(given)
        with closing(sqlite3.connect(path, isolation_level=None)) as connection:
            for _ in range(random.randrange(1, 8)):
                table, columns = random.choice(tables)
                value = random.choice(VALUES)
                at = random.randrange(len(given) + 1)
                part = given[at : at + random.choice((1, 4, 40))]
                change = f"UPDATE {table} SET {random.choice(columns.split())} = {value} WHERE rowid % ? = 0"
                with suppress(sqlite3.Error):
                    connection.execute(change, (*((part,) if "?" in value else ()), random.choice((1, 2, 7))))
        _use(store, path.parent)

    def seeds(directory: Path) -> list[bytes]:
        copyfile(_filled(store, made, directory), directory / "before")
        return [b'transport.v1 localkv.v1 {"id": "e", "kind": "k"} 1700000000 text json \xff \xc3\xa9 __parked__']

    return Target(seeds, run)


def _text(run: Callable[[str, Path], object], *seeds: str) -> Target:
    """The input is a text that a caller passes."""

    def with_text(given: bytes, directory: Path) -> None:
        with suppress(QstoreError):
            run(given.decode(errors="surrogateescape" if given[:1] > b"~" else "replace"), directory)

    return Target(lambda _: [seed.encode() for seed in seeds], with_text)


def _payload(given: bytes, _: Path) -> None:
    for read in (
        lambda: decode_json(1, given),
        lambda: decode(1, given, TypeAdapter(Event)),
        lambda: as_text(1, given),
    ):
        with suppress(QstoreError):
            read()


def _with(store: str, use: Callable[[Any, str], object]) -> Callable[[str, Path], None]:
    def run(text: str, directory: Path) -> None:
        path = directory / f"{store}.sqlite"
        if not path.exists():
            copyfile(_filled(store, made, directory), path)
        with OPEN[store](directory) as repository:
            use(repository, text)

    return run


def _handle(queue: Any, text: str) -> None:
    for settle in (queue.ack, queue.nack, lambda text: queue.ack_many([text, text])):
        with suppress(QstoreError):
            settle(text)


def _exported(directory: Path) -> Iterator[bytes]:
    for store in OPEN:
        path = _filled(store, made, directory)
        lines = directory / "lines"
        lines.unlink(missing_ok=True)
        export(path, str(lines))
        yield b"\n".join(lines.read_bytes().split(b"\n")[:12]) + b"\n"


def _import(given: bytes, directory: Path) -> None:
    place = _emptied(directory)
    lines = directory / "given"
    lines.write_bytes(given)
    with suppress(QstoreError):
        import_(str(lines), place)
    assert lines.read_bytes() == given


TARGETS: dict[str, Target] = {
    **{f"file of {store}": _file(store) for store in OPEN},
    **{f"log of {store}": _log(store) for store in OPEN},
    **{f"rows of {store}": _rows(store) for store in OPEN},
    **{f"schema of {store}": _schema(store, TABLES[store][0][0]) for store in OPEN},
    "payload": Target(
        lambda _: [b'{"id": "e", "kind": "k", "data": {"a": [1, 1.5, null]}}', b"text \xc3\xa9"], _payload
    ),
    "target": _text(
        lambda text, _: (of_file(text), in_directory(text, "a.sqlite")),
        *("sqlite:////a/b.sqlite", "postgresql+asyncpg://u:p@h:5432/d?ssl=1", "a b?c#d%20.sqlite", "file:x?mode=ro"),
    ),
    "cursor": _text(
        _with("localkv", lambda kv, text: kv.scan_prefix("k", limit=2, cursor=text)), "0", "7", "59", "00012"
    ),
    "handle": _text(_with("localqueue", _handle), "1:bcd2a24e-d16d-4068-8709-7dc72c3af79a", "9223372036854775807:x"),
    "exported lines": Target(lambda directory: list(_exported(directory)), _import),
}
