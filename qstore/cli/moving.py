"""Commands that move stores: `copy`, `export`, `import`."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Annotated

import typer
from rich.progress import TimeRemainingColumn

from qstore import copying, exporting
from qstore.cli.telling import Json, Place, bars, say
from qstore.errors import InvalidInput
from qstore.places import shown, stores_at

__all__ = ["add_to"]


def add_to(app: typer.Typer) -> None:
    """Give the program these commands."""
    app.command()(copy)
    app.command()(repair)
    app.command()(export)
    app.command("import")(import_)


def copy(
    source: Annotated[str, typer.Argument(help="A file, a data directory, or a server's URL.", metavar="SOURCE")],
    target: Annotated[str, typer.Argument(help="Likewise, without rows in these stores yet.", metavar="TARGET")],
    json: Json = False,
) -> None:
    """Copy stores between SQLite and PostgreSQL, and compare them.

    Stop the writers first. Ids, order, leases, attempts and expiries are kept. Started again after an interruption, it
    goes on where it was.
    """
    with bars(TimeRemainingColumn(), shown=not json) as advance:
        rows = copying.copy(source, target, progress=advance)
    _tell(rows, json, "compared and equal")


def repair(
    target: Annotated[str, typer.Argument(help="A file, a data directory, or a server's URL.", metavar="TARGET")],
    json: Json = False,
) -> None:
    """Make right what stores keep beside their messages.

    The tables by which they find the next message are made anew from the messages. Says what it found.
    """
    from qstore import migrate  # noqa: PLC0415  it imports Alembic, which takes longer than all the rest

    with ExitStack() as closing:
        places = list(stores_at(target, closing, read_only=False))
        if not places:
            raise InvalidInput("target", f"expected a place with stores, found none in {shown(target)}")
        for place in places:
            done = migrate.repair(place.engine, naming=place.naming, stores=(place.store,))
            if json:
                say({"store": place.store, "repaired": list(done)})
                continue
            for line in done or (f"{place.store}: has nothing that would have to be repaired",):
                typer.echo(line)


def export(
    place: Place,
    file: Annotated[str, typer.Argument(help="The file to write.", metavar="FILE")],
    json: Json = False,
) -> None:
    """Write all rows of the stores into a file of JSON lines. Started again, it goes on after the last whole line."""
    with bars(TimeRemainingColumn(), shown=not json) as advance:
        rows = exporting.export(place, file, progress=advance)
    _tell(rows, json, f"in {file}")


def import_(
    file: Annotated[str, typer.Argument(help="A file that export has written.", metavar="FILE")],
    target: Annotated[str, typer.Argument(help="A place without rows in these stores.", metavar="PLACE")],
    json: Json = False,
) -> None:
    """Make stores from a file that export has written. Started again after an interruption, it goes on where it was."""
    with bars(TimeRemainingColumn(), shown=not json) as advance:
        rows = exporting.import_(file, target, progress=advance)
    _tell(rows, json, "compared and equal")


def _tell(rows: dict[str, int], json: bool, what: str) -> None:
    if json:
        say(rows)
        return
    for store, count in rows.items():
        typer.echo(f"{store}: {count:,} rows, {what}")
