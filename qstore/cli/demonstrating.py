"""`qstore demo`."""

from __future__ import annotations

import tempfile
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import TextColumn
from rich.table import Table

from qstore import demo as demonstration
from qstore.cli.telling import bars

__all__ = ["add_to"]


def add_to(app: typer.Typer) -> None:
    """Give the program its command."""
    app.command()(demo)


def demo(
    directory: Annotated[
        Path | None,
        typer.Option("--dir", help="Keep the files in this directory, which must not hold stores yet.", metavar="DIR"),
    ] = None,
) -> None:
    """Run all stores on real files, and account for every message.

    Real processes work on them, and one is killed in the midst of it.
    """
    console = Console()
    place = nullcontext(str(directory)) if directory else tempfile.TemporaryDirectory(prefix="qstore-demo-")
    with place as path, bars(TextColumn("{task.fields[what]}")) as advance:
        report = demonstration.run(path, lambda phase, done, total, what: advance(phase, done, total, what=what))
    console.print(_table(report))
    if directory:
        console.print(f"The files are in {directory}: qstore stats {directory}")
    if not report.kept:
        console.print("[bold red]A promise was not kept.[/]")
        raise typer.Exit(1)


def _table(report: demonstration.Report) -> Table:
    table = Table(title=f"What the data says, after {report.seconds:.1f} s", title_justify="left")
    table.add_column("")
    table.add_column("found", justify="right")
    table.add_column("promised")
    table.add_column("")
    for line in report.lines:
        table.add_row(line.subject, line.found, line.promise, "[green]kept[/]" if line.kept else "[bold red]BROKEN[/]")
    return table
