"""What all commands share: their arguments, how they say what they found, and how they fail in a line."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from datetime import datetime, timedelta
from typing import Annotated, Any, TypeVar

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, TaskID, TextColumn
from rich.table import Table
from sqlalchemy import URL

from qstore.engines import Target, open_engine
from qstore.engines.target import of_file
from qstore.errors import FormatError
from qstore.naming import Naming

__all__ = ["Json", "Place", "Prefix", "Schema", "bars", "naming_of", "opened", "say", "table"]

R = TypeVar("R")

Place = Annotated[str, typer.Argument(help="A file, a data directory, or a server's URL.", metavar="PLACE")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]
Prefix = Annotated[str | None, typer.Option(help="The prefix of the tables in an application's own database.")]
Schema = Annotated[str | None, typer.Option(help="Their schema, on a server.")]


def say(data: Any) -> None:
    """Print JSON, one value in a line."""
    typer.echo(json.dumps(data, default=_as_json, ensure_ascii=False))


def _as_json(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    return dict(value) if isinstance(value, Mapping) else str(value)


def naming_of(prefix: str | None, schema: str | None) -> Naming | None:
    """The names that the options give; None where they give none."""
    return None if prefix is None and schema is None else Naming(prefix or "qstore_", schema)


@contextmanager
def opened(
    kind: Callable[..., R], place: str, prefix: str | None, schema: str | None, *, create: bool | None = None
) -> Iterator[R]:
    """A repository of a kind at a place. `create`: whether it is made there; None where that cannot be asked for."""
    naming = naming_of(prefix, schema)
    with ExitStack() as closing:
        if naming is not None:
            engine = open_engine(place)
            closing.callback(engine.dispose)
            repository: Any = kind(engine, naming=naming)
        else:
            try:
                repository = kind.open(_target(place), create=bool(create))  # type: ignore[attr-defined]  # all of them have it
            except FormatError as error:
                if create or not error.found.startswith("no "):
                    raise
                raise FormatError(
                    "the store is not there" + ("; --create makes it" if create is False else ""),
                    found=error.found,
                    supported=error.supported,
                    target=error.target,
                ) from error
        closing.callback(repository.close)
        yield repository


def _target(place: str) -> Target:
    """A file's URL, so that any store opens it by its name; or the place itself, if it is a directory or a URL."""
    if os.path.isfile(place) or place.endswith((".sqlite", ".db", ".sqlite3")):
        url: URL = of_file(place)
        return url
    return place


def table(headings: tuple[str, ...], rows: list[tuple[str, ...]], *, left: tuple[str, ...]) -> Table:
    """A table for people: numbers to the right, and the headings named in `left` to the left."""
    made = Table(box=None, pad_edge=False, header_style="bold")
    for heading in headings:
        made.add_column(heading, justify="left" if heading in left else "right", overflow="fold")
    for row in rows:
        made.add_row(*(cell.replace("[", "\\[") for cell in row))
    return made


def console() -> Console:
    """Where tables go. Into a file or a pipe, as wide as they are."""
    return Console() if sys.stdout.isatty() or "COLUMNS" in os.environ else Console(width=200)


@contextmanager
def bars(*columns: ProgressColumn, shown: bool = True) -> Iterator[Callable[..., None]]:
    """A progress bar for each name that is told of, from the first one on."""
    progress = Progress(TextColumn("{task.description}"), BarColumn(30), MofNCompleteColumn(), *columns)
    tasks: dict[str, TaskID] = {}

    def advance(name: str, done: int, total: int, **fields: Any) -> None:
        if not shown:
            return
        progress.start()
        if name not in tasks:
            tasks[name] = progress.add_task(name, total=total, **fields)
        progress.update(tasks[name], completed=done, total=total, **fields)

    try:
        yield advance
    finally:
        if tasks:
            progress.stop()
