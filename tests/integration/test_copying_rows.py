"""Rows that `copy` meets: those that not every back end can hold, those that fit no group, and very large ones."""

from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path

import pytest

from qstore import Event, FormatError, LocalKvRepository, LocalQueueRepository, QstoreError, TransportRepository
from qstore.copying import copy
from tests.integration.copied_stores import new_server, opened, rows, run_on_file
from tests.integration.situations import ROOT

BAD_ROWS = {
    "invalid UTF-8 in a key": ("localkv", "INSERT INTO kv VALUES (CAST(x'ff61' AS TEXT), x'00', NULL)"),
    "a NUL in a key": ("localkv", "INSERT INTO kv VALUES ('a' || char(0) || 'b', x'00', NULL)"),
    "a key of bytes": ("localkv", "INSERT INTO kv VALUES (x'6162', x'00', NULL)"),
    "a key that is NULL": ("localkv", "INSERT INTO kv VALUES (NULL, x'00', NULL)"),
    "a value of text": ("localkv", "INSERT INTO kv VALUES ('k', 'text', NULL)"),
    "an expiry that is no number": ("localkv", "INSERT INTO kv VALUES ('k', x'00', 'soon')"),
    "invalid UTF-8 in a payload": (
        "localqueue",
        "INSERT INTO messages VALUES (1, 'text', CAST(x'ff' AS TEXT), 1, 1, 0, NULL)",
    ),
    "a NUL in a payload": ("localqueue", "INSERT INTO messages VALUES (1, 'text', char(0), 1, 1, 0, NULL)"),
    "an attempt beyond 32 bits": ("localqueue", "INSERT INTO messages VALUES (1, 'text', 'a', 1, 1, 9999999999, NULL)"),
    "invalid UTF-8 in an event": (
        "transport",
        "INSERT INTO messages VALUES (1, 'g', CAST(x'7bff7d' AS TEXT), NULL, NULL)",
    ),
    "a NUL in a group": ("transport", "INSERT INTO messages VALUES (1, 'g' || char(0), '{}', NULL, NULL)"),
}


@pytest.mark.parametrize("kind", BAD_ROWS)
def test_a_row_that_cannot_be_held_everywhere_is_named_and_the_source_is_as_it_was(kind: str, tmp_path: Path) -> None:
    store, bad = BAD_ROWS[kind]
    with opened(str(tmp_path)) as stores:
        stores.localkv.put("good", b"v")
    path = tmp_path / f"{store}.sqlite"
    run_on_file(path, bad)
    before = path.read_bytes()
    with pytest.raises(QstoreError, match=r"kv|messages") as caught:
        copy(path, new_server())
    assert isinstance(caught.value, FormatError)
    assert path.read_bytes() == before


def test_a_copy_that_met_a_bad_row_goes_on_when_the_row_is_mended(tmp_path: Path) -> None:
    path, server = tmp_path / "localqueue.sqlite", new_server()
    with LocalQueueRepository.open(tmp_path) as queue:
        queue.send_many([str(number) for number in range(1200)])
    run_on_file(path, "UPDATE messages SET payload_data = char(0) WHERE id = 1100")
    with pytest.raises(FormatError, match="1100"):
        copy(path, server)
    run_on_file(path, "UPDATE messages SET payload_data = 'mended' WHERE id = 1100")
    assert copy(path, server) == {"localqueue": 1200}
    assert rows(server) == rows(str(tmp_path))


def error_of(path: Path) -> str:
    """What a copy to a new server says; nothing if it succeeds."""
    try:
        copy(path, new_server())
    except FormatError as error:
        return str(error)
    return ""


def test_messages_whose_group_row_was_lost_are_copied_or_named_and_not_blamed_on_a_writer(tmp_path: Path) -> None:
    """An implementation of the seed that is killed between its two INSERTs leaves one."""
    with TransportRepository.open(tmp_path / "transport.sqlite") as transport:
        transport.publish("lost", Event(kind="k"))
    run_on_file(tmp_path / "transport.sqlite", "DELETE FROM groups")
    said = error_of(tmp_path)
    assert "changed since" not in said
    assert not said or "lost" in said


def test_groups_without_a_message_are_copied_or_named_and_not_blamed_on_a_writer(tmp_path: Path) -> None:
    with TransportRepository.open(tmp_path / "transport.sqlite") as transport:
        transport.publish("g", Event(kind="k"))
    run_on_file(tmp_path / "transport.sqlite", "INSERT INTO groups VALUES ('left', 5.0, 0)")
    said = error_of(tmp_path)
    assert "changed since" not in said
    assert not said or "left" in said


COPYING = "import sys; from qstore.copying import copy; copy(*sys.argv[1:])"


def test_values_of_a_few_megabytes_do_not_fill_the_memory(tmp_path: Path) -> None:
    """A batch is bounded in bytes: a thousand values may be of 16 MiB each."""
    with LocalKvRepository.open(tmp_path) as kv:
        for number in range(40):
            kv.put(f"k{number:02}", bytes([number]) * (4 << 20))

    def limited() -> None:
        resource.setrlimit(resource.RLIMIT_DATA, (320 << 20, 320 << 20))

    done = subprocess.run(
        [sys.executable, "-c", COPYING, str(tmp_path), new_server()],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=ROOT,
        check=False,
        preexec_fn=limited,
    )
    assert done.returncode == 0, done.stderr[-500:]
