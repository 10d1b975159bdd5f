"""The measuring itself: turns, ratios, verdicts, the table and the exit code. What is measured is another matter."""

from __future__ import annotations

import importlib
import json
import math
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.benchmarks import __main__ as command
from tests.benchmarks import filling, lines, measuring, peers
from tests.benchmarks.lines import Line, at_least, at_most
from tests.benchmarks.measuring import Contender, Scale

QUICK = Scale(quick=True)
FIGURES = {"ours": [20.0, 30.0, 10.0, 12.0], "raw": [10.0, 10.0, 10.0, 10.0]}
CHEAP = lines.plain("cheap", 3, "ms", at_most(5))
DEAR = lines.plain("dear", 7, "ms", at_most(5))
WISHED = lines.plain("wished for", 7, "ms", at_most(5, must=False))


def test_contenders_take_turns_round_by_round_and_the_first_round_does_not_count() -> None:
    done: list[str] = []
    figures = measuring.interleaved(
        {
            "ours": Contender(lambda times: done.append(f"ours {times}"), before=lambda _: done.append("before")),
            "raw": Contender(lambda times: done.append(f"raw {times}"), times=30),
        },
        QUICK,
        times=10,
    )
    assert done == ["before", "ours 10", "raw 30"] * (QUICK.rounds + 1)
    assert [len(each) for each in figures.values()] == [QUICK.rounds] * 2


class Hands:
    """A clock that goes on when it is told to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.at = 0.0
        for name in ("monotonic", "perf_counter"):
            monkeypatch.setattr(time, name, lambda: self.at)

    def forward(self, seconds: float) -> None:
        self.at += seconds


def test_no_round_begins_when_patience_is_over_but_the_least_ones_do(monkeypatch: pytest.MonkeyPatch) -> None:
    hands = Hands(monkeypatch)
    figures = measuring.interleaved({"ours": lambda _: hands.forward(60)}, QUICK, times=1)
    assert len(figures["ours"]) == measuring.LEAST_ROUNDS


def test_a_figure_is_the_microseconds_of_one_call_without_what_was_prepared(monkeypatch: pytest.MonkeyPatch) -> None:
    hands = Hands(monkeypatch)
    contender = Contender(lambda times: hands.forward(0.001 * times), before=lambda _: hands.forward(0.5))
    figures = measuring.interleaved({"ours": contender}, QUICK, times=10)
    assert figures["ours"] == pytest.approx([1000] * len(figures["ours"]))


def test_a_ratio_is_the_median_of_the_rounds_own_ratios() -> None:
    slower = lines.slower("a cycle", FIGURES, "ours", "raw")
    assert (slower.low, slower.value, slower.high) == (1.1, 1.6, 2.5)
    faster = lines.faster("a cycle", FIGURES, "raw", "ours")
    assert faster.value == 1.6


@pytest.mark.parametrize(
    ("limit", "verdict", "fails"),
    [
        (None, "", False),
        (at_most(3), "holds", False),
        (at_most(3, aim=1.7), "reaches the aim", False),
        (at_most(3, aim=1.5), "holds", False),
        (at_most(1.05), "FALLS SHORT", True),
        (at_most(1.05, must=False), "FALLS SHORT", False),
        (at_most(1.5), "FALLS SHORT, doubtful", True),
        (at_most(2), "holds, doubtful", False),
        (at_least(1), "holds", False),
        (at_least(1, aim=1.05), "reaches the aim", False),
        (at_least(5), "FALLS SHORT", True),
    ],
)
def test_a_verdict_tells_on_which_side_of_the_limit_the_ratio_is(
    limit: lines.Limit | None, verdict: str, fails: bool
) -> None:
    line = lines.slower("a cycle", FIGURES, "ours", "raw", limit)
    assert (line.verdict, line.fails) == (verdict, fails)


def test_a_yardstick_that_is_not_there_is_shown_and_a_figure_that_must_be_there_fails() -> None:
    absent = lines.missing("a cycle", "somequeue", "not installed")
    assert not absent.fails
    assert "somequeue" in lines.shown(absent)
    assert "not installed" in lines.shown(absent)
    failed = lines.missing("a section", "", "it broke", at_most(1))
    assert failed.fails
    assert failed.verdict == "NOT MEASURED"


def test_a_row_says_the_yardstick_the_ratio_the_limit_the_aim_and_the_verdict() -> None:
    row = lines.shown(lines.slower("a cycle", FIGURES, "ours", "raw", at_most(2, aim=1.2)))
    for part in ("a cycle", "16.0 µs", "1.60 x the time of raw (10.0 µs)", "≤ 2 *", "≤ 1.2", "holds, doubtful"):
        assert part in row


@pytest.fixture
def sections(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sections with lines that are known."""

    def raising(directory: Path, scale: Scale) -> Iterator[Line]:
        yield CHEAP
        raise ValueError("the disk is gone")

    made = {"good": [CHEAP, WISHED], "bad": [CHEAP, DEAR]}
    modules = {name: SimpleNamespace(__doc__=name, lines=lambda *_, each=each: each) for name, each in made.items()}
    modules["broken"] = SimpleNamespace(__doc__="broken", lines=raising)
    monkeypatch.setattr(command, "SECTIONS", dict.fromkeys(modules, "a line"))
    monkeypatch.setattr(command, "import_module", lambda name: modules[name.rpartition(".")[2]])


