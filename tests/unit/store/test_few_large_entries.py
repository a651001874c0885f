"""Few large entries leave the memory early, and cost no look-ups in files that do not have the key."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from penstock.runner.protocol import RunName
from penstock.runner.store import LocalFileSystem, StateStore, state
from penstock.runner.store.runs import FileRunBuilder, Run, RunBuilder, RunCache

LIMIT = 1 << 20


@pytest.fixture(autouse=True)
def limits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(tmp_path))
    monkeypatch.setattr(state, "SPILL_BYTES", LIMIT)
    monkeypatch.setattr(state, "LARGE_BYTES", LIMIT)


def filled(tmp_path: Path, count: int, size: int) -> StateStore:
    store = StateStore.open(LocalFileSystem(), str(tmp_path / "state"), (), 0, 0, cache=RunCache())
    for number in range(count):
        store.put(0, b"%d" % number, bytes(size))
    return store


def test_few_large_entries_leave_the_buffer_at_a_quarter_of_its_limit(tmp_path: Path) -> None:
    store = filled(tmp_path, 100, LIMIT // 40)
    assert store._held <= LIMIT // 4
    assert len(store._spilled) == 10


def test_many_small_entries_stay_in_the_buffer_up_to_its_limit(tmp_path: Path) -> None:
    assert not filled(tmp_path, 3000, 100)._spilled


def test_a_new_key_is_not_looked_up_in_files_of_few_entries(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = filled(tmp_path, 100, LIMIT // 40)
    asked: list[bytes] = []
    get = Run.get
    monkeypatch.setattr(Run, "get", lambda run, key: (asked.append(key), get(run, key))[1])
    assert store.get(0, b"another") is None
    assert not asked
    assert store.get(0, b"7") == bytes(LIMIT // 40)
    assert len(asked) == 1


def test_a_file_is_asked_only_for_key_groups_that_have_entries_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = StateStore.open(LocalFileSystem(), str(tmp_path / "state"), (), 0, 999, cache=RunCache())
    for number in range(20):
        store.put(7, b"x%d" % number, bytes(LIMIT // 40))
    assert store._spilled
    bounds: list[int] = []
    first_keys, scan = Run.first_keys, Run.scan
    monkeypatch.setattr(Run, "first_keys", lambda run, of: (bounds.append(len(of)), first_keys(run, of))[1])
    monkeypatch.setattr(Run, "scan", lambda run, of: (bounds.append(len(of)), scan(run, of))[1])
    assert list(store.first_keys(0, 999, b"x")) == [(7, b"x0")]
    assert len(list(store.scan(0, 999, b"x"))) == 20
    assert set(bounds) == {1}


def test_few_large_entries_are_merged_through_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    in_memory: list[Any] = []
    store = filled(tmp_path, 8, LIMIT // 40)
    runs = store.seal(RunName(1, 1, "aa", "Count"))
    monkeypatch.setattr(RunBuilder, "finish", lambda builder: in_memory.append(builder))
    store = StateStore.open(LocalFileSystem(), str(tmp_path / "state"), runs, 0, 0, cache=RunCache())
    for number in range(8):
        store.put(0, b"other %d" % number, bytes(LIMIT // 40))
    (run,) = store.seal(RunName(1, 2, "aa", "Count"))
    assert run.entries == 16
    assert not in_memory


def test_a_scratch_file_holds_little_memory_after_it_was_written() -> None:
    """SQLite's memory, which `tracemalloc` does not see: ten files of 8 MB had 80 MB."""

    def resident_mib() -> float:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / (1 << 20)

    runs, before = [], resident_mib()
    for _ in range(10):
        builder = FileRunBuilder(1 << 18)
        builder.add((b"%04d" % number, bytes(1 << 18)) for number in range(32))
        runs.append(builder.opened(256))
    assert all(run.get(b"0007") == bytes(1 << 18) for run in runs)
    assert resident_mib() - before < 30
