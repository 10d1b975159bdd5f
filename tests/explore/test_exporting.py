"""`export` and `import`: every row there and back, also when it was interrupted."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from qstore import InvalidInput, LocalQueueRepository, TransportRepository
from qstore.exporting import export, import_
from tests.command import lines
from tests.integration.copied_stores import fill, new_server, rows


def test_there_and_back_by_way_of_a_server(tmp_path: Path) -> None:
    fill(str(tmp_path / "data"))
    counted = lines("export", "data", "all.jsonl", cwd=tmp_path)[0]
    server = new_server()
    assert lines("import", "all.jsonl", server, cwd=tmp_path) == [counted]
    assert lines("export", server, "again.jsonl", cwd=tmp_path) == [counted]
    assert import_(str(tmp_path / "again.jsonl"), str(tmp_path / "back") + "/") == counted
    assert rows(str(tmp_path / "back")) == rows(str(tmp_path / "data"))
    assert sorted(each.name for each in tmp_path.iterdir()) == ["again.jsonl", "all.jsonl", "back", "data"]


def test_ids_go_on_after_the_highest_that_was_ever_given(tmp_path: Path) -> None:
    with LocalQueueRepository.open(tmp_path / "data") as queue:
        queue.send_many(["a", "b", "c"])
        queue.purge()
    export(str(tmp_path / "data"), str(tmp_path / "out"))
    import_(str(tmp_path / "out"), str(tmp_path / "back") + "/")
    with LocalQueueRepository.open(tmp_path / "back") as queue:
        assert queue.send("d") == 4


def test_an_export_that_was_cut_anywhere_goes_on_to_the_same_file(tmp_path: Path) -> None:
    fill(str(tmp_path / "data"))
    whole = tmp_path / "whole"
    export(str(tmp_path / "data"), str(whole))
    content = whole.read_bytes()
    for size in {0, 10, len(content) // 3, len(content) // 2, len(content) - 1, content.index(b"\n") + 1, len(content)}:
        cut = tmp_path / "cut"
        cut.write_bytes(content[:size])
        export(str(tmp_path / "data"), str(cut))
        assert cut.read_bytes() == content, size


def test_a_file_of_something_else_is_refused_and_left_as_it_was(tmp_path: Path) -> None:
    LocalQueueRepository.open(tmp_path).close()
    TransportRepository.open(tmp_path / "other.sqlite").close()
    file = tmp_path / "file"
    export(str(tmp_path / "other.sqlite"), str(file))
    before = file.read_bytes()
    with pytest.raises(InvalidInput, match="unfinished export of the same stores"):
        export(str(tmp_path / "localqueue.sqlite"), str(file))
    assert file.read_bytes() == before


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "another first line"),
        ("{}\n", "another first line"),
        ('{"stores": ["kafka"]}\n', "another first line"),
        (
            '{"stores": ["localkv"]}\n{"store": "localqueue", "table": "messages", "row": {}}\n',
            "expected rows of localkv",
        ),
        ('{"stores": ["localkv"]}\n[1]\n', "a JSON object in line 2"),
    ],
)
def test_a_file_that_no_export_wrote_makes_nothing(content: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text(content)
    with pytest.raises(InvalidInput, match=said):
        import_(str(tmp_path / "file"), str(tmp_path / "new") + "/")
    assert [each.name for each in tmp_path.iterdir()] == ["file"]


def test_what_is_not_text_is_kept_byte_for_byte(tmp_path: Path) -> None:
    data = tmp_path / "data"
    LocalQueueRepository.open(data).close()
    with closing(sqlite3.connect(data / "localqueue.sqlite")) as other:
        other.execute("INSERT INTO messages VALUES (7, 'text', 'é\n\"', 1, 2, 3, NULL)")
        other.commit()
    export(str(data), str(tmp_path / "out"))
    read = [json.loads(line) for line in (tmp_path / "out").read_text().splitlines()]
    assert read[-1]["row"]["payload_data"] == 'é\n"'
    import_(str(tmp_path / "out"), str(tmp_path / "back") + "/")
    assert rows(str(tmp_path / "back")) == rows(str(data))


WRONG = {
    "not UTF-8": b'{"store": "localqueue", "table": "messages", "row": {"id": 1, "payload_data": "\xff"}}',
    "not an object": b"[]",
    "deep": b"[" * 100_000,
    "another store": b'{"store": ["localqueue"], "table": "messages", "row": {}}',
    "another column": b'{"store": "localqueue", "table": "messages", "row": {"id": 1, "color": "red"}}',
    "no row": b'{"store": "localqueue", "table": "messages", "row": null}',
    "a highest id that is no number": b'{"store": "localqueue", "table": "messages", "highest": "many"}',
}


@pytest.mark.parametrize("wrong", WRONG)
def test_a_line_that_export_does_not_write_is_refused_by_name_and_nothing_is_made(tmp_path: Path, wrong: str) -> None:
    LocalQueueRepository.open(tmp_path / "data").close()
    file = tmp_path / "file"
    export(str(tmp_path / "data"), str(file))
    file.write_bytes(file.read_bytes() + WRONG[wrong] + b"\n")
    with pytest.raises(InvalidInput):
        import_(str(file), str(tmp_path / "back") + "/")
    assert not (tmp_path / "back").exists()


@pytest.mark.parametrize("value", ['{"base64": "é"}', '{"base64": 1}', "{}", "[1]", str(2**70)])
def test_a_value_that_no_row_has_is_refused_by_name(tmp_path: Path, value: str) -> None:
    with LocalQueueRepository.open(tmp_path / "data") as queue:
        queue.send("payload")
    file = tmp_path / "file"
    export(str(tmp_path / "data"), str(file))
    file.write_text(file.read_text(encoding="utf-8").replace('"payload"', value), encoding="utf-8")
    with pytest.raises(InvalidInput):
        import_(str(file), str(tmp_path / "back") + "/")
    assert not (tmp_path / "back").exists()
