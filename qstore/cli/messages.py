"""Commands for messages: `send`, `receive`, `ack` of the queue, `publish` of the transport, `purge`."""

from __future__ import annotations

import json as jsons
import sys
from typing import Annotated, Any

import typer

from qstore import Event, LocalKvRepository, LocalQueueRepository, TransportRepository
from qstore.cli.telling import Json, Place, Prefix, Schema, opened, say
from qstore.errors import InvalidInput, UndecodablePayload
from qstore.places import shown

__all__ = ["add_to"]

Create = Annotated[bool, typer.Option("--create", help="Make the store if it is not there.")]


def add_to(app: typer.Typer) -> None:
    """Give the program these commands."""
    for command in (send, publish, receive, ack, purge):
        app.command()(command)


def send(
    place: Place,
    payload: Annotated[str, typer.Argument(help="The text to send; - reads it from stdin.")],
    as_json: Annotated[bool, typer.Option("--as-json", help="The payload is JSON, and is stored as such.")] = False,
    create: Create = False,
    json: Json = False,
    prefix: Prefix = None,
    schema: Schema = None,
) -> None:
    """Send a message to the queue, and print its id."""
    with opened(LocalQueueRepository, place, prefix, schema, create=create) as queue:
        given = _given(payload)
        sent = queue.send(_parsed("PAYLOAD", given) if as_json else given)
        say({"id": sent}) if json else typer.echo(sent)


def publish(
    place: Place,
    group: Annotated[str, typer.Argument(help="The message's group: one of it is in flight at a time.")],
    event: Annotated[str, typer.Argument(help='The event as a JSON object with a "kind"; - reads it from stdin.')],
    priority: Annotated[int, typer.Option(help="0 to 4; the publish that makes the group sets it.")] = 0,
    create: Create = False,
    json: Json = False,
    prefix: Prefix = None,
    schema: Schema = None,
) -> None:
    """Publish a message to a group of the transport, and print its seq."""
    with opened(TransportRepository[Event], place, prefix, schema, create=create) as transport:
        fields = _parsed("EVENT", _given(event))
        if not isinstance(fields, dict) or not isinstance(fields.get("kind"), str):
            raise InvalidInput("EVENT", 'expected a JSON object with a "kind", such as \'{"kind": "placed"}\'')
        try:
            made = Event.model_validate(fields)
        except ValueError as error:
            raise InvalidInput("EVENT", f"expected an event: {error}") from error
        seq = transport.publish(group, made, priority)
        say({"seq": seq}) if json else typer.echo(seq)


def receive(
    place: Place,
    most: Annotated[int, typer.Option("-n", help="At most so many messages.")] = 1,
    visibility: Annotated[float, typer.Option(help="Seconds until they are due again, unless acked.")] = 30.0,
    and_ack: Annotated[bool, typer.Option("--ack", help="Ack them once they are printed.")] = False,
    json: Json = False,
    prefix: Prefix = None,
    schema: Schema = None,
) -> None:
    """Receive messages of the queue: print receipt handle and payload. Exit code 1 if none is due."""
    with opened(LocalQueueRepository, place, prefix, schema) as queue:
        found = queue.receive(most, visibility_timeout=visibility)
        for message in found:
            try:
                payload: Any = message.payload
            except UndecodablePayload as error:
                payload = error.raw
            if json:
                about = {"id": message.id, "receipt_handle": message.receipt_handle, "attempt": message.attempt}
                say({**about, "payload": payload})
            else:
                shown = payload if isinstance(payload, str) else jsons.dumps(payload, ensure_ascii=False)
                typer.echo(f"{message.receipt_handle}\t{shown}")
            if and_ack:
                sys.stdout.flush()
                queue.ack(message.receipt_handle)
    raise typer.Exit(0 if found else 1)


def ack(
    place: Place,
    receipts: Annotated[list[str], typer.Argument(help="Receipt handles, as receive prints them.", metavar="RECEIPT…")],
    json: Json = False,
    prefix: Prefix = None,
    schema: Schema = None,
) -> None:
    """Settle messages of the queue: they are removed. One that is gone already is left at that."""
    with opened(LocalQueueRepository, place, prefix, schema) as queue:
        for receipt in receipts:
            queue.ack(receipt)
    if json:
        say({"acked": receipts})


def purge(
    place: Place,
    expired: Annotated[
        bool, typer.Option("--expired", help="Remove expired keys instead, without a question.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    json: Json = False,
    prefix: Prefix = None,
    schema: Schema = None,
) -> None:
    """Remove all messages of a queue, or all expired keys."""
    kind: Any = LocalKvRepository if expired else LocalQueueRepository
    with opened(kind, place, prefix, schema) as repository:
        if not (expired or yes):
            typer.echo(f"Remove all messages of the queue in {shown(place)}? [y/N] ", nl=False, err=True)
            if sys.stdin.readline().strip().lower() not in ("y", "yes"):
                typer.echo("Nothing was removed.", err=True)
                raise typer.Exit(1)
        removed = repository.purge_expired() if expired else repository.purge()
        say({"removed": removed}) if json else typer.echo(f"{removed:,} removed")


def _given(argument: str) -> str:
    return sys.stdin.read() if argument == "-" else argument


def _parsed(field: str, given: str) -> Any:
    try:
        return jsons.loads(given)
    except ValueError as error:
        raise InvalidInput(field, f"expected JSON: {error}") from error
