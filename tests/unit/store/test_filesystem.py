"""The local file system: exclusive, whole, private, and clean after failures."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from penstock.runner.protocol import NotWrittenError, OutcomeUnknownError
from penstock.runner.store import LocalFileSystem, filesystem
from tests.support.waiting import join

FILES = LocalFileSystem()


def test_only_the_first_create_succeeds_and_the_content_stays(tmp_path):
    path = f"{tmp_path}/records/1"
    assert FILES.create_if_absent(path, b"first")
    assert not FILES.create_if_absent(path, b"second")
    assert FILES.read(path) == b"first"


def test_exactly_one_of_many_simultaneous_creates_succeeds(tmp_path):
    path, won = f"{tmp_path}/record", []
    gate = threading.Barrier(8)

    def create(name: bytes) -> None:
        gate.wait(60)
        if FILES.create_if_absent(path, name * 10_000):
            won.append(name)

    threads = [threading.Thread(target=create, args=(b"%d" % n,), daemon=True) for n in range(8)]
    for thread in threads:
        thread.start()
    join(*threads)
    assert len(won) == 1
    assert FILES.read(path) == won[0] * 10_000
    assert os.listdir(tmp_path) == ["record"]


def test_a_written_name_cannot_be_written_again(tmp_path):
    FILES.write(f"{tmp_path}/run", b"a")
    with pytest.raises(FileExistsError):
        FILES.write(f"{tmp_path}/run", b"b")
    assert FILES.read(f"{tmp_path}/run") == b"a"


def test_a_full_disk_leaves_nothing_half_written(tmp_path, monkeypatch):
    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    for call in (FILES.create_if_absent, FILES.write):
        with pytest.raises(
            NotWrittenError, match=rf"cannot write {tmp_path}.*: No space left.*\. Free space on that file"
        ):
            call(f"{tmp_path}/file", b"data")
    assert os.listdir(tmp_path) == []


def test_a_folder_that_cannot_be_synced_leaves_the_outcome_unknown_until_asked_again(tmp_path, monkeypatch):
    sync = filesystem._sync_folder
    answers = iter([OSError(5, "Input/output error"), None])

    def sync_folder(folder):
        if answer := next(answers):
            raise answer
        sync(folder)

    monkeypatch.setattr(filesystem, "_sync_folder", sync_folder)
    with pytest.raises(OutcomeUnknownError, match=r"Input/output error"):
        FILES.create_if_absent(f"{tmp_path}/record", b"mine")
    assert not FILES.create_if_absent(f"{tmp_path}/record", b"mine")
    assert FILES.read(f"{tmp_path}/record") == b"mine"


def test_a_link_whose_answer_was_lost_counts_as_created(tmp_path, monkeypatch):
    link = os.link

    def nfs_link(source, target):
        link(source, target)
        raise FileExistsError(target)

    monkeypatch.setattr(os, "link", nfs_link)
    assert FILES.create_if_absent(f"{tmp_path}/record", b"mine")


def test_a_file_system_without_hard_links_is_an_error_not_a_false(tmp_path, monkeypatch):
    def no_link(source, target):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", no_link)
    with pytest.raises(PermissionError):
        FILES.create_if_absent(f"{tmp_path}/record", b"mine")
    assert os.listdir(tmp_path) == []


def test_folders_and_files_are_the_owner_s_alone(tmp_path):
    old = os.umask(0)
    try:
        FILES.create_if_absent(f"{tmp_path}/a/b/record", b"")
        FILES.write(f"{tmp_path}/a/c/run", b"")
    finally:
        os.umask(old)
    modes = {p.name: p.stat().st_mode & 0o777 for p in tmp_path.rglob("*")}
    assert modes == {"a": 0o700, "b": 0o700, "c": 0o700, "record": 0o600, "run": 0o600}


def test_a_file_left_by_a_kill_is_never_listed_and_is_deleted_when_it_is_old(tmp_path):
    FILES.write(f"{tmp_path}/record", b"")
    for name, age in (("new", 0), ("old", 7200)):
        leftover = tmp_path / f".tmp-{name}"
        leftover.write_bytes(b"half")
        stamp = leftover.stat().st_mtime - age
        os.utime(leftover, (stamp, stamp))
    assert FILES.list(str(tmp_path)) == ["record"]
    assert FILES.delete_leftovers(str(tmp_path), 3600) == 1
    assert sorted(os.listdir(tmp_path)) == [".tmp-new", "record"]


def test_missing_files_and_folders_are_not_errors(tmp_path):
    assert FILES.list(f"{tmp_path}/none") == []
    assert FILES.delete_leftovers(f"{tmp_path}/none", 0) == 0
    FILES.delete(f"{tmp_path}/none")
    with pytest.raises(FileNotFoundError):
        FILES.read(f"{tmp_path}/none")


def test_an_empty_folder_is_made_private_and_one_that_others_may_write_to_is_refused(tmp_path):
    shared = tmp_path / "shared"
    shared.mkdir(mode=0o755)
    FILES.make_private(str(shared))
    assert shared.stat().st_mode & 0o777 == 0o700
    Path(shared, "FORMAT").touch()
    shared.chmod(0o770)
    with pytest.raises(
        PermissionError, match=rf"may write to .*; if it is a checkpoint, run chmod 700 {shared}"
    ):
        FILES.make_private(str(shared))


def test_a_file_larger_than_memory_is_written_from_a_file_and_never_replaces_another(tmp_path):
    local = tmp_path / "scratch"
    local.write_bytes(b"run" * 1_000_000)
    path = tmp_path / "state" / "run"
    LocalFileSystem().write_file(str(path), str(local))
    assert path.read_bytes() == local.read_bytes()
    with pytest.raises(FileExistsError):
        LocalFileSystem().write_file(str(path), str(local))
