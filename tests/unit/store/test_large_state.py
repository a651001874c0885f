"""State larger than memory: the buffer moves to scratch files, and large runs are merged through them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from penstock.runner.protocol import RunName, StateRun
from penstock.runner.store import LocalFileSystem, StateStore, state
from penstock.runner.store.cells import EVENT, NO_HOLD_US, TimerEntry, Timers
from penstock.runner.store.runs import RunCache

GROUPS = 8


@pytest.fixture(autouse=True)
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "scratch"
    folder.mkdir()
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(folder))
    monkeypatch.setattr(state, "SPILL_BYTES", 100_000)
    monkeypatch.setattr(state, "LARGE_BYTES", 200_000)
    return folder


def opened(tmp_path: Path, runs: tuple[StateRun, ...] = ()) -> StateStore:
    return StateStore.open(LocalFileSystem(), str(tmp_path / "state"), runs, 0, GROUPS - 1, cache=RunCache())


def test_a_buffer_of_any_size_uses_a_bounded_part_of_memory(tmp_path: Path, scratch: Path) -> None:
    store = opened(tmp_path)
    for n in range(3_000):
        store.put(n % GROUPS, b"%05d" % n, b"x" * 100)
        assert store._held <= 101_000
    assert list(scratch.iterdir()) == [], "scratch files have no name, so they end with the process"
    assert [store.get(n % GROUPS, b"%05d" % n) for n in (0, 2_999)] == [b"x" * 100] * 2
    runs = store.seal(RunName(1, 1, "aa", "Count"))
    assert [run.entries for run in runs] == [3_000]
    assert sum(1 for _ in opened(tmp_path, runs).scan(0, GROUPS - 1)) == 3_000
    assert list(scratch.iterdir()) == []


def test_a_key_that_is_written_again_and_again_moves_nothing_to_disk(tmp_path: Path) -> None:
    store = opened(tmp_path)
    for n in range(5_000):
        store.put(0, b"counter", b"%0100d" % n)
    assert store._spilled == []


def test_deleted_keys_leave_nothing_in_a_run_that_is_merged_on_disk(tmp_path: Path) -> None:
    store = opened(tmp_path)
    for n in range(3_000):
        store.put(n % GROUPS, b"%05d" % n, os.urandom(100))
    runs = store.seal(RunName(1, 1, "aa", "Count"))
    store = opened(tmp_path, runs)
    for n in range(2_990):
        store.delete(n % GROUPS, b"%05d" % n)
    (run,) = store.seal(RunName(1, 2, "aa", "Count"))
    assert (run.entries, run.hides) == (10, 0)
    assert run.size < 20_000


def test_a_merge_that_fails_leaves_no_scratch_file(tmp_path: Path, scratch: Path) -> None:
    class FullDisk(LocalFileSystem):
        def write_file(self, path: str, local: str) -> None:
            raise OSError("no space left")

    store = StateStore.open(FullDisk(), str(tmp_path / "state"), (), 0, GROUPS - 1, cache=RunCache())
    for n in range(3_000):
        store.put(n % GROUPS, b"%05d" % n, b"x" * 100)
    with pytest.raises(OSError, match="no space left"):
        store.seal(RunName(1, 1, "aa", "Count"))
    assert list(scratch.iterdir()) == []


def test_many_due_timers_come_in_order_without_a_list_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.runner.store.cells.FEW_TIMERS", 10)
    store = StateStore.temporary(0, GROUPS - 1)
    timers = Timers(store, 0, GROUPS - 1)

    def timer(n: int) -> TimerEntry:
        return TimerEntry(n % GROUPS, b"%05d" % n, b"w", b"f", b"", EVENT, n * 7919 % 1000, NO_HOLD_US)

    for n in range(1_000):
        timers.set(timer(n))
    due = timers.due(EVENT, 500)
    first = next(due)
    # What changes later is seen: a timer that is deleted does not come, and one that is set meanwhile is not due here.
    gone = next(n for n in range(1_000) if timer(n).fire_us == 250)
    timers.clear(gone % GROUPS, b"%05d" % gone, b"w", b"f", b"")
    timers.set(TimerEntry(0, b"new", b"w", b"f", b"", EVENT, 300, NO_HOLD_US))
    times = [first.fire_us, *(each.fire_us for each in due)]
    assert times == [fire for fire in range(501) if fire != 250]
    assert [each.fire_us for each in timers.take_due(EVENT, 100)] == list(range(101))
    assert timers.earliest(EVENT) == 101


def test_the_newest_of_several_scratch_files_wins(tmp_path: Path) -> None:
    store = opened(tmp_path)
    for turn in range(4):
        for n in range(500):
            store.put(0, b"%05d" % n, b"%0100d" % turn)
        store.put(0, b"last", b"%d" % turn)
    assert len(store._spilled) > 1
    assert store.get(0, b"00000") == b"%0100d" % 3
    store.delete(0, b"00001")
    runs = store.seal(RunName(1, 1, "aa", "Count"))
    values = {key: value for _, key, value in opened(tmp_path, runs).scan(0, 0)}
    assert values == {**{b"%05d" % n: b"%0100d" % 3 for n in range(500) if n != 1}, b"last": b"3"}
