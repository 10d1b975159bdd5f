"""Whatever is passed to whatever is public: a named error, and nothing changed, or what the call says. Semantics 6.

What each argument must refuse is in test_arguments; this is about what nobody thought of.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields, replace
from decimal import Decimal
from enum import Enum, IntEnum
from fractions import Fraction
from math import inf, nan
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, MetaData

import qstore
from qstore import Lease, LocalKvRepository, LocalQueueRepository, Naming, QstoreError, TransportRepository, migrate
from qstore.copying import copy
from qstore.errors import shown
from tests.backends import STORES, Backend, ManualClock, backend_of
from tests.contract.contents import TABLES, contents
from tests.contract.events import event
from tests.contract.filled import fill


class Color(str, Enum):  # noqa: UP042  as people have them
    """A str that is another thing as well."""

    RED = "red"


class Level(IntEnum):
    """An int likewise."""

    HIGH = 3


def _released() -> memoryview:
    view = memoryview(b"a")
    view.release()
    return view


TEN_MEGABYTES = 10_000_000
ODD: list[Any] = [
    *(None, True, False, 0, 1, -1, 7, 2**31, 2**63 - 1, 2**63, -(2**63) - 1, 10**400, 10**5000, -(10**5000)),
    *(0.0, -0.0, 0.5, 5e-324, 1e308, -1e308, nan, inf, -inf, 1j, Decimal("NaN"), Fraction(1, 3)),
    *(
        "",
        " ",
        "a",
        "a\0b",
        "\0",
        "\ud800",
        "a\udfff",
        "😀",
        "é",
        "1:a",
        "../a",
        "'; DROP TABLE kv; --",
        "%",
        "_",
        "{kv}",
    ),
    *("x" * 512, "x" * TEN_MEGABYTES, "9" * TEN_MEGABYTES, "\ud800" * 100_000),
    *(b"", b"\xff\0", b"x" * TEN_MEGABYTES, bytearray(b"a"), memoryview(b"abcd")[::2], _released()),
    *(
        [],
        {},
        (),
        set(),
        [None],
        [[]],
        [()],
        [("a",)],
        {"a": None},
        {1: b""},
        {None: None},
        ["a", "b"],
        ("a", "b", "c"),
    ),
    *(object(), int, len, Color.RED, Level.HIGH, Path("a"), iter(()), iter([None]), ...),
]


def _with_numpy(values: list[Any]) -> list[Any]:
    """With numpy's scalars, where it is installed."""
    try:
        import numpy as np  # type: ignore[import-not-found,unused-ignore]  # it is no dependency
    except ImportError:
        return values
    scalars = (
        np.int64(1),
        np.int8(-1),
        np.uint64(2**64 - 1),
        np.float64(0.5),
        np.float64("nan"),
        np.float32(1),
        np.bool_(1),
    )
    return [*values, *scalars, np.str_("a"), np.str_("\0"), np.bytes_(b"a"), np.zeros(2), np.datetime64("2020")]


FLAGS = {"create", "portable", "if_not_exists", "read_only", "drop_data", "fair"}
"""Arguments that are asked for their truth and for nothing else."""


def _has_truth(value: Any) -> bool:
    try:
        return isinstance(bool(value), bool)
    except (TypeError, ValueError):
        return False


