"""Commands that only look: `stats`, `watch`, `peek`, `explain`, `doctor`."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict
from enum import StrEnum
from typing import Annotated, Any

import typer
from rich.live import Live
from rich.table import Table

from qstore import View, open_view
from qstore.cli.telling import Json, Place, Prefix, Schema, console, naming_of, say, table
from qstore.errors import InvalidInput
from qstore.explore.doctor import doctor as examine
from qstore.explore.durations import spoken
from qstore.explore.summary import HEADINGS, Summary, cells

__all__ = ["add_to"]

WIDE = 110
"""Columns of a terminal that has room for all that `stats` shows."""


class What(StrEnum):
    """What can be peeked at."""

    messages = "messages"
    groups = "groups"
    queue = "queue"
    keys = "keys"


def add_to(app: typer.Typer) -> None:
    """Give the program these commands."""
    for command in (stats, watch, peek, explain, doctor):
        app.command()(command)


def _view(place: str, prefix: str | None, schema: str | None) -> View:
    return open_view(place, naming=naming_of(prefix, schema))


def stats(place: Place, json: Json = False, prefix: Prefix = None, schema: Schema = None) -> None:
    """Show what each store holds: rows by state, the oldest, sizes.

    ready may be claimed or received; in flight is leased; parked waits for its time; lapsed was delivered, not acked in
    time, and is due again (of keys: expired). oldest is the age of the queue's oldest message, and in the transport the
    time since the last claim of the group that waits longest.
    """
    with _view(place, prefix, schema) as view:
        found = view.summary()
        if json:
            say([asdict(each) for each in found])
        else:
            screen = console()
            screen.print(_stats(found, screen.width))


def watch(
    place: Place,
    every: Annotated[float, typer.Option(help="Seconds between two looks.", min=0.05)] = 1.0,
    count: Annotated[int | None, typer.Option(help="End after so many looks.", min=1)] = None,
    json: Json = False,
    prefix: Prefix = None,
    schema: Schema = None,
) -> None:
    """Show what each store holds, and how that changes. Ctrl-C ends it."""
    with _view(place, prefix, schema) as view, suppress(KeyboardInterrupt):
        looks = _looks(view, every, count)
        if json:
            for found, _ in looks:
                say({"at": time.time(), "stores": [asdict(each) for each in found]})
            return
        screen = console()
        with Live(console=screen, auto_refresh=False) as live:
            for found, before in looks:
                live.update(_stats(found, screen.width, before, every), refresh=True)
        if not screen.is_terminal:
            typer.echo()


def _looks(view: View, every: float, count: int | None) -> Iterator[tuple[list[Summary], list[Summary]]]:
    before: list[Summary] = []
    made = 0
    while count is None or made < count:
        if made:
            time.sleep(every)
        found = view.summary()
        yield found, before or found
        before, made = found, made + 1


def _stats(found: list[Summary], width: int, before: list[Summary] | None = None, every: float = 1.0) -> Table:
    rows = [cells(each) for each in found]
    headings: tuple[str, ...] = HEADINGS
    if before is not None:
        headings = (*HEADINGS, "rows/s")
        speeds = [(new.rows - old.rows) / every for new, old in zip(found, before, strict=True)]
        rows = [(*row, f"{speed:+,.0f}" if speed else "") for row, speed in zip(rows, speeds, strict=True)]
    kept = [place for place, name in enumerate(headings) if width >= WIDE or name not in ("revision", "file", "log")]
    return table(
        tuple(headings[place] for place in kept),
        [tuple(row[place] for place in kept) for row in rows],
        left=HEADINGS[:2],
    )


def peek(
    place: Place,
    what: Annotated[What | None, typer.Argument(help="Without: the first of these that is there.")] = None,
    most: Annotated[int, typer.Option("-n", help="How many rows.", min=1)] = 10,
    prefix_of_keys: Annotated[str, typer.Option("--starting-with", help="Keys with this prefix.")] = "",
    json: Json = False,
    prefix: Prefix = None,
    schema: Schema = None,
) -> None:
    """Show the first rows of a store as they are, without taking any. Nothing is claimed, received or deleted."""
    with _view(place, prefix, schema) as view:
        kinds = {"transport": "messages", "localqueue": "queue", "localkv": "keys"}
        kind = what.value if what else next(kinds[store] for store in kinds if store in view.stores)
        rows = view.peek(kind, most, prefix=prefix_of_keys)
        if json:
            for row in rows:
                say(row)
        elif rows:
            texts = [tuple(_cell(value) for value in row.values()) for row in rows]
            console().print(table(tuple(rows[0]), texts, left=tuple(rows[0])))
        else:
            typer.echo(f"no {kind}")


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if hasattr(value, "total_seconds"):
        seconds = value.total_seconds()
        return f"-{spoken(-seconds)}" if seconds < 0 else spoken(seconds)
    text = value.strftime("%Y-%m-%d %H:%M:%S") if hasattr(value, "strftime") else str(value)
    return text if len(text) <= 60 else f"{text[:59]}…"


def explain(
    place: Place,
    group: Annotated[str | None, typer.Argument(help="A group of the transport.")] = None,
    seq: Annotated[int | None, typer.Option(help="Or a message of it, by its seq.")] = None,
    id: Annotated[int | None, typer.Option(help="Or a message of the queue.")] = None,
    key: Annotated[str | None, typer.Option(help="Or a key.")] = None,
    min_priority: Annotated[int, typer.Option(help="The floor that the workers in question claim with.")] = 0,
    json: Json = False,
    prefix: Prefix = None,
    schema: Schema = None,
) -> None:
    """Say why a group, a message or a key is not moving."""
    with _view(place, prefix, schema) as view:
        if all(each is None for each in (group, seq, id, key)):
            raise InvalidInput("GROUP", "expected a group, or --seq, --id or --key")
        found = view.explain(group, seq=seq, id=id, key=key, min_priority=min_priority)
        if json:
            say({"state": found.state, "sentence": found.sentence, **found.data})
        else:
            typer.echo(found.sentence)
    raise typer.Exit(1 if found.state == "absent" else 0)


def doctor(place: Place, json: Json = False, prefix: Prefix = None, schema: Schema = None) -> None:
    """Look at a place and say in plain words what will hurt. Exit code 1 if something will."""
    findings = examine(place, naming=naming_of(prefix, schema))
    if json:
        say([asdict(each) for each in findings])
    else:
        for each in findings:
            typer.echo(each)
        if not findings:
            typer.echo("Nothing that will hurt was found.")
    raise typer.Exit(1 if findings else 0)
