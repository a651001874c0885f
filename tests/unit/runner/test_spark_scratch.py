"""The private folders for Spark's blocks: only the user reads them, and none outlives its driver for long."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.runner.spark.scratch import make_private_folder, remove_abandoned

HOLD = (
    "import sys; from pathlib import Path; from penstock.runner.spark.scratch import make_private_folder\n"
    "print(make_private_folder(Path(sys.argv[1])).path, flush=True); sys.stdin.read()"
)


def test_only_its_user_can_read_a_private_folder(tmp_path: Path) -> None:
    before = os.umask(0o000)
    try:
        folder = make_private_folder(tmp_path / "new")
    finally:
        os.umask(before)
    assert folder.path.stat().st_mode & 0o777 == 0o700
    folder.remove()
    assert list((tmp_path / "new").iterdir()) == []


def test_the_folder_of_a_killed_driver_is_removed_and_that_of_a_running_one_stays(tmp_path: Path) -> None:
    ours = make_private_folder(tmp_path)
    driver = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert driver.stdout is not None
    theirs = Path(driver.stdout.readline().strip())
    (theirs / "blockmgr-1").mkdir()
    (theirs / "blockmgr-1" / "shuffle_0").write_bytes(b"rows")
    assert remove_abandoned(tmp_path) == []
    driver.kill()
    driver.communicate(timeout=60)
    assert remove_abandoned(tmp_path) == [theirs]
    assert not theirs.exists()
    assert ours.path.exists()
    ours.remove()


def test_a_folder_without_a_lock_is_kept_for_an_hour(tmp_path: Path) -> None:
    young = tmp_path / "penstock-spark-young"
    young.mkdir()
    made = young.stat().st_mtime
    assert remove_abandoned(tmp_path, now=made + 3_500) == []
    assert remove_abandoned(tmp_path, now=made + 3_700) == [young]


def test_nothing_but_private_folders_is_removed(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "penstock-spark-file").write_text("")
    (tmp_path / "penstock-spark-link").symlink_to(tmp_path / "other")
    assert remove_abandoned(tmp_path, now=1e12) == []
    assert len(list(tmp_path.iterdir())) == 3


def test_a_folder_that_is_removed_before_it_is_locked_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock, removed = fcntl.flock, []

    def lock_after_another_driver(descriptor: int, how: int) -> None:
        # The other driver locks the file of the new folder first.
        if not removed:
            removed.append(None)
            removed[:] = remove_abandoned(tmp_path)
        lock(descriptor, how)

    monkeypatch.setattr(fcntl, "flock", lock_after_another_driver)
    folder = make_private_folder(tmp_path)
    assert len(removed) == 1
    assert folder.path.is_dir()
    assert folder.path not in removed
    folder.remove()
