"""The example notebook runs from top to bottom, in a kernel, and shows what it says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

NOTEBOOK = Path(__file__).parents[2] / "examples" / "explore.ipynb"


# What the kernel's own libraries say of themselves is not the example's.
@pytest.mark.filterwarnings("default")
def test_the_example_notebook_runs_from_top_to_bottom(tmp_path: Path) -> None:
    notebook = nbformat.read(NOTEBOOK, as_version=4)  # type: ignore[no-untyped-call]  # the library has no types
    assert all(not cell.get("outputs") for cell in notebook.cells)
    NotebookClient(notebook, timeout=60, resources={"metadata": {"path": str(tmp_path)}}).execute()
    outputs: list[Any] = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    assert not [each for each in outputs if each.output_type == "error" or each.get("name") == "stderr"], outputs
    texts = "\n".join(str(each.get("text", each.get("data", {}).get("text/plain", ""))) for each in outputs)
    for state in ("in flight", "is parked", "worker-that-died", "is ready", "is absent", "is live"):
        assert state in texts
    assert sum("image/png" in each.get("data", {}) for each in outputs) == 3
    tables = [each.data["text/html"] for each in outputs if "text/html" in each.get("data", {})]
    assert any("View of " in table for table in tables)
    assert list(tmp_path.iterdir()) == []
