"""The record of the matrix of versions, and its page."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tools.matrix import __main__ as matrix
from tools.matrix.cells import CELLS, DATA_SOURCES
from tools.matrix.page import page

CELL = next(cell for cell in CELLS if cell.has_data_sources)


@pytest.fixture
def recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(matrix, "EVIDENCE", tmp_path / "versions.json")
    monkeypatch.setattr(matrix, "PAGE", tmp_path / "versions.md")

    def at(commit: str) -> matrix.Recorded:
        monkeypatch.setattr(matrix, "commit", lambda: commit)
        return matrix.Recorded()

    return at


def test_results_of_other_columns_keep_their_commit(recorded: Any, tmp_path: Path) -> None:
    first = recorded("a" * 40)
    first.start(CELL, CELL.columns)
    first.add(CELL, "kills", "passed")
    first.add(CELL, DATA_SOURCES, "1 failed")
    second = recorded("b" * 40)
    second.start(CELL, [DATA_SOURCES])
    second.add(CELL, DATA_SOURCES, "passed")
    found = json.loads((tmp_path / "versions.json").read_text())
    entry = found[CELL.name]
    assert entry["results"] == {"kills": "passed", DATA_SOURCES: "passed"}
    assert (entry["commit"], entry["commits"]) == ("a" * 40, {DATA_SOURCES: "b" * 40})
    (row,) = (line for line in page(found).splitlines() if "aaaaaaaaaa" in line)
    assert "| passed |" in row
    assert "| passed (bbbbbbbbbb) |" in row
    third = recorded("c" * 40)
    third.start(CELL, CELL.columns)
    third.add(CELL, "kills", "passed")
    assert json.loads((tmp_path / "versions.json").read_text())[CELL.name]["commit"] == "c" * 40
