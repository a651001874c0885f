"""A checkpoint and its copy with one output: only the one that wrote last goes on, and it knows at once."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from penstock.io.staging.errors import OutputTakenError
from penstock.io.staging.publish import PublishFilesFn
from penstock.io.staging.store import store_of
from penstock.runner.driver.claims import OutputClaims
from penstock.runner.protocol import Coordinator, EpochState, SupersededError
from penstock.runner.store import Checkpoint

EVERY = 4


class Driver:
    """A driver without data: it commits, and claims the output as the job does."""

    def __init__(self, home: Path, name: str) -> None:
        self.coordinator = Coordinator(Checkpoint.open(str(home / name)))
        self.coordinator.take_over()
        sink = PublishFilesFn(store_of(home / "output"), "sink")
        self.claims = OutputClaims([sink], self.coordinator, Checkpoint.open(str(home / name)).job, EVERY)
        self.claims.claim()

    def commit(self, epochs: int) -> None:
        for _ in range(epochs):
            self.claims.committed(self.coordinator.commit(self.coordinator.begin(), EpochState()))


def copy(home: Path, source: str, target: str) -> None:
    shutil.copytree(home / source, home / target)


def test_a_driver_and_its_successors_claim_their_output_again_and_again(tmp_path):
    for epochs in (0, 3, 40, 1):
        driver = Driver(tmp_path, "original")
        driver.commit(epochs)
        driver.coordinator.sweep()
    marks = list((tmp_path / "output" / ".penstock-staging").rglob("n*_*"))
    assert len(marks) == 1


def test_a_running_original_stops_before_it_deletes_when_its_copy_was_started(tmp_path):
    original = Driver(tmp_path, "original")
    original.commit(2)
    copy(tmp_path, "original", "copy")
    original.commit(1)
    Driver(tmp_path, "copy")
    with pytest.raises(OutputTakenError, match="another checkpoint of job .* probably a copy of this one"):
        original.commit(EVERY)
    assert not OutputTakenError.retryable


def test_the_original_is_refused_after_its_copy_went_on_and_was_dropped(tmp_path):
    Driver(tmp_path, "original").commit(6)
    copy(tmp_path, "original", "copy")
    Driver(tmp_path, "copy").commit(EVERY)
    shutil.rmtree(tmp_path / "copy")
    with pytest.raises(OutputTakenError, match="Only the checkpoint that wrote last may continue"):
        Driver(tmp_path, "original")


def test_a_copy_that_is_older_than_the_output_is_refused(tmp_path):
    original = Driver(tmp_path, "original")
    original.commit(1)
    copy(tmp_path, "original", "copy")
    original.commit(3 * EVERY)
    with pytest.raises(OutputTakenError):
        Driver(tmp_path, "copy")


def test_a_newer_driver_of_the_same_checkpoint_is_no_other_checkpoint(tmp_path):
    older = Driver(tmp_path, "original")
    older.commit(1)
    Driver(tmp_path, "original").commit(EVERY)
    with pytest.raises(SupersededError):
        older.claims.claim()


def test_a_sink_that_was_left_out_for_long_is_claimed_again(tmp_path):
    driver = Driver(tmp_path, "original")
    without = Coordinator(Checkpoint.open(str(tmp_path / "original")))
    without.take_over()
    for _ in range(30):
        without.commit(without.begin(), EpochState())
    without.sweep()
    assert driver.coordinator.digest_of(1) is None
    Driver(tmp_path, "original").commit(EVERY)