METHODS: dict[tuple[str, str, str], Callable[[Any, Any, Any], Any]] = {
    ("transport", "publish", "group_id"): lambda it, v, _: it.publish(v, event("e")),
    ("transport", "publish", "event"): lambda it, v, _: it.publish("g", v),
    ("transport", "publish", "priority"): lambda it, v, _: it.publish("g", event("e"), v),
    ("transport", "publish_many", "messages"): lambda it, v, _: it.publish_many(v),
    ("transport", "claim", "worker_id"): lambda it, v, _: it.claim(v, 5),
    ("transport", "claim", "visibility"): lambda it, v, _: it.claim("w", v),
    ("transport", "claim", "min_priority"): lambda it, v, _: it.claim("w", 5, v),
    ("transport", "ack", "lease"): lambda it, v, _: it.ack(v),
    ("transport", "ack_many", "leases"): lambda it, v, _: it.ack_many(v),
    ("transport", "nack", "lease"): lambda it, v, _: it.nack(v),
    ("transport", "nack", "delay"): lambda it, v, filled: it.nack(filled.lease, v),
    ("transport", "extend", "lease"): lambda it, v, _: it.extend(v, 5),
    ("transport", "extend", "visibility"): lambda it, v, filled: it.extend(filled.lease, v),
    ("localkv", "get", "key"): lambda it, v, _: it.get(v),
    ("localkv", "exists", "key"): lambda it, v, _: it.exists(v),
    ("localkv", "put", "key"): lambda it, v, _: it.put(v, b""),
    ("localkv", "put", "value"): lambda it, v, _: it.put("a", v),
    ("localkv", "put", "ttl"): lambda it, v, _: it.put("a", b"", ttl=v),
    ("localkv", "put", "if_not_exists"): lambda it, v, _: it.put("a", b"", if_not_exists=v),
    ("localkv", "put_many", "items"): lambda it, v, _: it.put_many(v),
    ("localkv", "put_many", "ttl"): lambda it, v, _: it.put_many({"a": b""}, ttl=v),
    ("localkv", "delete", "key"): lambda it, v, _: it.delete(v),
    ("localkv", "scan_prefix", "prefix"): lambda it, v, _: it.scan_prefix(v),
    ("localkv", "scan_prefix", "limit"): lambda it, v, _: it.scan_prefix("", limit=v),
    ("localkv", "scan_prefix", "cursor"): lambda it, v, _: it.scan_prefix("", cursor=v),
    ("localkv", "iter_prefix", "prefix"): lambda it, v, _: list(it.iter_prefix(v)),
    ("localqueue", "send", "payload"): lambda it, v, _: it.send(v),
    ("localqueue", "send_many", "payloads"): lambda it, v, _: it.send_many(v),
    ("localqueue", "receive", "max_messages"): lambda it, v, _: it.receive(v),
    ("localqueue", "receive", "visibility_timeout"): lambda it, v, _: it.receive(visibility_timeout=v),
    ("localqueue", "ack", "receipt_handle"): lambda it, v, _: it.ack(v),
    ("localqueue", "ack_many", "receipt_handles"): lambda it, v, _: it.ack_many(v),
    ("localqueue", "nack", "receipt_handle"): lambda it, v, _: it.nack(v),
}
"""A call for each argument of each method, with all the other arguments as they should be."""

KINDS: dict[str, Any] = {
    "transport": TransportRepository,
    "localkv": LocalKvRepository,
    "localqueue": LocalQueueRepository,
}


def test_no_argument_of_a_method_is_left_out() -> None:
    found = {
        (store, name, parameter)
        for store, kind in KINDS.items()
        for name, method in vars(kind).items()
        if not name.startswith("_") and name != "open" and callable(method)
        for parameter in inspect.signature(method).parameters
        if parameter != "self"
    }
    assert found == set(METHODS)


@pytest.fixture(params=["opened", "opened, v1", "async"])
def filled_backend(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Backend]:
    """Stores on files; what a server refuses is refused before it is asked."""
    with backend_of(request.param, tmp_path) as backend:
        yield backend


@pytest.mark.parametrize("store", STORES)
def test_a_method_takes_anything_or_refuses_it_by_name_and_changes_nothing(
    filled_backend: Backend, clock: ManualClock, store: str
) -> None:
    filled = fill(filled_backend, clock)
    repository = getattr(filled_backend, store)(clock=clock)
    for (of, name, parameter), call in METHODS.items():
        if of == store:
            for value in _with_numpy(ODD):
                if parameter in FLAGS and not _has_truth(value):
                    continue
                with _refused_by_name_or_taken(filled_backend, store, f"{name}({parameter}={shown(value)})"):
                    call(repository, value, filled)
    _holds_what_it_may(filled_backend, store)


@pytest.mark.parametrize("field", [field.name for field in fields(Lease) if not field.name.startswith("_")])
def test_a_lease_that_was_not_handed_out_so_is_refused_by_name(
    filled_backend: Backend, clock: ManualClock, field: str
) -> None:
    """As one that was stored and read again may be."""
    filled = fill(filled_backend, clock)
    repository = filled_backend.transport(clock=clock)
    before = contents(filled_backend, "transport")
    for value in _with_numpy(ODD):
        own = getattr(filled.lease, field)
        if type(value) is type(own) and value == own:
            continue
        forged = replace(filled.lease, **{field: value})
        for settle in (repository.ack, repository.nack, lambda lease: repository.extend(lease, 5)):
            with _refused_by_name_or_taken(filled_backend, "transport", f"{field}={shown(value)}"):
                if field != "group_id":  # which is no part of the fence
                    settle(forged)
        if field != "group_id":
            assert contents(filled_backend, "transport") == before


@contextmanager
def _refused_by_name_or_taken(backend: Backend, store: str, call: str) -> Iterator[None]:
    before = contents(backend, store)
    try:
        yield
    except QstoreError as error:
        said = str(error)
    except Exception as error:
        error.add_note(call)
        raise
    else:
        return
    assert len(said) < 1000, call
    assert contents(backend, store) == before, call


TYPES = {
    ("transport", "messages"): ["integer", "text", "text", "text null", "real null"],
    ("transport", "groups"): ["text", "real", "integer"],
    ("localkv", "kv"): ["text", "blob", "integer null"],
    ("localqueue", "messages"): ["integer", "text", "text", "integer", "integer", "integer", "text null"],
}


