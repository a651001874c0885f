"""Copies of state runs on a worker's disk: never wrong, never required, never readable for others."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from penstock.runner.protocol.errors import CheckpointError
from penstock.runner.protocol.names import RunName
from penstock.runner.store.local_copies import LocalCopies
from penstock.runner.store.object_filesystem import ObjectFileSystem
from penstock.runner.store.runs import RunCache
from penstock.runner.store.state import StateStore
from tests.support.object_stores.simulated import SimulatedClock, SimulatedRequests, store_of

URL = "s3://bucket/prefix"
PATH = f"{URL}/state/0000000001-0000000002-n-00000000-00000-00001.run"


def copies(tmp_path: Path, url: str = URL, limit_bytes: int = 1 << 20) -> LocalCopies:
    return LocalCopies(url, str(tmp_path), limit_bytes)


def test_a_copy_is_found_by_the_other_processes_of_the_machine(tmp_path):
    assert copies(tmp_path).find(PATH) is None
    local = copies(tmp_path).keep(PATH, b"run")
    assert local == copies(tmp_path).find(PATH)
    assert Path(local).read_bytes() == b"run"
    assert copies(tmp_path, "s3://bucket/other").find(PATH) is None


def test_only_the_user_can_read_or_change_the_copies(tmp_path):
    local = copies(tmp_path).keep(PATH, b"run")
    folders = [Path(local).parent, Path(local).parent.parent]
    assert [stat.S_IMODE(folder.stat().st_mode) for folder in folders] == [0o700, 0o700]


def test_a_folder_that_others_may_change_is_not_used(tmp_path):
    folder = tmp_path / f"penstock-runs-{os.getuid()}"
    folder.mkdir()
    folder.chmod(0o777)
    assert copies(tmp_path).keep(PATH, b"run") is None
    assert list(folder.iterdir()) == []


def test_a_full_disk_only_means_that_there_is_no_copy(tmp_path, monkeypatch):
    def full(source: str, target: str) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    kept = copies(tmp_path)
    assert kept.keep(PATH, b"run") is None
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_the_oldest_copies_are_deleted_beyond_the_limit(tmp_path):
    kept = copies(tmp_path, limit_bytes=250)
    for number in range(4):
        local = kept.keep(f"{URL}/state/{number}", bytes(100))
        os.utime(local, (number, number))
    assert [kept.find(f"{URL}/state/{number}") is not None for number in range(4)] == [
        False,
        False,
        True,
        True,
    ]


def test_copies_of_dead_runs_are_deleted_and_those_of_living_ones_stay(tmp_path):
    kept = copies(tmp_path)
    names = [RunName(1, epoch, "n", "stage").file_name(0, 1) for epoch in (2, 3, 9)]
    for name in names:
        kept.keep(f"{URL}/state/{name}", b"run")
    kept.forget_dead({names[1]}, before=(1, 5))
    assert [kept.find(f"{URL}/state/{name}") is not None for name in names] == [False, True, True]


@pytest.fixture
def requests() -> SimulatedRequests:
    return SimulatedRequests()


@pytest.fixture
def files(tmp_path: Path, requests: SimulatedRequests) -> ObjectFileSystem:
    return ObjectFileSystem(store_of(requests, SimulatedClock()), copies(tmp_path))


def test_a_damaged_copy_is_replaced_by_the_object(files, requests):
    state = StateStore.open(files, f"{URL}/state", (), 0, 1, cache=RunCache())
    state.put(0, b"key", b"value")
    runs = state.seal(RunName(1, 2, "n", "stage"))
    path = f"{URL}/state/{runs[0].name}"
    Path(files.local_path(path)).write_bytes(b"half")
    assert StateStore.open(files, f"{URL}/state", runs, 0, 1, cache=RunCache()).get(0, b"key") == b"value"
    requests.objects[f"state/{runs[0].name}"] = b"damaged"
    files.discard_copy(path)
    with pytest.raises(CheckpointError, match="is damaged"):
        StateStore.open(files, f"{URL}/state", runs, 0, 1, cache=RunCache()).get(0, b"key")


def test_a_name_that_was_written_with_other_content_is_refused(files):
    files.write(f"{URL}/state/run", b"a")
    with pytest.raises(FileExistsError):
        files.write(f"{URL}/state/run", b"b")


def test_a_large_run_goes_to_the_store_from_a_scratch_file(tmp_path, files, requests, monkeypatch):
    monkeypatch.setattr("penstock.runner.store.state.LARGE_BYTES", 0)
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(tmp_path))
    state = StateStore.open(files, f"{URL}/state", (), 0, 1, cache=RunCache())
    state.put(0, b"key", b"value" * 1000)
    runs = state.seal(RunName(1, 2, "n", "Count"))
    elsewhere = ObjectFileSystem(store_of(requests, SimulatedClock()))
    again = StateStore.open(elsewhere, f"{URL}/state", runs, 0, 1, cache=RunCache())
    assert again.get(0, b"key") == b"value" * 1000
    assert list(tmp_path.glob("penstock-*.run")) == []
