"""Checkpoints that released versions have made are resumed by this one."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from penstock.runner.store import Checkpoint
from tests.golden.checkpoints.record import FOLDER, run

RELEASES = sorted(path.name for path in FOLDER.iterdir() if (path / "expected.json").exists())


def test_there_is_a_checkpoint_of_this_form() -> None:
    assert RELEASES, "record one: python -m tests.golden.checkpoints.record VERSION"


@pytest.mark.parametrize("release", RELEASES)
def test_a_checkpoint_of_a_release_is_continued_to_the_same_output(release: str, tmp_path: Path) -> None:
    """What it publishes is what the version that made it published; nothing that was published before is repeated."""
    shutil.copytree(FOLDER / release / "checkpoint", tmp_path / "checkpoint")
    expected = json.loads((FOLDER / release / "expected.json").read_text())
    assert run(tmp_path) == expected["after"]


@pytest.mark.parametrize("release", RELEASES)
def test_the_checkpoint_of_a_release_holds_every_kind_of_content(release: str) -> None:
    found = Checkpoint.open(str(FOLDER / release / "checkpoint")).last_record()
    assert (found.side_file is not None) == release.endswith("-side-file")
    state = found.state
    assert state.residuals
    assert state.publications
    assert {run.stage for run in state.state_runs} >= {"Count", "Sum", "Session"}
    assert state.watermarks
