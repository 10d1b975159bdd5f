"""What will hurt: a look at a store, or at a host's engine, in plain words."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session, scoped_session

from qstore.capabilities import capabilities
from qstore.engines import Bind, Target, described, engine_of, in_memory, in_one_line, reading
from qstore.errors import InvalidInput, QstoreError
from qstore.explore import server, sqlite
from qstore.explore.opening import open_view
from qstore.explore.summary import Summary
from qstore.explore.view import View
from qstore.formats import ADDITIONS
from qstore.naming import Naming
from qstore.places import shown

__all__ = ["Finding", "doctor"]

MANY = 10_000
"""Messages from which on a claim at the first revision is felt."""


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that will hurt: of what, which kind in a word or two, and a sentence with what to do."""

    subject: str
    kind: str
    sentence: str

    def __str__(self) -> str:
        return f"{self.subject}: {self.sentence}"


def doctor(target: Target | Bind, *, naming: Naming | None = None) -> list[Finding]:
    """Look at a store, or at a host's engine, and tell what will hurt; nothing if all is well. Writes nothing.

    It reads all messages once, and watches for half a second who reads.
    """
    if isinstance(target, Engine) and in_memory(target):
        return [Finding(described(target), "memory", sqlite.IN_MEMORY)]
    try:
        view = open_view(target, naming=naming)
    except (QstoreError, SQLAlchemyError) as error:
        if isinstance(error, InvalidInput):
            raise
        binds = (Engine, Connection, Session, scoped_session)
        place = described(engine_of(target)) if isinstance(target, binds) else shown(target)
        said = str(error) if isinstance(error, QstoreError) else in_one_line(error)
        return [Finding(place, "cannot be opened", said.removeprefix(f"{place}: "))]
    with view:
        return list(_findings(view, own=isinstance(target, Engine)))


def _findings(view: View, *, own: bool) -> Iterator[Finding]:
    looked: set[Engine] = set()
    for store, engine in view.engines.items():
        place = view.place(store)
        if engine not in looked:
            looked.add(engine)
            one_writer = capabilities(engine.dialect).one_writer
            about = sqlite.looks(engine, own=own) if one_writer else server.looks()
            yield from _looked(described(engine), place.bind, about)
        yield from _of_store(view, store)


def _looked(
    subject: str, bind: Bind, looks: Iterator[tuple[str, Callable[[Connection], Iterator[str]]]]
) -> Iterator[Finding]:
    for kind, look in looks:
        with reading(bind) as connection:
            for sentence in look(connection):
                yield Finding(subject, kind, sentence)


def _of_store(view: View, store: str) -> Iterator[Finding]:
    from qstore import migrate  # noqa: PLC0415  it imports Alembic, which takes longer than all the rest

    place = view.place(store)
    for sentence in migrate.check(place.bind, naming=place.naming, stores=(store,)):
        yield Finding(str(place), "not whole", sentence.removeprefix(f"{store}: "))
    [summary] = [each for each in view.summary() if each.store == store]
    yield from (Finding(str(place), kind, sentence) for kind, sentence in _of_rows(summary))
    addition = ADDITIONS.get(store)
    if (
        addition is not None
        and place.engine.dialect.name == addition.dialect
        and summary.rows >= MANY
        and not place.found().added
    ):
        sentence = (
            f"the store is at {addition.format.marker} and holds {summary.rows:,} messages, all of which each claim or"
            f" receive looks at; at {addition.revision} they cost the same at any size: qstore migrate upgrade"
        )
        yield Finding(str(place), "first revision", sentence)
    if store == "transport":
        orphaned = sum(row["state"] == "orphaned" for row in view.peek("groups", 10**9))
        if orphaned:
            yield Finding(
                str(place),
                "orphaned",
                f"{orphaned:,} groups have messages but no row among the groups, so that no claim finds them; the next"
                " publish to each makes it",
            )


def _of_rows(summary: Summary) -> Iterator[tuple[str, str]]:
    if stuck := summary.count("stuck"):
        sentence = (
            f"{stuck:,} messages are locked without an end, which no claim takes; another program wrote that, and"
            " setting their locked_by to NULL frees them"
        )
        yield "stuck", sentence
    if summary.store == "localkv" and summary.count("expired") > max(MANY, summary.count("live")):
        sentence = (
            f"{summary.count('expired'):,} of {summary.rows:,} keys have expired and only take room; purge_expired"
            " (qstore purge --expired) removes them"
        )
        yield "expired", sentence
