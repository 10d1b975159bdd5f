"""What a store's tables hold, for tests that say that nothing was changed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.backends import Backend

TABLES = {"transport": ("messages", "groups"), "localkv": ("meta", "kv"), "localqueue": ("meta", "messages")}

Contents = dict[str, list[tuple[Any, ...]]]


def contents(backend: Backend, store: str) -> Contents:
    """All rows of a store, table by table, with what a server's tables add."""
    return {table: backend.sql(store, f"SELECT t.* FROM {{{table}}} AS t ORDER BY 1") for table in TABLES[store]}


@contextmanager
def unchanged(backend: Backend, *stores: str) -> Iterator[None]:
    """Fail if what is done inside leaves a store's tables other than they were."""
    before = {store: contents(backend, store) for store in stores}
    yield
    assert {store: contents(backend, store) for store in stores} == before
