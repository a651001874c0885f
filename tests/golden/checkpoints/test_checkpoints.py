"""Checkpoints that released versions have made are resumed by this one."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from penstock.attempt import Attempt
from penstock.io.staging.local import LocalStore
from penstock.io.staging.parked_files import ParkedFiles, files_of
from penstock.runner.protocol.record_codec import (
    FORMAT,
    PARKED_FORMAT,
    SIDE_FORMAT,
    decode_record,
    encode_record,
)
from penstock.runner.store import Checkpoint
from tests.golden.checkpoints.parked import DRIVERS, EVENTS, JOB, NOT_PARKED, SINK, record_with
from tests.golden.checkpoints.record import FOLDER, run

PARKED = sorted(path.name for path in FOLDER.iterdir() if path.name.endswith("-parked"))
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


@pytest.mark.parametrize("release", PARKED)
def test_a_record_with_parked_tables_is_read_and_written_byte_for_byte_and_so_are_their_changes(
    release: str,
) -> None:
    data = (FOLDER / release / "record").read_bytes()
    found = decode_record(data)
    assert encode_record(found) == data
    ((parked,),) = ((each.table for each in found.state.parked),)
    assert found == record_with(parked, release.removesuffix("-parked"))
    assert (parked.name, parked.reason, parked.changes) == (NOT_PARKED.name, NOT_PARKED.reason, len(EVENTS))
    (file,) = files_of(parked)
    files = ParkedFiles(LocalStore(str(FOLDER / release / "output")), SINK)
    (epochs,) = files.read(parked, file, Attempt(JOB, 1, 9, "nonce", DRIVERS))
    assert [each.delivery.epoch for each in epochs.epochs] == [3, 4]
    assert epochs.events == EVENTS


def test_every_format_of_a_record_has_a_golden_one() -> None:
    records = [path for path in FOLDER.rglob("*") if path.suffix == ".record" or path.name == "record"]
    found = {int(path.read_bytes().split(b" ", 2)[1]) for path in records if path.is_file()}
    assert found == {FORMAT, SIDE_FORMAT, PARKED_FORMAT}
