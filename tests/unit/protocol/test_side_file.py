"""Side files: a record with long lists stays small, names only files that exist, and leaves none behind."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from penstock.runner.protocol import (
    CheckpointError,
    EarliestTimers,
    EpochState,
    Publication,
    Residual,
    StateRun,
    WatermarkKey,
)
from penstock.runner.protocol.names import side_file_name
from penstock.runner.protocol.record_codec import decode_record, encode_record, record_digest
from penstock.runner.store import Checkpoint, LocalFileSystem

LARGE = EpochState(
    residuals=tuple(Residual("Read", f"1.{n}", b"%08d" % n * 30, n, 2 * n) for n in range(2_000)),
    publications=(Publication("Write/Publish", os.urandom(300_000)),),
    state_runs=(
        StateRun("Count", "0000000001-0000000002-ab-0123456789abcdef-00000-00063.run", 0, 63, 5, 8, 7),
    ),
    timers=(EarliestTimers("Count", 0, 63, event_us=None, processing_us=5, hold_us=4),),
    watermarks={WatermarkKey.output("Count"): 3},
    metrics=(b"\x0a\xff",),
    ended=(Residual("Read", "0.1", b"\x01", 30, 0),),
)


def sides(folder: str) -> list[str]:
    return LocalFileSystem().list(f"{folder}/side")


def commit(coordinator, state=LARGE):
    return coordinator.commit(coordinator.begin(), state)


def test_a_record_with_long_lists_is_small_and_comes_back_whole(driver, folder):
    first = driver("first")
    first.take_over()
    record = commit(first)
    assert len(Checkpoint.open(folder).read_record(2)) < 2_000
    assert Checkpoint.open(folder).last_record() == record
    assert record.state == LARGE


def test_a_record_that_fits_has_no_side_file(driver, folder):
    first = driver("first")
    first.take_over()
    assert commit(first, replace(LARGE, residuals=LARGE.residuals[:100])).side_file is None
    assert sides(folder) == []


def test_a_record_too_large_even_without_its_lists_is_refused(driver, folder):
    first = driver("first")
    first.take_over()
    marks = {WatermarkKey.output(f"step {n:060d}"): n for n in range(15_000)}
    with pytest.raises(
        CheckpointError, match=r"record 2 would have 1,\d+,\d+ bytes, and at most 1,048,576 are"
    ):
        commit(first, EpochState(watermarks=marks))
    assert Checkpoint.open(folder).record_numbers() == [1]


def test_a_take_over_names_the_same_side_file(driver, folder):
    first = driver("first")
    first.take_over()
    last = commit(first)
    record = driver("second").take_over()
    assert (record.state, record.side_file) == (last.state, last.side_file)
    assert len(sides(folder)) == 1


def test_a_side_file_is_deleted_as_soon_as_its_record_is_replaced(driver, folder):
    first = driver("first")
    first.take_over()
    commit(first)
    record = commit(first)
    assert sides(folder) == [record.side_file.name]
    commit(first, EpochState())
    assert sides(folder) == []


class Killed(BaseException):
    """The driver ends."""


def test_a_side_file_without_a_record_is_deleted_by_the_next_driver(driver, folder):
    class DiesBeforeItsRecord(LocalFileSystem):
        def create_if_absent(self, path, data):
            raise Killed

    first = driver("first")
    first.take_over()
    first._store = replace(first._store, filesystem=DiesBeforeItsRecord())
    with pytest.raises(Killed):
        commit(first)
    assert len(sides(folder)) == 1
    second = driver("second")
    second.take_over()
    assert second.sweep().side_files == 1
    assert sides(folder) == []


def test_a_sweep_keeps_the_side_file_of_the_last_record_and_those_of_newer_drivers(driver, folder):
    old = driver("old")
    old.take_over()
    commit(old)
    driver("new").take_over()
    in_flight = side_file_name(3, 4, "ab")
    for name in (in_flight, "notes.txt"):
        LocalFileSystem().write(f"{folder}/side/{name}", b"not of the old driver")
    assert old.sweep().side_files == 0
    assert sides(folder) == [old.record.side_file.name, in_flight, "notes.txt"]


def test_a_missing_side_file_of_the_last_record_is_an_error(driver, folder):
    first = driver("first")
    first.take_over()
    record = commit(first)
    Path(folder, "side", record.side_file.name).unlink()
    with pytest.raises(
        CheckpointError, match=r"the side file .* of record 2 is missing. Restore the checkpoint"
    ):
        Checkpoint.open(folder).last_record()


def test_a_side_file_that_was_deleted_because_its_record_was_replaced_is_not_missed(driver, folder):
    first = driver("first")
    first.take_over()
    commit(first)

    class CommitsInBetween(LocalFileSystem):
        def read(self, path):
            if path.endswith(".side") and first.record.number == 2:
                commit(first, EpochState())
            return super().read(path)

    reader = replace(Checkpoint.open(folder), filesystem=CommitsInBetween())
    assert reader.last_record().number == 3


@pytest.mark.parametrize(
    "damage", [lambda data: data[:-1], lambda data: data.replace(b"residuals", b"residualz", 1)]
)
def test_a_damaged_side_file_is_refused(driver, folder, damage):
    first = driver("first")
    first.take_over()
    path = Path(folder, "side", commit(first).side_file.name)
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(
        CheckpointError, match=r"\.side is damaged: it has \d+ bytes, and record 2 names others"
    ):
        Checkpoint.open(folder).last_record()


def test_a_large_record_of_an_older_version_gets_a_side_file_at_the_take_over(driver, folder):
    first = driver("first")
    record = first.take_over()
    inline = encode_record(
        replace(record, number=2, parent=record_digest(encode_record(record)), state=LARGE)
    )
    assert decode_record(inline).state == LARGE
    Checkpoint.open(folder).create_record(2, inline)
    assert driver("second").take_over().state == LARGE
    assert len(sides(folder)) == 1


def test_only_the_first_sweep_of_a_driver_without_large_state_lists_the_side_files(driver, folder):
    listed = []

    class Watched(LocalFileSystem):
        def list(self, folder):
            listed.append(folder.rpartition("/")[2])
            return super().list(folder)

    first = driver("first", replace(Checkpoint.open(folder), filesystem=Watched()))
    first.take_over()
    for state in (EpochState(), EpochState(), LARGE, EpochState(), EpochState()):
        commit(first, state)
        listed.append("sweep")
        first.sweep()
    sweeps = " ".join(listed).split("sweep")[1:]
    assert ["side" in sweep.split() for sweep in sweeps] == [True, False, True, True, False]
