"""Keyed state: newest wins, snapshots, tiers, and space that is given back."""

from __future__ import annotations

import itertools
import os

import pytest

from penstock.runner.protocol import CheckpointError, RunMissingError, RunName, StateRun
from penstock.runner.store import LocalFileSystem, StateStore
from penstock.runner.store.runs import RunCache

FILES = LocalFileSystem()
_epochs = itertools.count(1)


def name(stage="Count"):
    return RunName(1, next(_epochs), "aa", stage)


def opened(tmp_path, runs=(), first=0, last=7, cache=None):
    return StateStore.open(FILES, str(tmp_path), runs, first, last, cache=cache or RunCache())


def sealed(tmp_path, entries, runs=(), first=0, last=7):
    """Put (None: delete) entries {(key group, key): value} on top of runs and seal them."""
    store = opened(tmp_path, runs, first, last)
    for (group, key), value in entries.items():
        if value is None:
            store.delete(group, key)
        else:
            store.put(group, key, value)
    return store.seal(name())


def content(tmp_path, runs, first=0, last=7):
    return {
        (group, key): value for group, key, value in opened(tmp_path, runs, first, last).scan(first, last)
    }


def big(count, size=1000, start=0):
    """Enough entries for a run above the size of small runs."""
    return {(n % 8, b"key%06d" % n): os.urandom(size) for n in range(start, start + count)}


def test_a_value_is_seen_before_and_after_it_is_sealed(tmp_path):
    store = opened(tmp_path)
    store.put(3, b"k", b"v")
    assert store.get(3, b"k") == b"v"
    runs = store.seal(name())
    assert store.get(3, b"k") == b"v"
    assert opened(tmp_path, runs).get(3, b"k") == b"v"


def test_one_key_in_two_key_groups_is_two_keys(tmp_path):
    runs = sealed(tmp_path, {(1, b"k"): b"one", (2, b"k"): b"two"})
    store = opened(tmp_path, runs)
    assert (store.get(1, b"k"), store.get(2, b"k"), store.get(3, b"k")) == (b"one", b"two", None)


def test_an_empty_value_is_a_value(tmp_path):
    runs = sealed(tmp_path, {(0, b""): b""})
    assert opened(tmp_path, runs).get(0, b"") == b""


def test_nothing_changed_writes_nothing(tmp_path):
    runs = sealed(tmp_path, {(0, b"k"): b"v"})
    files = sorted(os.listdir(tmp_path))
    store = opened(tmp_path, runs)
    store.get(0, b"k")
    assert store.seal(name()) == runs
    assert sorted(os.listdir(tmp_path)) == files


def test_deleting_a_missing_key_writes_nothing(tmp_path):
    runs = sealed(tmp_path, big(300))
    files = sorted(os.listdir(tmp_path))
    assert sealed(tmp_path, {(0, b"none"): None}, runs) == runs
    assert sorted(os.listdir(tmp_path)) == files


def test_a_seal_writes_at_most_one_run_however_many_it_merges(tmp_path):
    runs = ()
    for round_ in range(12):
        before = set(os.listdir(tmp_path))
        runs = sealed(tmp_path, big(60, start=40 * round_), runs)
        assert len(set(os.listdir(tmp_path)) - before) == 1


def test_runs_stay_few_and_a_small_change_does_not_rewrite_a_large_run(tmp_path):
    runs = base = sealed(tmp_path, big(2000))
    for round_ in range(30):
        runs = sealed(tmp_path, {(0, b"k%d" % (round_ % 7)): b"v"}, runs)
        assert runs[0] == base[0]
        assert len(runs) == 2


def test_cleared_keys_free_their_space(tmp_path):
    entries = big(2000)
    runs = sealed(tmp_path, entries)
    keys = list(entries)
    for begin in range(0, len(keys), 500):
        runs = sealed(tmp_path, dict.fromkeys(keys[begin : begin + 500]), runs)
    assert runs == ()


