"""A view of stores that hold something of every state."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from qstore import View
from tests.backends import ManualClock
from tests.explore.looking import PLACES, filled, view_of


@pytest.fixture(params=PLACES)
def view(request: pytest.FixtureRequest, tmp_path: Path, clock: ManualClock) -> Iterator[View]:
    """On each kind of place, ten seconds after the stores were filled."""
    with filled(request.param, tmp_path, clock) as backend, view_of(request.param, backend, clock) as view:
        yield view
