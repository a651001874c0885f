"""The timeline: one line for each phase that a record passes, and none unless it is asked for."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from penstock import timeline


def test_without_the_variable_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timeline, "_path", None)
    timeline.trace("received", commits=[1])
    assert not list(tmp_path.iterdir())


def test_each_mark_is_a_line_with_the_records_and_the_phase(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timeline, "_path", str(tmp_path / "timeline"))
    monkeypatch.setattr(timeline, "_descriptor", None)
    timeline.trace("received", commits=[1, 2])
    timeline.trace("committed", epoch=3)
    lines = [json.loads(line) for line in (tmp_path / "timeline").read_text().splitlines()]
    assert [{**line, "at": 0} for line in lines] == [
        {"phase": "received", "at": 0, "commits": [1, 2]},
        {"phase": "committed", "at": 0, "epoch": 3},
    ]
    assert lines[0]["at"] <= lines[1]["at"]