@pytest.mark.usefixtures("sections")
def test_the_command_fails_where_a_line_with_a_star_falls_short(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["good"]) == 0
    assert "falls short" not in capsys.readouterr().out
    assert command.main(["good", "bad", "--quick"]) == 1
    assert "falls short: bad: dear" in capsys.readouterr().out


@pytest.mark.usefixtures("sections")
def test_a_section_that_breaks_fails_the_run_and_leaves_the_others(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["broken", "good"]) == 1
    said = capsys.readouterr().out
    assert "ValueError: the disk is gone" in said
    assert "wished for" in said


@pytest.mark.usefixtures("sections")
def test_the_lines_are_written_as_json_too(tmp_path: Path) -> None:
    command.main(["--json", str(tmp_path / "told.json")])
    told = json.loads((tmp_path / "told.json").read_text(encoding="utf-8"))
    [cheap, dear] = told["sections"]["bad"]
    assert (cheap["value"], cheap["limit"]["bound"], cheap["verdict"]) == (3, 5, "holds")
    assert (dear["value"], dear["verdict"], dear["low"]) == (7, "FALLS SHORT", None)
    assert told["sections"]["broken"][-1]["verdict"] == "NOT MEASURED"


def test_a_section_that_is_not_there_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        command.main(["speed"])
    assert stopped.value.code == 2
    assert "no section speed: expected some of claim, cycle, kv" in capsys.readouterr().err


@pytest.mark.parametrize("section", command.SECTIONS)
def test_each_section_is_a_module_that_says_what_it_measures(section: str) -> None:
    module = importlib.import_module(f"tests.benchmarks.{command.MODULES.get(section, section)}")
    assert module.__doc__
    assert callable(module.lines)


def test_a_peer_that_is_not_installed_is_told_from_one_that_is() -> None:
    assert peers.named("sqlalchemy") is not None
    assert peers.named("no-such-queue-anywhere") is None


@pytest.mark.parametrize(("number", "said"), [(999, "999"), (1000, "1k"), (1500, "1,500"), (1_000_000, "1M")])
def test_large_numbers_are_said_briefly(number: int, said: str) -> None:
    assert measuring.short(number) == said


def test_a_store_filled_in_bulk_is_whole(tmp_path: Path) -> None:
    from qstore import LocalKvRepository, LocalQueueRepository, TransportRepository, migrate, open_engine

    transport = filling.filled_transport(tmp_path / "transport.sqlite", messages=90, groups=10, parked=10)
    queue = filling.filled_queue(tmp_path / "localqueue.sqlite", due=10, in_flight=10, lapsed=10)
    kv = filling.filled_kv(tmp_path / "localkv.sqlite", keys=10)
    for path in (transport, queue, kv):
        engine = open_engine(path)
        assert migrate.check(engine) == ()
        engine.dispose()
    with TransportRepository.open(transport) as opened:
        claimed = [opened.claim("worker", 60) for _ in range(11)]
    assert [lease and lease.group_id for lease in claimed] == [*(f"g{n}" for n in range(10)), None]
    with LocalQueueRepository.open(f"sqlite:///{queue}") as opened_queue:
        assert [message.attempt for message in opened_queue.receive(100)] == [2] * 10 + [1] * 10
    with LocalKvRepository.open(f"sqlite:///{kv}") as opened_kv:
        assert len(list(opened_kv.iter_prefix("k"))) == 10


def test_a_figure_that_is_not_there_is_no_number_in_json() -> None:
    told = lines.told(lines.missing("a cycle", "somequeue", "not installed"))
    assert told["value"] is None
    assert not any(isinstance(value, float) and math.isnan(value) for value in told.values())


def test_peers_that_are_not_installed_are_shown_as_such(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "named", lambda package: None)
    shown = [line for line in peers.lines(tmp_path, QUICK) if line.note.startswith("not installed")]
    assert {line.yardstick for line in shown} == {peer.package for peer in (*peers.QUEUES, *peers.KEY_VALUE)}
    assert not any(line.fails for line in shown)
