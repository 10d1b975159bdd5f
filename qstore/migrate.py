"""Schema migrations from Python. They run the same revisions as the `alembic` command does."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

from sqlalchemy import Connection, Engine

from qstore import engines, revisions, wholeness
from qstore.arguments import one_of, several
from qstore.awaited import AsyncBind, awaited
from qstore.engines import Bind
from qstore.engines.files import store_of
from qstore.errors import FormatError, InvalidInput, InvalidType
from qstore.formats import FORMATS, Found, newest
from qstore.naming import NATIVE, Naming

__all__ = [
    "AsyncBind",
    "Bind",
    "check",
    "check_async",
    "current",
    "current_async",
    "downgrade",
    "downgrade_async",
    "repair",
    "repair_async",
    "sql",
    "stamp",
    "stamp_async",
    "store_of",
    "upgrade",
    "upgrade_async",
    "version_location",
]

T = TypeVar("T")


def upgrade(bind: Bind, *, naming: Naming = NATIVE, stores: Iterable[str] | None = None) -> None:
    """Bring stores up to the newest revision: make what is missing, adopt what is there.

    One transaction, under the write lock: all of it or nothing, and any number of processes may do it at once.
    `stores`: all three when mounted; a native file holds one, found by what is in it or else by its name
    (`localkv.sqlite`). FormatError, and nothing is changed, if the database is somebody else's.
    """
    revisions.upgrade(bind, naming, _chosen(bind, naming, stores))


def downgrade(
    bind: Bind, *, naming: Naming = NATIVE, stores: Iterable[str] | None = None, drop_data: bool = False
) -> None:
    """Take stores out of the database. InvalidInput, and nothing changed, if rows would go and `drop_data` is False."""
    revisions.downgrade(bind, naming, _chosen(bind, naming, stores), drop_data=drop_data)


def current(bind: Bind, *, naming: Naming = NATIVE) -> tuple[str, ...]:
    """The revisions that the database notes for its stores, in order of their names."""
    _check_naming(naming)

    def look(connection: Connection) -> tuple[str, ...]:
        noted = set[str]()
        for store in FORMATS:
            try:
                noted |= engines.found(connection, naming, store).revisions
            except FormatError:
                continue  # in a native file the other two stores' tables are no business of the one that is there
        return tuple(sorted(noted))

    return _read(bind, look)


def check(bind: Bind, *, naming: Naming = NATIVE, stores: Iterable[str] | None = None) -> tuple[str, ...]:
    """What is wrong with the stores, a sentence each; empty if all is as the revision makes it that is noted.

    A store at an earlier revision of its format is not wrong (`current` tells). Of one at transport.v1.1 or
    localqueue.v1.1, and of a transport on a server, it reads all messages, to hold against them the state by which the
    next one is found.
    """
    chosen = _chosen(bind, naming, stores)

    def look(connection: Connection) -> tuple[str, ...]:
        wrong: list[str] = []
        for store in chosen:
            try:
                found = engines.found(connection, naming, store)
            except FormatError as error:
                wrong.append(str(error))
                continue
            wrong += _faults(connection, naming, store, found)
        return tuple(wrong)

    return _read(bind, look)


def repair(bind: Bind, *, naming: Naming = NATIVE, stores: Iterable[str] | None = None) -> tuple[str, ...]:
    """Make right again what `check` finds to differ from the stores' messages. Returns what was found and done.

    What is missing of a store's revision (a table, an index, a trigger) is made again. One transaction under the write
    lock. Nothing to do where a store has no such tables (transport.v1 and localqueue.v1 in a file, localkv).
    FormatError, and nothing is changed, where a name is taken by something else.
    """
    return revisions.repair(bind, naming, _chosen(bind, naming, stores))


def stamp(bind: Bind, *, naming: Naming = NATIVE, stores: Iterable[str] | None = None) -> None:
    """Note the newest revision that stores have all of, whose tables another hand has made, after a comparison.

    FormatError, and nothing is changed, if they are not the same.
    """
    revisions.stamp(bind, naming, _chosen(bind, naming, stores))


def sql(dialect: str = "sqlite", *, naming: Naming = NATIVE, stores: Iterable[str] | None = None) -> str:
    """The upgrade from nothing as an SQL script. `stores`: all, or for native names one of them."""
    one_of("dialect", dialect, ("sqlite", "postgresql"))
    _check_naming(naming)
    chosen = _named(stores)
    if naming.native and len(chosen) != 1:
        raise InvalidInput("stores", f"expected one of {', '.join(FORMATS)} (a native file holds one store)")
    return revisions.sql(dialect, naming, chosen)


async def upgrade_async(
    bind: AsyncBind | Engine, *, naming: Naming = NATIVE, stores: Iterable[str] | None = None
) -> None:
    """As `upgrade`, awaited: in a thread on an Engine or on one that qstore opened, else through the async driver."""
    await awaited(bind, lambda it: upgrade(it, naming=naming, stores=stores))


async def downgrade_async(
    bind: AsyncBind | Engine,
    *,
    naming: Naming = NATIVE,
    stores: Iterable[str] | None = None,
    drop_data: bool = False,
) -> None:
    """As `downgrade`, awaited."""
    await awaited(bind, lambda it: downgrade(it, naming=naming, stores=stores, drop_data=drop_data))


async def current_async(bind: AsyncBind | Engine, *, naming: Naming = NATIVE) -> tuple[str, ...]:
    """As `current`, awaited."""
    return await awaited(bind, lambda it: current(it, naming=naming))


async def check_async(
    bind: AsyncBind | Engine, *, naming: Naming = NATIVE, stores: Iterable[str] | None = None
) -> tuple[str, ...]:
    """As `check`, awaited."""
    return await awaited(bind, lambda it: check(it, naming=naming, stores=stores))


async def repair_async(
    bind: AsyncBind | Engine, *, naming: Naming = NATIVE, stores: Iterable[str] | None = None
) -> tuple[str, ...]:
    """As `repair`, awaited."""
    return await awaited(bind, lambda it: repair(it, naming=naming, stores=stores))


async def stamp_async(
    bind: AsyncBind | Engine, *, naming: Naming = NATIVE, stores: Iterable[str] | None = None
) -> None:
    """As `stamp`, awaited."""
    await awaited(bind, lambda it: stamp(it, naming=naming, stores=stores))


def version_location() -> str:
    """The absolute path of the revisions, for `version_locations` of a host's Alembic.

    The host's own `alembic upgrade heads` runs them then, under the prefix that `qstore_prefix` in its configuration
    gives (without: `qstore_`), and notes them in the host's version table.
    """
    return os.path.join(revisions.location(), "versions")


def _faults(connection: Connection, naming: Naming, store: str, found: Found) -> Iterator[str]:
    noted = {revision for revision in found.revisions if revision.partition(".")[0] == store}
    if not found.present:
        yield f"{store}: its tables are missing; upgrade makes them"
    elif found.lacking and (found.added or newest(store) in noted):
        lacking = found.missing | {naming.name(store, part) for part in found.lacking}
        yield f"{store}: {', '.join(sorted(lacking))} missing, or not as {newest(store)} makes it; upgrade makes it"
    elif not found.complete:
        yield f"{store}: {', '.join(sorted(found.missing))} missing; upgrade makes it"
    elif differs := wholeness.differing(connection, naming, store, found):
        yield f"{store}: {differs}, so that some are delivered out of turn or not at all; migrate.repair makes it right"
    # A mount without any note is looked after by the host's own revisions.
    if found.present and (naming.native or found.revisions) and not noted & {FORMATS[store].marker, newest(store)}:
        yield f"{store}: revision {newest(store)} is not noted; upgrade or stamp notes it"


def _chosen(bind: Bind, naming: Naming, stores: Iterable[str] | None) -> Sequence[str]:
    engine = engines.engine_of(bind)
    _check_naming(naming)
    if stores is not None or not naming.native:
        return _named(stores)
    store = store_of(engines.opened_path(engine) or engine.url.database or "", turso=engines.on_turso(engine.url))
    if store is None:
        raise InvalidInput(
            "stores",
            f"expected one of {', '.join(FORMATS)}: a native file holds one store, and neither the content nor the name"
            f" of {engines.described(engine)} tells which",
        )
    return (store,)


def _check_naming(naming: Naming) -> None:
    if not isinstance(naming, Naming):
        raise InvalidType.of("naming", naming, "a Naming")


def _named(stores: Iterable[str] | None) -> Sequence[str]:
    if stores is None:
        return tuple(FORMATS)
    return [one_of("stores", store, FORMATS) for store in several("stores", stores, f"some of {', '.join(FORMATS)}")]


def _read(bind: Bind, look: Callable[[Connection], T]) -> T:
    with engines.translated(engines.described(engines.engine_of(bind))), engines.reading(bind) as connection:
        return look(connection)
