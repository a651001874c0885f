"""Take over, begin, commit, look, sweep: one driver, and two."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass, field, replace

import pytest

from penstock.runner.protocol import (
    CheckpointError,
    CommitUnknownError,
    Coordinator,
    EpochState,
    OutcomeUnknownError,
    Publication,
    RunName,
    StateRun,
    SupersededError,
)
from penstock.runner.protocol.record_codec import record_digest
from penstock.runner.store import Checkpoint, LocalFileSystem

PENDING = EpochState(publications=(Publication("Publish", b"file"),))


def commit(coordinator, state=PENDING):
    return coordinator.commit(coordinator.begin(), state)


@dataclass
class Flaky(LocalFileSystem):
    """A file system whose creates lose their answer: `answers` says what becomes of each."""

    answers: list[str] = field(default_factory=list)

    def create_if_absent(self, path, data):
        answer = self.answers.pop(0) if self.answers else "tell"
        created = answer != "nothing" and super().create_if_absent(path, data)
        if answer != "tell":
            raise OutcomeUnknownError
        return created


def test_the_first_driver_commits_an_empty_record(driver):
    record = driver("first").take_over()
    assert (record.number, record.generation, record.kind, record.epochs) == (1, 1, "initial", 0)
    assert record.state == EpochState()


def test_a_take_over_keeps_the_state_and_starts_a_new_generation(driver):
    first = driver("first")
    first.take_over()
    last = commit(first)
    record = driver("second").take_over()
    assert record.state == last.state
    assert (record.number, record.generation, record.kind, record.epochs) == (3, 3, "takeover", 1)


def test_every_record_names_the_digest_of_the_one_before(driver, folder):
    first = driver("first", keep_records=9)
    first.take_over(), commit(first), commit(first)
    checkpoint = Checkpoint.open(folder)
    assert checkpoint.last_record().parent == record_digest(checkpoint.read_record(2))


def test_an_attempt_names_job_generation_epoch_and_a_fresh_nonce(driver, folder):
    first = driver("first")
    first.take_over()
    one, two = first.begin(), first.begin()
    assert (one.job, one.generation, one.epoch) == (Checkpoint.open(folder).job, 1, 2)
    assert one.nonce != two.nonce


def test_nothing_can_begin_before_the_take_over(driver):
    with pytest.raises(RuntimeError, match=r"call take_over\(\) first"):
        driver("first").begin()


def test_an_attempt_of_another_epoch_cannot_be_committed(driver):
    first = driver("first")
    first.take_over()
    stale = first.begin()
    commit(first)
    with pytest.raises(ValueError, match=r"epoch 2 does not follow record 2"):
        first.commit(stale, PENDING)


def test_the_newer_driver_continues_and_the_older_one_stops(driver):
    old, new = driver("old"), driver("new")
    old.take_over()
    new.take_over()
    with pytest.raises(
        SupersededError, match=r"record 2 is by new, at 1970-01-01T00:00:01Z.*one driver at a time"
    ):
        commit(old)
    assert commit(new).number == 3


def test_a_driver_whose_folder_is_moved_away_stops_and_creates_no_second_folder(driver, folder):
    first = driver("first")
    first.take_over(), commit(first)
    os.rename(folder, folder + "-moved")
    for go_on in (lambda: commit(first), first.check_superseded):
        with pytest.raises(CheckpointError, match=r"no longer contains record 2.* Put it back"):
            go_on()
    assert not os.path.exists(folder)
    os.rename(folder + "-moved", folder)
    second = driver("second")
    assert second.take_over().state == first.record.state
    assert commit(second).number == 4


def test_an_idle_driver_detects_a_newer_driver_when_it_checks(driver):
    old, new = driver("old"), driver("new")
    old.take_over()
    old.check_superseded()
    new.take_over()
    with pytest.raises(SupersededError, match=r"record 2 is by new"):
        old.check_superseded()


def test_a_paused_driver_whose_record_number_was_swept_still_detects_the_newer_driver(driver, folder):
    old, new = driver("old"), driver("new", keep_records=1)
    old.take_over()
    paused = old.begin()
    new.take_over(), commit(new), new.sweep()
    assert Checkpoint.open(folder).record_numbers() == [3]
    with pytest.raises(SupersededError, match=r"record 3 is by new"):
        old.commit(paused, PENDING)
    assert new.record == Checkpoint.open(folder).last_record()


@pytest.mark.parametrize("answers", [["nothing"], ["done"], ["nothing", "done"], ["done", "done", "nothing"]])
def test_a_commit_without_an_answer_is_retried_until_its_outcome_is_known(driver, folder, answers):
    storage = Flaky()
    first = driver("first", Checkpoint.open(folder, filesystem=storage))
    first.take_over()
    storage.answers = list(answers)
    assert commit(first) == Checkpoint.open(folder).last_record()


def test_a_commit_that_never_gets_an_answer_stops_the_driver(driver, folder):
    storage, pauses = Flaky(), []
    first = driver("first", Checkpoint.open(folder, filesystem=storage), pause=pauses.append)
    first.take_over()
    storage.answers = ["nothing"] * 100
    with pytest.raises(CommitUnknownError, match=r"8 times, whether record 2 .* start the pipeline again"):
        commit(first)
    assert pauses == sorted(pauses)
    assert 20 < sum(pauses) < 30


def test_a_record_of_another_driver_after_a_lost_answer_is_not_mistaken_for_our_own(driver, folder):
    storage = Flaky()
    old = driver("old", Checkpoint.open(folder, filesystem=storage))
    old.take_over()
    attempt = old.begin()
    new = driver("new")
    storage.answers = ["nothing"]
    old._pause = lambda seconds: new.take_over()
    with pytest.raises(SupersededError, match=r"record 2 is by new"):
        old.commit(attempt, PENDING)


def a_run(folder, generation, epoch, nonce="aa"):
    """Write a state run's file and return how a record names it."""
    name = RunName(generation, epoch, nonce, "Count").file_name(0, 127)
    LocalFileSystem().write(f"{folder}/state/{name}", b"run")
    return StateRun("Count", name, 0, 127, 1, 3, 0)


