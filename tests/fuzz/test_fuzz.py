"""The short form: every target is tried a few times. The long one is a command: `python -m tests.fuzz`."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.concurrency.histories import HISTORIES, HISTORY
from tests.fuzz.guided import Guide
from tests.fuzz.hunting import hunt
from tests.fuzz.targets import TARGETS, Target

SEED = os.environ.get(HISTORY, "1")
TRIES = int(os.environ.get(HISTORIES, "25"))


@pytest.mark.parametrize("target", TARGETS)
def test_what_came_to_harm_is_taken_or_refused_by_name_and_left_as_it_was(target: str) -> None:
    came = hunt(target, SEED, tries=TRIES)
    assert came.found == []
    assert came.tried >= TRIES
    assert came.lines > 10


def test_inputs_that_reach_new_lines_are_kept_and_what_goes_wrong_is_found(tmp_path: Path) -> None:
    def run(given: bytes, _: Path) -> None:
        from qstore.payload import decode_json

        decode_json(1, given)

    guide = Guide(Target(lambda _: [b"1"], run), tmp_path, "1")
    assert (len(guide.corpus), guide.found) == (1, [])
    guide.attempt(b"2")
    assert len(guide.corpus) == 1, "it reached nothing new"
    guide.attempt(b"{")
    assert guide.corpus == [b"1", b"{"]
    [found] = guide.found
    assert found.given == b"{"
    assert found.what.startswith("UndecodablePayload")


def test_a_process_that_ends_before_its_time_is_found() -> None:
    came = hunt("no such target", "1", tries=1)
    assert came.found
    assert came.found[0].what.startswith("crashed or hung")
