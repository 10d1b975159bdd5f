"""The transport on PostgreSQL under load: one message of a group in flight, in order, none lost or twice. H30, H31."""

from __future__ import annotations

import time
from collections import Counter
from random import Random

import pytest
from sqlalchemy import URL

from qstore.statement import Statement
from qstore.transport import statements_postgresql as statements
from tests import postgres
from tests.concurrency.postgres_account import Note, deadlocks, drained, faults, wrong_states
from tests.concurrency.postgres_storm import Plan, end_a_session, storm
from tests.concurrency.processes import children

ISOLATIONS = ("repeatable read", "serializable")


def text_of(url: URL) -> str:
    return url.render_as_string(hide_password=False)


def weathered(url: URL, plan: Plan, *, processes: int = 2, threads: int = 4) -> tuple[list[Note], list[object]]:
    """A storm of so many processes. Returns what they noted, and the wrong states that were met meanwhile."""
    random = Random(1)
    states: list[object] = []
    notes: list[Note] = []
    calls = [(storm, text_of(url), f"process {n}", threads, plan) for n in range(processes)]
    with children(*calls) as running:
        for child in running:
            child.wait_until_ready()
        for child in running:
            child.go()
        for child in running:
            deadline = time.monotonic() + 90
            while not child.pipe.poll(0.2) and time.monotonic() < deadline:
                states += wrong_states(url)
                if plan.killed:
                    end_a_session(url, random)
            notes += child.result()
    states += wrong_states(url)
    return notes + drained(url), states


def claims(notes: list[Note]) -> int:
    return sum(note.what == "held" for note in notes)


def test_eight_workers_on_six_engines_never_have_two_messages_of_a_group_and_lose_or_repeat_none(url: URL) -> None:
    notes, states = weathered(url, Plan(claims=400))
    assert faults(notes) == Counter()
    assert states == []
    assert claims(notes) >= 3000
    assert deadlocks(url) == 0


def test_sessions_that_are_ended_and_callers_transactions_that_are_rolled_back_lose_and_repeat_nothing(
    url: URL,
) -> None:
    notes, states = weathered(url, Plan(claims=80, joining=0.1, killed=True))
    assert faults(notes) == Counter()
    assert states == []


@pytest.mark.parametrize("isolation", ISOLATIONS)
def test_a_databases_default_isolation_changes_nothing_of_that_and_no_conflict_surfaces(
    url: URL, isolation: str
) -> None:
    with postgres.connect(url) as connection:
        connection.execute(f"ALTER DATABASE {url.database} SET default_transaction_isolation = '{isolation}'".encode())
    notes, states = weathered(url, Plan(claims=30, joining=0.05))
    assert faults(notes) == Counter()
    assert states == []


def test_engines_that_a_host_made_serializable_change_nothing_of_that(url: URL) -> None:
    notes, states = weathered(url, Plan(claims=30, joining=0.05, isolation="SERIALIZABLE"))
    assert faults(notes) == Counter()
    assert states == []


@pytest.mark.parametrize(
    ("name", "right", "wrong"),
    [
        ("CLAIM", "FOR UPDATE SKIP LOCKED", ""),
        (
            "PUBLISH",
            "tail = nextval(CAST(pg_get_serial_sequence('{messages}',\n    'seq') AS regclass))",
            "tail = excluded.tail",
        ),
        ("ACK", "AND g.until = CAST(:lock_expiry AS double precision)", "AND CAST(:lock_expiry AS float8) > 0"),
        ("ACK", "AND g.tail = CAST(:seq AS bigint)", "AND true"),
    ],
)
def test_the_storm_catches_a_statement_that_is_wrong(
    url: URL, monkeypatch: pytest.MonkeyPatch, name: str, right: str, wrong: str
) -> None:
    text = getattr(statements, name)._text
    assert right in text
    monkeypatch.setattr(statements, name, Statement(text.replace(right, wrong)))
    notes = storm(lambda: None, text_of(url), "wrong", 6, Plan(claims=20, groups=2))
    assert faults(notes) or wrong_states(url)