def test_a_sweep_deletes_what_failed_attempts_left_and_keeps_what_the_record_names(driver, folder):
    first = driver("first")
    first.take_over()
    orphan, named, in_flight = a_run(folder, 1, 2), a_run(folder, 1, 2, "bb"), a_run(folder, 1, 3)
    commit(first, EpochState(state_runs=(named,)))
    swept = first.sweep()
    assert (swept.runs, swept.more) == (1, False)
    assert Checkpoint.open(folder).run_names() == [named.name, in_flight.name]
    assert orphan.name not in Checkpoint.open(folder).run_names()


def test_a_late_sweep_of_a_paused_driver_deletes_nothing_of_the_newer_driver(driver, folder):
    old = driver("old")
    old.take_over()
    carried = a_run(folder, 1, 2)
    commit(old, EpochState(state_runs=(carried,)))
    new = driver("new")
    new.take_over()
    newer = a_run(folder, 3, 4)
    commit(new, EpochState(state_runs=(carried, newer)))
    in_flight = a_run(folder, 3, 5)
    old.sweep()
    assert Checkpoint.open(folder).run_names() == [carried.name, newer.name, in_flight.name]
    assert Checkpoint.open(folder).last_record() == new.record


def test_a_sweep_keeps_the_newest_records(driver, folder):
    first = driver("first", keep_records=3)
    first.take_over()
    for _ in range(9):
        commit(first)
    assert first.sweep().records == 7
    assert Checkpoint.open(folder).record_numbers() == [8, 9, 10]


def test_a_sweep_deletes_the_lowest_records_first(driver, folder):
    deleted = []

    class Watched(LocalFileSystem):
        def delete(self, path):
            deleted.append(path[-8:])
            super().delete(path)

    first = driver("first", replace(Checkpoint.open(folder), filesystem=Watched()), keep_records=1)
    first.take_over()
    for _ in range(3):
        commit(first)
    first.sweep()
    assert deleted == ["1.record", "2.record", "3.record"]


def test_a_sweep_is_bounded_and_says_that_there_is_more(driver, folder):
    first = driver("first", keep_records=1)
    first.take_over()
    for epoch in range(2, 7):
        a_run(folder, 1, epoch)
        commit(first)
    first_sweep, second, third = first.sweep(limit=4), first.sweep(limit=4), first.sweep(limit=4)
    assert (first_sweep.runs, first_sweep.records, first_sweep.more) == (4, 0, True)
    assert (second.runs, second.records, second.more) == (1, 3, True)
    assert (third.runs, third.records, third.more) == (0, 2, False)


def test_unknown_files_in_the_state_folder_are_kept(driver, folder):
    first = driver("first")
    first.take_over()
    LocalFileSystem().write(f"{folder}/state/notes.txt", b"mine")
    assert first.sweep().runs == 0
    assert Checkpoint.open(folder).run_names() == ["notes.txt"]


def test_keeping_no_record_is_refused(driver):
    with pytest.raises(ValueError, match=r"the last record must always stay"):
        driver("first", keep_records=0)


def test_each_take_over_adds_a_driver_that_no_other_copy_has(driver, folder, tmp_path):
    first = driver("first")
    first.take_over()
    commit(first)
    copied = tmp_path / "copy"
    shutil.copytree(folder, copied)
    attempts = []
    for each in (folder, copied):
        second = Coordinator(Checkpoint.open(each), writer="second")
        second.take_over()
        attempts.append(second.begin())
    own, other = (each.drivers for each in attempts)
    assert [each.generation for each in own] == [each.generation for each in other] == [1, 3]
    assert own[0] == other[0]
    assert own[1] != other[1]


def test_a_record_names_the_last_sixteen_drivers(driver):
    drivers = [driver(f"{number}") for number in range(20)]
    for each in drivers:
        each.take_over()
    assert [each.generation for each in drivers[-1].begin().drivers] == list(range(5, 21))
