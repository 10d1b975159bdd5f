"""The command line: `qstore`, or `python -m qstore`."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Table

from qstore import copying, engines, migrate
from qstore import demo as demonstration
from qstore.errors import InvalidInput, QstoreError
from qstore.places import shown, stores_at

__all__ = ["app"]

app = typer.Typer(
    help="Durable queues and a key-value store on SQLAlchemy.", no_args_is_help=True, pretty_exceptions_enable=False
)


@app.callback()
def commands() -> None:
    """Durable queues and a key-value store on SQLAlchemy."""


@app.command()
def demo(
    directory: Annotated[
        Path | None,
        typer.Option("--dir", help="Keep the files in this directory, which must not hold stores yet.", metavar="DIR"),
    ] = None,
) -> None:
    """Run all three stores on real files with real processes, kill one in mid-work, and account for every message."""
    console = Console()
    place = nullcontext(str(directory)) if directory else tempfile.TemporaryDirectory(prefix="qstore-demo-")
    with _told("demo"), place as path:
        report = _run(console, path)
    console.print(_table(report))
    if directory:
        console.print(f"The files are in {directory}: open them with qstore, or with any SQLite tool.")
    if not report.kept:
        console.print("[bold red]A promise was not kept.[/]")
        raise typer.Exit(1)


@app.command()
def copy(
    source: Annotated[str, typer.Argument(help="A file, a data directory, or a server's URL.")],
    target: Annotated[str, typer.Argument(help="Likewise. It must not have rows in these stores yet.")],
) -> None:
    """Move stores between SQLite and PostgreSQL: every row as it is, compared at the end. Stop the writers first.

    Ids, order, leases, attempts and expiries are kept. Started again after an interruption, it goes on where it was.
    """
    console = Console()
    columns = (TextColumn("{task.description}"), BarColumn(30), MofNCompleteColumn(), TimeRemainingColumn())
    with _told("copy"), Progress(*columns, console=console) as bars:
        rows = copying.copy(source, target, progress=_advancing(bars))
    for store, count in rows.items():
        console.print(f"{store}: {count:,} rows, compared and equal")


@app.command()
def repair(
    target: Annotated[str, typer.Argument(help="A file, a data directory, or a server's URL.")],
) -> None:
    """Make right anew the tables by which stores find the next message, from the messages. Says what it found."""
    with _told("repair"), ExitStack() as closing:
        places = list(stores_at(target, closing, read_only=False))
        if not places:
            raise InvalidInput("target", f"expected a place with stores, found none in {shown(target)}")
        for place in places:
            done = migrate.repair(place.engine, naming=place.naming, stores=(place.store,))
            for line in done or (f"{place.store}: has nothing that would have to be repaired",):
                typer.echo(line)


def _run(console: Console, path: str) -> demonstration.Report:
    columns = (TextColumn("{task.description}"), BarColumn(20), MofNCompleteColumn(), TextColumn("{task.fields[what]}"))
    with Progress(*columns, console=console) as bars:
        advance = _advancing(bars)
        return demonstration.run(path, lambda phase, done, total, what: advance(phase, done, total, what=what))


@contextmanager
def _told(command: str) -> Iterator[None]:
    """End the program with an error of qstore's own, a driver's or the system's in a line."""
    try:
        yield
    except (QstoreError, OSError, *engines.ERRORS) as error:
        said = str(error) if isinstance(error, QstoreError) else engines.in_one_line(error)
        typer.echo(f"qstore {command}: {said}", err=True)
        raise typer.Exit(2) from error


def _advancing(bars: Progress) -> Callable[..., None]:
    """A bar for each name that is told of."""
    tasks: dict[str, TaskID] = {}

    def advance(name: str, done: int, total: int, **fields: Any) -> None:
        if name not in tasks:
            tasks[name] = bars.add_task(name, total=total, **fields)
        bars.update(tasks[name], completed=done, **fields)

    return advance


def _table(report: demonstration.Report) -> Table:
    table = Table(title=f"What the data says, after {report.seconds:.1f} s", title_justify="left")
    table.add_column("")
    table.add_column("found", justify="right")
    table.add_column("promised")
    table.add_column("")
    for line in report.lines:
        table.add_row(line.subject, line.found, line.promise, "[green]kept[/]" if line.kept else "[bold red]BROKEN[/]")
    return table
