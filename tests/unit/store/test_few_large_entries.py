"""Few large entries leave the memory early, and cost no look-ups in files that do not have the key."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from penstock.runner.protocol import RunName
from penstock.runner.protocol.record import StateRun
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


def test_few_large_entries_leave_the_buffer_at_half_of_its_limit(tmp_path: Path) -> None:
    store = filled(tmp_path, 100, LIMIT // 40)
    assert store._held <= LIMIT // 2
    assert len(store._spilled) == 5


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


class Epochs:
    """Seals the state of one epoch after the other; each opens the runs of the one before."""

    def __init__(self, folder: Path) -> None:
        self._folder = str(folder / "state")
        self._epoch = 0
        self.runs: tuple[StateRun, ...] = ()

    def open(self) -> StateStore:
        return StateStore.open(LocalFileSystem(), self._folder, self.runs, 0, 0, cache=RunCache())

    def seal(self, store: StateStore) -> None:
        self._epoch += 1
        self.runs = store.seal(RunName(1, self._epoch, "aa", "Count"))

    def add(self, count: int, size: int = LIMIT // 40) -> None:
        store = self.open()
        for number in range(count):
            store.put(0, b"%d %d" % (self._epoch, number), bytes(size))
        self.seal(store)

    def keys(self) -> int:
        return len(list(self.open().scan(0, 0)))


def test_runs_of_few_large_entries_are_merged_when_there_are_several(tmp_path: Path) -> None:
    """Without this, an open file that grows for ten seconds was written again in every second epoch."""
    epochs = Epochs(tmp_path)
    for count in range(1, state.LARGE_RUNS + 1):
        epochs.add(8)
        assert len(epochs.runs) == count
    epochs.add(8)
    (run,) = epochs.runs
    assert run.entries == epochs.keys() == 8 * (state.LARGE_RUNS + 1)
    epochs.add(8)
    assert [run.entries for run in epochs.runs] == [8 * (state.LARGE_RUNS + 1), 8]


def test_runs_of_small_entries_are_merged_at_once(tmp_path: Path) -> None:
    epochs = Epochs(tmp_path)
    for _ in range(3):
        epochs.add(8, size=100)
    assert len(epochs.runs) == 1


def test_deletions_free_large_entries_at_once(tmp_path: Path) -> None:
    epochs = Epochs(tmp_path)
    for _ in range(3):
        epochs.add(8)
    store = epochs.open()
    assert store.clear(0) == 24
    for number in range(4):
        store.put(0, b"new %d" % number, bytes(LIMIT // 40))
    epochs.seal(store)
    (run,) = epochs.runs
    assert run.entries == epochs.keys() == 4


def test_deletions_of_earlier_epochs_count_too(tmp_path: Path) -> None:
    """Else runs of large entries would keep several times as many bytes that are deleted."""
    epochs = Epochs(tmp_path)
    epochs.add(8)
    for _ in range(2):
        store = epochs.open()
        for _, key, _ in list(store.scan(0, 0))[:4]:
            store.delete(0, key)
        for number in range(5):
            store.put(0, b"%d new %d" % (len(epochs.runs), number), bytes(LIMIT // 40))
        epochs.seal(store)
    (run,) = epochs.runs
    assert run.entries == epochs.keys() == 10


def test_the_length_of_a_deleted_value_is_known_without_a_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    epochs = Epochs(tmp_path)
    epochs.add(8)
    store = epochs.open()
    monkeypatch.setattr(Run, "get", lambda run, key: pytest.fail("read"))
    for _, key, _ in list(store.scan(0, 0)):
        store.delete(0, key)
    epochs.seal(store)
    assert epochs.runs == ()


def test_few_large_entries_are_merged_through_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    epochs = Epochs(tmp_path)
    for _ in range(state.LARGE_RUNS):
        epochs.add(2)
    monkeypatch.setattr(RunBuilder, "finish", lambda builder: pytest.fail("merged in memory"))
    epochs.add(2)
    (run,) = epochs.runs
    assert run.entries == 2 * (state.LARGE_RUNS + 1)


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
