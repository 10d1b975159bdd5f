"""What a process without threads does when it forks with a file open with turso. Each is run in one of its own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from qstore import BackendUnsupported, LocalKvRepository
from tests.concurrency.forks import in_child, waiting_child


def a_child_is_refused(directory: Path, end: str) -> None:
    """Whatever it tries: the parent's repository, and one of its own on the same file. Other files are its own."""
    with LocalKvRepository.open(directory, engine="turso") as kv:
        kv.put("k", b"before")

        def child() -> None:
            _refused(lambda: kv.get("k"))
            _refused(lambda: kv.put("k", b"child's"))
            _refused(lambda: LocalKvRepository.open(directory, engine="turso"))
            if end == "close":
                kv.close()

        in_child(child, end="exit" if end == "close" else end)
        assert kv.get("k") == b"before"
        kv.put("k", b"after")
    with LocalKvRepository.open(directory) as kv:  # the child has not kept the lock
        assert kv.get("k") == b"after"


def a_child_that_lives_on_keeps_nobody_out(directory: Path, end: str) -> None:
    """The guard's lock would be the child's too, for as long as it has the guard open."""
    kv = LocalKvRepository.open(directory, engine="turso")
    kv.put("k", b"before")
    let_go = waiting_child(lambda: None, end)
    kv.close()
    with LocalKvRepository.open(directory, engine="turso") as kv:
        kv.put("k", b"after")
        let_go()
        assert kv.get("k") == b"after"
        kv.put("k", b"last")
    with LocalKvRepository.open(directory) as kv:
        assert kv.get("k") == b"last"


def a_child_of_a_process_that_has_closed_it_opens_it(directory: Path, end: str) -> None:
    with LocalKvRepository.open(directory, engine="turso") as kv:
        kv.put("k", b"before")

    def child() -> None:
        with LocalKvRepository.open(directory, engine="turso") as kv:
            assert kv.get("k") == b"before"
            kv.put("k", b"child's")

    in_child(child, end=end)
    with LocalKvRepository.open(directory, engine="turso") as kv:
        assert kv.get("k") == b"child's"


def _refused(call: Callable[[], object]) -> None:
    try:
        call()
    except BackendUnsupported as error:
        said = str(error)
    else:
        said = "it was not refused"
    assert "fork" in said, said