def _holds_what_it_may(backend: Backend, store: str) -> None:
    """Each column has its type, and no number is one that time does not reach."""
    for table in TABLES[store]:
        for row in contents(backend, store)[table] if table != "meta" else []:
            for value, types in zip(row, TYPES[store, table], strict=True):
                found = {int: "integer", float: "real", str: "text", bytes: "blob", type(None): "null"}[type(value)]
                assert found in types, (table, row)
                assert not isinstance(value, float) or abs(value) < inf


FUNCTIONS: dict[tuple[str, str], Callable[[Any, Engine, Path], Any]] = {
    **{
        ("open", parameter): lambda v, _, directory, parameter=parameter: [  # type: ignore[misc]  # mypy has no type for a lambda's default
            kind.open(**{name: directory / store, parameter: v}).close()
            for store, kind in KINDS.items()
            if parameter
            in (name := next(iter(inspect.signature(kind.open).parameters)), *inspect.signature(kind.open).parameters)
        ]
        for parameter in (
            "target",
            "data_dir_or_url",
            "event_type",
            "create",
            "clock",
            "durability",
            "portable",
            "fair",
        )
    },
    **{
        ("__init__", parameter): lambda v, engine, _, parameter=parameter: [  # type: ignore[misc]  # as above
            kind(**{"bind": engine, parameter: v})
            for kind in KINDS.values()
            if parameter in inspect.signature(kind).parameters
        ]
        for parameter in ("bind", "event_type", "naming", "clock", "portable")
    },
    **{
        ("open_engine", parameter): lambda v, _, directory, parameter=parameter: qstore.open_engine(  # type: ignore[misc]  # as above
            **{"target": directory / "a.sqlite", parameter: v}
        ).dispose()
        for parameter in ("target", "read_only", "durability")
    },
    ("open_async_engine", "target"): lambda v, _, __: asyncio.run(qstore.open_async_engine(v).dispose()),
    ("open_async_engine", "read_only"): lambda v, _, directory: asyncio.run(
        qstore.open_async_engine(directory / "a.sqlite", read_only=v).dispose()
    ),
    ("open_async_engine", "durability"): lambda v, _, directory: asyncio.run(
        qstore.open_async_engine(directory / "a.sqlite", durability=v).dispose()
    ),
    ("checkpoint", "engine"): lambda v, _, __: qstore.checkpoint(v),
    ("log_size", "engine"): lambda v, _, __: qstore.log_size(v),
    ("write_session", "bind"): lambda v, _, __: qstore.write_session(v).__enter__(),
    ("async_write_session", "bind"): lambda v, _, __: asyncio.run(qstore.async_write_session(v).__aenter__()),
    ("mount", "base"): lambda v, _, __: qstore.mount(v),
    ("mount", "prefix"): lambda v, _, __: qstore.mount(MetaData(), prefix=v),
    ("mount", "schema"): lambda v, _, __: qstore.mount(MetaData(), schema=v),
    ("mount", "stores"): lambda v, _, __: qstore.mount(MetaData(), stores=v),
    ("Naming", "prefix"): lambda v, _, __: Naming(v),
    ("Naming", "schema"): lambda v, _, __: Naming("a_", v),
    **{
        (name, parameter): lambda v, engine, _, name=name, parameter=parameter: getattr(migrate, name)(  # type: ignore[misc]  # as above
            **{"bind": engine, parameter: v}
        )
        for name in ("upgrade", "downgrade", "current", "check", "repair", "stamp")
        for parameter in inspect.signature(getattr(migrate, name)).parameters
    },
    **{
        (name, "bind"): lambda v, _, __, name=name: asyncio.run(getattr(migrate, name)(v))  # type: ignore[misc]  # as above
        for name in migrate.__all__
        if name.endswith("_async")
    },
    ("sql", "dialect"): lambda v, _, __: migrate.sql(v, naming=Naming("a_")),
    ("sql", "naming"): lambda v, _, __: migrate.sql(naming=v),
    ("sql", "stores"): lambda v, _, __: migrate.sql(naming=Naming("a_"), stores=v),
    ("store_of", "path"): lambda v, _, __: migrate.store_of(v),
    ("copy", "source"): lambda v, _, directory: copy(v, directory / "copy"),
    ("copy", "target"): lambda v, _, directory: copy(directory / "localkv", v),
}


@pytest.mark.parametrize("call", FUNCTIONS, ids=" ".join)
def test_a_function_takes_anything_or_refuses_it_by_name(
    call: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    engine = qstore.open_engine(tmp_path / "localkv.sqlite")
    migrate.upgrade(engine)
    try:
        for value in _with_numpy(ODD):
            if call[1] in FLAGS and not _has_truth(value):
                continue
            try:
                FUNCTIONS[call](value, engine, tmp_path)
            except QstoreError:
                continue
            except Exception as error:
                error.add_note(f"{call} {shown(value)}")
                raise
    finally:
        engine.dispose()
