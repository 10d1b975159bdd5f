"""`qstore kv`: get, put, scan and delete keys."""

from __future__ import annotations

import base64
import sys
from typing import Annotated, Any

import typer

from qstore import LocalKvRepository
from qstore.cli.messages import Create
from qstore.cli.telling import Json, Place, Prefix, Schema, opened, say

__all__ = ["add_to"]

Key = Annotated[str, typer.Argument(metavar="KEY")]

kv = typer.Typer(help="Read and write keys.", no_args_is_help=True, rich_markup_mode=None)


def add_to(app: typer.Typer) -> None:
    """Give the program these commands."""
    app.add_typer(kv, name="kv")


@kv.command()
def get(place: Place, key: Key, json: Json = False, prefix: Prefix = None, schema: Schema = None) -> None:
    """Print the value of a key, byte for byte. Exit code 1 if it is absent or expired."""
    with opened(LocalKvRepository, place, prefix, schema) as store:
        value = store.get(key)
    if json:
        say({"key": key, "present": value is not None, **_shown(value)})
    elif value is None:
        typer.echo(f"qstore kv get: no key {key!r}", err=True)
    else:
        sys.stdout.buffer.write(value)
        if sys.stdout.isatty():
            typer.echo()
    raise typer.Exit(1 if value is None else 0)


@kv.command()
def put(
    place: Place,
    key: Key,
    value: Annotated[str, typer.Argument(help="The value as text; - reads bytes from stdin.")],
    ttl: Annotated[float | None, typer.Option(help="Seconds until it expires; without, never.")] = None,
    if_not_exists: Annotated[bool, typer.Option("--if-not-exists", help="Only if there is none.")] = False,
    create: Create = False,
    json: Json = False,
    prefix: Prefix = None,
    schema: Schema = None,
) -> None:
    """Write a key. Exit code 1 if --if-not-exists found one."""
    with opened(LocalKvRepository, place, prefix, schema, create=create) as store:
        data = sys.stdin.buffer.read() if value == "-" else value.encode(errors="surrogateescape")
        written = store.put(key, data, ttl=ttl, if_not_exists=if_not_exists)
    if json:
        say({"key": key, "written": written})
    elif not written:
        typer.echo(f"qstore kv put: {key!r} exists", err=True)
    raise typer.Exit(0 if written else 1)


@kv.command()
def scan(
    place: Place,
    starting_with: Annotated[str, typer.Argument(help="The prefix of the keys.", metavar="[KEY_PREFIX]")] = "",
    values: Annotated[bool, typer.Option("--values", help="Print the values too.")] = False,
    json: Json = False,
    prefix: Prefix = None,
    schema: Schema = None,
) -> None:
    """Print the live keys that start with a prefix, in order."""
    with opened(LocalKvRepository, place, prefix, schema) as store:
        for key, value in store.iter_prefix(starting_with):
            if json:
                say({"key": key, **(_shown(value) if values else {})})
            else:
                typer.echo(f"{key}\t{value.decode(errors='backslashreplace')}" if values else key)


@kv.command()
def delete(place: Place, key: Key, json: Json = False, prefix: Prefix = None, schema: Schema = None) -> None:
    """Delete a key, if it is there."""
    with opened(LocalKvRepository, place, prefix, schema) as store:
        store.delete(key)
    if json:
        say({"key": key})


def _shown(value: bytes | None) -> dict[str, Any]:
    """A value in JSON: as text, or in base64 where it is none."""
    if value is None:
        return {}
    try:
        return {"value": value.decode()}
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(value).decode()}