def test_state_that_shrinks_shrinks_on_disk(tmp_path):
    entries = big(2000)
    runs = sealed(tmp_path, entries)
    runs = sealed(tmp_path, dict.fromkeys(list(entries)[:1800]), runs)
    assert len(runs) == 1
    assert runs[0].size < 200 * 1000 * 1.5


@pytest.mark.parametrize("size", [10, 300, 1000, 3000, 20_000])
def test_a_run_is_hardly_larger_than_its_entries(tmp_path, size):
    runs = sealed(tmp_path, big(3_000_000 // size // 10, size))
    content = runs[0].entries * (size + 11)
    assert runs[0].size < 1.6 * content + 8192


def test_inserted_and_deleted_keys_leave_nothing_in_a_large_state(tmp_path):
    runs = base = sealed(tmp_path, big(2000))
    for round_ in range(5):
        runs = sealed(tmp_path, {(0, b"queue%d" % round_): b"x"}, runs)
        runs = sealed(tmp_path, {(0, b"queue%d" % round_): None}, runs)
    assert runs == base


def test_a_deleted_key_stays_deleted_while_a_large_run_below_still_holds_it(tmp_path):
    entries = big(2000)
    gone = next(iter(entries))
    runs = sealed(tmp_path, {gone: None}, sealed(tmp_path, entries))
    assert len(runs) == 2
    assert opened(tmp_path, runs).get(*gone) is None
    assert gone not in content(tmp_path, runs)


def test_the_newest_of_several_runs_wins(tmp_path):
    entries = big(2000)
    key = next(iter(entries))
    runs = sealed(tmp_path, {key: b"new"}, sealed(tmp_path, entries))
    assert len(runs) == 2
    assert opened(tmp_path, runs).get(*key) == b"new"
    assert content(tmp_path, runs)[key] == b"new"


def test_clear_removes_exactly_the_keys_with_the_prefix(tmp_path):
    runs = sealed(
        tmp_path, {(1, b"bag/1"): b"a", (1, b"bag/2"): b"b", (1, b"bah"): b"c", (2, b"bag/1"): b"d"}
    )
    store = opened(tmp_path, runs)
    store.put(1, b"bag/3", b"e")
    assert store.clear(1, b"bag/") == 3
    assert content(tmp_path, store.seal(name())) == {(1, b"bah"): b"c", (2, b"bag/1"): b"d"}


def test_a_scan_gives_keys_ascending_up_to_the_stop(tmp_path):
    runs = sealed(tmp_path, {(1, b"t\x05"): b"5", (1, b"t\x01"): b"1", (1, b"s"): b"", (1, b"u"): b""})
    store = opened(tmp_path, runs)
    store.put(1, b"t\x03", b"3")
    store.put(0, b"t\x09", b"9")
    store.put(1, b"t\x01", b"new")
    assert list(store.scan(0, 7, b"t")) == [
        (0, b"t\x09", b"9"),
        (1, b"t\x01", b"new"),
        (1, b"t\x03", b"3"),
        (1, b"t\x05", b"5"),
    ]
    assert list(store.scan(1, 1, b"t", b"t\x05")) == [(1, b"t\x01", b"new"), (1, b"t\x03", b"3")]
    assert list(store.scan(1, 1, b"", b"t\x01")) == [(1, b"s", b"")]
    assert list(store.scan(1, 1, b"t", b"zzz")) == list(store.scan(1, 1, b"t"))


def test_a_scan_sees_the_state_as_it_was_when_it_was_called(tmp_path):
    store = opened(tmp_path, sealed(tmp_path, {(0, b"a"): b"1", (0, b"c"): b"3"}))
    store.put(0, b"b", b"2")
    scan = store.scan(0, 7)
    for key in (b"a", b"b", b"c"):
        store.delete(0, key)
    store.put(0, b"d", b"4")
    assert [key for _, key, _ in scan] == [b"a", b"b", b"c"]
    assert [key for _, key, _ in store.scan(0, 7)] == [b"d"]


def test_a_rescaled_job_reads_exactly_its_own_groups_of_every_run(tmp_path):
    entries = {(group, b"k"): b"%d" % group for group in range(8)}
    whole = sealed(tmp_path, entries)
    left = sealed(tmp_path, {(2, b"k"): b"left"}, whole, 0, 3)
    right = sealed(tmp_path, {(5, b"k"): b"right"}, whole, 4, 7)
    together = [*right, *left]
    assert content(tmp_path, together) == entries | {(2, b"k"): b"left", (5, b"k"): b"right"}
    assert content(tmp_path, together, 3, 4) == {(3, b"k"): b"3", (4, b"k"): b"4"}


def test_a_part_that_is_merged_away_does_not_come_back_when_the_parts_are_joined(tmp_path):
    whole = sealed(tmp_path, {(group, b"k"): b"v" for group in range(8)})
    left = sealed(tmp_path, {(group, b"k"): None for group in range(4)}, whole, 0, 3)
    right = opened(tmp_path, whole, 4, 7).seal(name())
    assert content(tmp_path, [*left, *right]) == {(group, b"k"): b"v" for group in range(4, 8)}


def test_the_run_of_a_failed_write_is_not_used(tmp_path, monkeypatch):
    runs = sealed(tmp_path, {(0, b"k"): b"old"})
    store = opened(tmp_path, runs)
    store.put(0, b"k", b"new")

    def full(self, path, data):
        raise OSError("no space left")

    monkeypatch.setattr(LocalFileSystem, "write", full)
    with pytest.raises(OSError, match=r"no space left"):
        store.seal(name())
    monkeypatch.undo()
    assert content(tmp_path, store.runs) == {(0, b"k"): b"old"}
    assert content(tmp_path, store.seal(name())) == {(0, b"k"): b"new"}


def test_a_failed_attempt_s_state_is_never_read_by_the_next_one(tmp_path):
    cache = RunCache()
    runs = sealed(tmp_path, {(0, b"k"): b"1"})
    for nonce, value in (("aa", b"2"), ("bb", b"3")):
        store = opened(tmp_path, runs, cache=cache)
        store.put(0, b"k", value)
        last = store.seal(RunName(1, 99, nonce, "Count"))
    assert opened(tmp_path, last, cache=cache).get(0, b"k") == b"3"


def test_a_missing_run_is_noticed_when_it_is_read(tmp_path):
    runs = sealed(tmp_path, {(0, b"k"): b"1"})
    os.unlink(f"{tmp_path}/{runs[0].name}")
    with pytest.raises(RunMissingError, match=r"'Count' is missing"):
        opened(tmp_path, runs).get(0, b"k")


def test_key_groups_of_other_tasks_are_refused(tmp_path):
    store = opened(tmp_path, first=2, last=3)
    for call in (lambda: store.get(1, b""), lambda: store.put(4, b"", b""), lambda: store.scan(2, 4)):
        with pytest.raises(ValueError, match=r"key group [14] is not among 2 to 3 \(inclusive\)"):
            call()


def test_runs_of_two_stages_are_refused(tmp_path):
    run = sealed(tmp_path, {(0, b"k"): b"1"})[0]
    other = StateRun("Other", run.name, 0, 7, 1, 1, 1)
    with pytest.raises(ValueError, match=r"runs of several stages: \['Count', 'Other'\]"):
        opened(tmp_path, [run, other])


def test_two_runs_of_one_age_for_one_key_group_are_refused(tmp_path):
    stages = [RunName(1, 2, nonce, "Count").file_name(0, 7) for nonce in ("aa", "bb")]
    runs = [StateRun("Count", file, 0, 7, 1, 1, 1) for file in stages]
    with pytest.raises(CheckpointError, match=r"both claim the same key groups"):
        opened(tmp_path, runs)


def test_a_run_with_an_invalid_name_is_refused(tmp_path):
    with pytest.raises(CheckpointError, match=r"is not the name of a state run"):
        opened(tmp_path, [StateRun("Count", "notes.txt", 0, 7, 1, 1, 1)])
