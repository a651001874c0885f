"""The checkpoint folder: made, resumed, refused."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from penstock import __version__
from penstock.runner.protocol import CheckpointError, Coordinator
from penstock.runner.protocol.record import StateRun
from penstock.runner.store import Checkpoint, LocalFileSystem

NOON_US = 1_700_000_000_000_000  # 2023-11-14 22:13:20 UTC


def test_a_new_folder_becomes_a_private_checkpoint_with_a_new_job(tmp_path):
    folder = f"{tmp_path}/a/checkpoint"
    checkpoint = Checkpoint.open(folder, fresh=True, clock=lambda: NOON_US, nonces=lambda: "0123abcd")
    assert checkpoint.job == "20231114T221320-0123abcd"
    assert checkpoint.key_groups == 128
    assert checkpoint.last_record() is None
    assert os.stat(folder).st_mode & 0o777 == 0o700


def test_an_existing_checkpoint_is_resumed_as_it_is(tmp_path):
    made = Checkpoint.open(str(tmp_path), key_groups=16)
    Coordinator(made).take_over()
    again = Checkpoint.open(str(tmp_path))
    assert again == made
    assert again.last_record().number == 1


def test_job_names_sort_by_the_time_of_their_creation(tmp_path):
    early = Checkpoint.open(f"{tmp_path}/a", clock=lambda: NOON_US).job
    late = Checkpoint.open(f"{tmp_path}/b", clock=lambda: NOON_US + 10**6).job
    assert early < late


def test_fresh_refuses_a_folder_that_is_not_empty(tmp_path):
    Checkpoint.open(str(tmp_path), fresh=True)
    with pytest.raises(
        CheckpointError, match=r"is not empty, and --fresh never overwrites. Leave --fresh out"
    ):
        Checkpoint.open(str(tmp_path), fresh=True)


def test_a_folder_with_other_content_is_refused_and_not_changed(tmp_path):
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(
        CheckpointError, match=r"is not a checkpoint: it contains 1 files or folders, but no FORMAT"
    ):
        Checkpoint.open(str(tmp_path))
    assert os.listdir(tmp_path) == ["thesis.txt"]


def test_a_folder_left_by_a_kill_before_the_format_file_counts_as_empty(tmp_path):
    (tmp_path / ".tmp-0123").write_bytes(b"half")
    assert Checkpoint.open(str(tmp_path), fresh=True).last_record() is None


@pytest.mark.parametrize(
    ("other", "way_out"),
    [
        (2, r"Drain the pipeline with penstock 0\.0\.9, then start it with another --checkpoint_dir"),
        (4, r"Install penstock 0\.0\.9 or a newer version"),
    ],
)
def test_an_older_or_newer_layout_is_refused_with_the_version_that_wrote_it(tmp_path, other, way_out):
    Checkpoint.open(str(tmp_path))
    path = tmp_path / "FORMAT"
    written = json.loads(path.read_text())["penstock-checkpoint"] | {"version": other, "written_by": "0.0.9"}
    path.write_text(json.dumps({"penstock-checkpoint": written}))
    message = rf"has layout version {other}, and penstock {__version__} reads version 3\. {way_out}"
    with pytest.raises(CheckpointError, match=message):
        Checkpoint.open(str(tmp_path))


@pytest.mark.parametrize("content", ["", "{}", "[]", '{"penstock-checkpoint": {"version": 1}}', "\x00"])
def test_a_format_file_that_we_did_not_write_is_refused(tmp_path, content):
    (tmp_path / "FORMAT").write_text(content)
    with pytest.raises(CheckpointError, match=r"FORMAT was not written by penstock"):
        Checkpoint.open(str(tmp_path))


def test_the_number_of_key_groups_cannot_change(tmp_path):
    Checkpoint.open(str(tmp_path), key_groups=16)
    assert Checkpoint.open(str(tmp_path), key_groups=16).key_groups == 16
    with pytest.raises(CheckpointError, match=r"created with 16 key groups, which cannot change to 32"):
        Checkpoint.open(str(tmp_path), key_groups=32)


@pytest.mark.parametrize("groups", [0, -1, 32769])
def test_an_impossible_number_of_key_groups_is_refused_and_nothing_is_created(tmp_path, groups):
    with pytest.raises(CheckpointError, match=r"a job has 1 to 32768"):
        Checkpoint.open(f"{tmp_path}/new", key_groups=groups)
    assert not Path(tmp_path, "new").exists()


def test_a_path_where_no_folder_can_be_created_is_refused_with_the_name_of_the_option(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(
        CheckpointError, match=r"cannot use .*file/checkpoint for checkpoints: .*Give --checkpoint_dir"
    ):
        Checkpoint.open(f"{tmp_path}/file/checkpoint")


def test_two_drivers_that_create_one_checkpoint_see_the_same_job(tmp_path):
    class Slow(LocalFileSystem):
        """Another driver makes the checkpoint between our look and our create."""

        def list(self, folder):
            names = super().list(folder)
            if not names:
                self.other = Checkpoint.open(folder)
            return names

    slow = Slow()
    assert Checkpoint.open(str(tmp_path), filesystem=slow).job == slow.other.job


def test_fresh_fails_if_another_driver_was_faster(tmp_path):
    class Slow(LocalFileSystem):
        """Another driver makes the checkpoint between our look and our create."""

        def list(self, folder):
            names = super().list(folder)
            self.looks = getattr(self, "looks", 0) + 1
            if self.looks == 2:
                Checkpoint.open(folder)
            return names

    with pytest.raises(CheckpointError, match=r"another driver has just created a checkpoint"):
        Checkpoint.open(str(tmp_path), filesystem=Slow(), fresh=True)


def test_the_last_record_is_the_highest_even_if_a_listed_one_was_deleted(tmp_path, monkeypatch):
    checkpoint = Checkpoint.open(str(tmp_path))
    old, new = Coordinator(checkpoint, writer="old"), Coordinator(checkpoint, writer="new", keep_records=1)
    old.take_over()
    numbers = Checkpoint.record_numbers

    def slow_listing(self):
        monkeypatch.setattr(Checkpoint, "record_numbers", numbers)
        listed = numbers(self)
        new.take_over(), new.sweep()
        return listed

    monkeypatch.setattr(Checkpoint, "record_numbers", slow_listing)
    assert checkpoint.last_record() == new.record


def test_a_damaged_last_record_is_refused_by_its_path(tmp_path):
    checkpoint = Checkpoint.open(str(tmp_path))
    Coordinator(checkpoint).take_over()
    path = tmp_path / "records" / "000000000001.record"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(
        CheckpointError, match=r"records/000000000001.record is damaged.*Do not delete the record"
    ):
        checkpoint.last_record()


def test_the_format_file_is_plain_json(tmp_path):
    Checkpoint.open(str(tmp_path), clock=lambda: NOON_US, nonces=lambda: "00000000")
    content = json.loads((tmp_path / "FORMAT").read_text())["penstock-checkpoint"]
    job = "20231114T221320-00000000"
    assert content == {
        "version": 3,
        "job": job,
        "key_groups": 128,
        "created_us": NOON_US,
        "written_by": __version__,
    }


def test_a_folder_that_disappeared_after_it_was_opened_is_not_created_again(tmp_path):
    folder = str(tmp_path / "checkpoint")
    checkpoint = Checkpoint.open(folder)
    Coordinator(checkpoint).take_over()
    os.rename(folder, folder + "-moved")
    with pytest.raises(CheckpointError, match=r"checkpoint no longer exists.* Put it back"):
        Coordinator(checkpoint).take_over()
    assert not os.path.exists(folder)


def written_run(checkpoint: Checkpoint, name: str = "0000000001-0000000002-a") -> StateRun:
    """Write a state run of three bytes and return its entry in a record."""
    checkpoint.filesystem.write(f"{checkpoint.state_folder}/{name}", b"abc")
    return StateRun("Count", name, 0, 127, entries=1, size=3, checksum=0)


def test_state_runs_that_are_there_in_full_pass_the_check_at_the_start(tmp_path):
    checkpoint = Checkpoint.open(str(tmp_path))
    checkpoint.check_runs([written_run(checkpoint)])
    checkpoint.check_runs([])


def test_a_missing_state_run_is_found_at_the_start_and_not_when_its_timer_fires(tmp_path):
    checkpoint = Checkpoint.open(str(tmp_path))
    run = written_run(checkpoint)
    os.unlink(f"{checkpoint.state_folder}/{run.name}")
    with pytest.raises(CheckpointError, match=r"of 'Count' is missing.*restore the checkpoint folder"):
        checkpoint.check_runs([run])


def test_a_state_run_that_was_cut_off_is_found_at_the_start(tmp_path):
    checkpoint = Checkpoint.open(str(tmp_path))
    run = written_run(checkpoint)
    os.truncate(f"{checkpoint.state_folder}/{run.name}", 2)
    with pytest.raises(CheckpointError, match=r"of 'Count' is damaged: 2 bytes instead of 3"):
        checkpoint.check_runs([run])


class LaggingFileSystem(LocalFileSystem):
    """A store whose listings cost much and do not show the newest records yet."""

    hidden = 0

    @property
    def lists_cheaply(self) -> bool:
        return False

    def list(self, folder: str) -> list[str]:
        return super().list(folder)[: -self.hidden or None]


def test_a_record_of_a_newer_driver_is_found_although_no_listing_shows_it_yet(tmp_path):
    files = LaggingFileSystem()
    checkpoint = Checkpoint.open(str(tmp_path), filesystem=files)
    Coordinator(checkpoint).take_over()
    known = checkpoint.last()
    Coordinator(checkpoint).take_over()
    files.hidden = 1
    assert checkpoint.record_numbers() == [1]
    assert checkpoint.record_above(1, known) == 2
