"""`qstore migrate`: the revisions, from a shell."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from typing import Annotated, Any

import typer
from sqlalchemy import Engine

from qstore.cli.telling import Json, Place, Prefix, Schema, naming_of, say
from qstore.engines import open_engine
from qstore.engines.target import in_directory, of_file
from qstore.errors import FormatError
from qstore.formats import FORMATS
from qstore.naming import NATIVE, Naming
from qstore.opening import naming_at

__all__ = ["add_to"]

migrate = typer.Typer(help="Make stores, and bring them up to date.", no_args_is_help=True, rich_markup_mode=None)


class Store(StrEnum):
    """The stores."""

    transport = "transport"
    localkv = "localkv"
    localqueue = "localqueue"


class Dialect(StrEnum):
    """What SQL is written for."""

    sqlite = "sqlite"
    postgresql = "postgresql"


Stores = Annotated[list[Store] | None, typer.Option("--store", help="This store alone; may be repeated.")]


def add_to(app: typer.Typer) -> None:
    """Give the program these commands."""
    app.add_typer(migrate, name="migrate")


@migrate.command()
def upgrade(
    place: Place, store: Stores = None, json: Json = False, prefix: Prefix = None, schema: Schema = None
) -> None:
    """Bring stores up to the newest revision.

    Those that are missing are made: in a directory, all three.
    """
    for engine, naming, stores in _each(place, store, prefix, schema, make=True):
        _migrations().upgrade(engine, naming=naming, stores=stores)
    _tell(place, store, prefix, schema, json)


@migrate.command()
def current(
    place: Place, store: Stores = None, json: Json = False, prefix: Prefix = None, schema: Schema = None
) -> None:
    """Print the revisions that are noted."""
    _tell(place, store, prefix, schema, json)


@migrate.command()
def check(place: Place, store: Stores = None, json: Json = False, prefix: Prefix = None, schema: Schema = None) -> None:
    """Say what is wrong with the stores. Exit code 1 if something is. It reads all messages."""
    wrong = [
        sentence
        for engine, naming, stores in _each(place, store, prefix, schema)
        for sentence in _migrations().check(engine, naming=naming, stores=stores)
    ]
    if json:
        say(wrong)
    else:
        typer.echo("\n".join(wrong) or "Nothing is wrong.")
    raise typer.Exit(1 if wrong else 0)


@migrate.command()
def stamp(place: Place, store: Stores = None, json: Json = False, prefix: Prefix = None, schema: Schema = None) -> None:
    """Note the revision of stores made by another hand, once compared."""
    for engine, naming, stores in _each(place, store, prefix, schema, write=True):
        _migrations().stamp(engine, naming=naming, stores=stores)
    _tell(place, store, prefix, schema, json)


@migrate.command()
def sql(
    dialect: Annotated[Dialect, typer.Argument(help="What the script is for.")] = Dialect.sqlite,
    store: Stores = None,
    prefix: Prefix = None,
    schema: Schema = None,
) -> None:
    """Print the upgrade from nothing as an SQL script. A native file holds one --store; --prefix mounts them."""
    naming = naming_of(prefix, schema) or (NATIVE if dialect is Dialect.sqlite else Naming("qstore_"))
    typer.echo(_migrations().sql(dialect.value, naming=naming, stores=_named(store)), nl=False)


def _migrations() -> Any:
    from qstore import migrate  # noqa: PLC0415  as Alembic takes longer than all the rest, and `--help` needs it not

    return migrate


def _named(stores: list[Store] | None) -> list[str] | None:
    return [each.value for each in stores] if stores else None


def _tell(place: str, store: list[Store] | None, prefix: str | None, schema: str | None, json: bool) -> None:
    noted = {
        revision
        for engine, naming, stores in _each(place, store, prefix, schema)
        for revision in _migrations().current(engine, naming=naming)
        if stores is None or revision.partition(".")[0] in stores
    }
    if json:
        say(sorted(noted))
    else:
        typer.echo("\n".join(sorted(noted)) or "no revision is noted")


def _each(
    place: str,
    chosen: list[Store] | None,
    prefix: str | None,
    schema: str | None,
    *,
    write: bool = False,
    make: bool = False,
) -> Iterator[tuple[Engine, Naming, list[str] | None]]:
    """An engine for each database at a place, with the names there and the stores that are meant."""
    wanted = _named(chosen)
    given = naming_of(prefix, schema)
    if os.path.isdir(place) or place.endswith(os.sep):
        for store in wanted or FORMATS:
            url = in_directory(place, f"{store}.sqlite")
            if make:
                os.makedirs(place, exist_ok=True)
            if make or os.path.exists(url.database or ""):
                with _engine(str(url.database), write=write or make) as engine:
                    yield engine, NATIVE, [store]
        return
    url = of_file(place)
    if url.get_backend_name() == "sqlite" and not make and not os.path.exists(url.database or ""):
        raise FormatError(
            "there is no database; upgrade makes one",
            found="no file",
            supported=", ".join(fmt.marker for fmt in FORMATS.values()),
            target=place,
        )
    with _engine(place, write=write or make) as engine:
        yield engine, given or naming_at(url), wanted


@contextmanager
def _engine(place: str, *, write: bool) -> Iterator[Engine]:
    engine = open_engine(place, read_only=not write)
    try:
        yield engine
    finally:
        engine.dispose()
