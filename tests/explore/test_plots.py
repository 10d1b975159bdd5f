"""Pictures: what is drawn is what is there, and says so."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import matplotlib as mpl
import matplotlib.pyplot as plt
import pytest
from matplotlib.axes import Axes
from matplotlib.container import BarContainer

from qstore import Event, LocalQueueRepository, TransportRepository, View, open_view


@pytest.fixture(autouse=True)
def closed_figures() -> Iterator[None]:
    mpl.use("Agg")
    yield
    plt.close("all")


def bars(ax: Axes) -> dict[str, dict[str, int]]:
    """What is drawn: for each bar, the length of each state in it."""
    names = [label.get_text() for label in ax.get_yticklabels()]
    found: dict[str, dict[str, int]] = {name: {} for name in names}
    for container in ax.containers:
        assert isinstance(container, BarContainer)
        for name, patch in zip(names, container.patches, strict=True):
            if patch.get_width():
                found[name][str(container.get_label())] = round(patch.get_width())
    return found


def labels(ax: Axes) -> list[str]:
    return [text.get_text() for text in ax.texts]


def test_depth_has_a_bar_for_each_store_and_the_numbers_beside_it(view: View) -> None:
    ax = view.plot_depth()
    assert bars(ax) == {
        "transport": {"ready": 5, "in flight": 1, "parked": 1, "lapsed": 1},
        "localkv": {"live": 2, "expired": 1},
        "localqueue": {"ready": 2, "in flight": 1, "lapsed": 1},
    }
    assert labels(ax)[0] == "8: 5 ready, 1 in flight, 1 parked, 1 lapsed"
    assert ax.get_xlabel() == "rows"
    assert ax.get_title(loc="left")
    legend = ax.get_legend()
    assert legend is not None
    assert [each.get_text() for each in legend.get_texts()] == [
        "ready",
        "live",
        "in flight",
        "parked",
        "lapsed",
        "expired",
    ]


def test_ages_are_counted_in_ranges(view: View) -> None:
    ax = view.plot_age()
    assert bars(ax)["10 s to 1 min"] == {"ready": 2, "in flight": 1, "lapsed": 1}
    assert sum(sum(each.values()) for each in bars(ax).values()) == 4
    assert ax.get_xlabel() == "messages"


def test_the_deepest_groups_come_first(tmp_path: Path) -> None:
    with TransportRepository.open(tmp_path / "transport.sqlite") as transport, open_view(tmp_path) as view:
        transport.publish_many([(f"g{n}", Event(kind="k")) for n in range(30) for _ in range(n + 1)])
        transport.claim("w", 60)
        ax = view.plot_groups(most=3)
        assert bars(ax) == {"g29": {"ready": 30}, "g28": {"ready": 29}, "g27": {"ready": 28}}
        assert "the 3 deepest of 30 groups" in ax.get_title(loc="left")
        assert bars(view.plot_groups(most=50))["g0"] == {"in flight": 1}
        assert "(29 never)" in view.plot_age().get_title(loc="left")


def test_a_picture_of_nothing_says_so(tmp_path: Path) -> None:
    TransportRepository.open(tmp_path / "transport.sqlite").close()
    LocalQueueRepository.open(tmp_path).close()
    with open_view(tmp_path) as view:
        for ax in (view.plot_depth(), view.plot_age(), view.plot_groups()):
            assert "nothing here" in labels(ax)


def test_a_picture_is_drawn_where_the_caller_wants_it(view: View, tmp_path: Path) -> None:
    figure, axes = plt.subplots(3)
    drawn = [view.plot_depth(ax=axes[0]), view.plot_age(ax=axes[1]), view.plot_groups(ax=axes[2])]
    assert all(ax is given for ax, given in zip(drawn, axes, strict=True))
    figure.savefig(tmp_path / "all.png")
    assert (tmp_path / "all.png").stat().st_size > 10_000


def test_without_matplotlib_the_extra_is_named(tmp_path: Path) -> None:
    LocalQueueRepository.open(tmp_path).close()
    script = (
        "import sys; sys.modules['matplotlib'] = None; import qstore\n"
        f"try: qstore.open_view({str(tmp_path)!r}).plot_depth()\n"
        "except qstore.BackendUnsupported as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert "pip install 'qstore[notebook]'" in done.stdout
