"""Signals that ask for rows by their keys."""

from __future__ import annotations

import json

import pytest

from penstock.io.change_streams.flat import FlatFrontier, FlatPosition
from penstock.io.change_streams.incremental.engine import Chunk, ChunkRow, SnapshotEngine
from penstock.io.change_streams.incremental.frontier import IncrementalFrontier
from penstock.io.change_streams.incremental.progress import SnapshotProgress
from penstock.io.change_streams.incremental.signals import ExecuteSnapshot, SignalError, parse_signal

TABLE = "public.t"
KEYS = tuple(f'["{number}"]' for number in range(700))
REQUEST = ExecuteSnapshot("1", (TABLE,), keys=KEYS)


def restarted(progress: SnapshotProgress) -> SnapshotProgress:
    return SnapshotProgress.from_document(json.loads(json.dumps(progress.document())))


def test_keys_are_read_in_the_form_of_each_source() -> None:
    data = {"data-collections": ["public.t"], "keys": [["ä", None], ["ä", None], ["4", "b"]]}
    signal = parse_signal("1", "execute-snapshot", json.dumps(data))
    assert signal == ExecuteSnapshot("1", ("public.t",), keys=('["ä",null]', '["4","b"]'))
    data["keys"] = [{"Id": "4", "Shop": "a"}]
    assert parse_signal("1", "execute-snapshot", data) == ExecuteSnapshot(
        "1", ("public.t",), keys=('{"Id":"4","Shop":"a"}',)
    )


@pytest.mark.parametrize("keys", [[], None, "4", ["4"], [[]], [{}], [[["4"]]], [{"Id": {}}]])
def test_malformed_keys_never_mean_the_whole_table(keys: object) -> None:
    with pytest.raises(SignalError, match="keys must be a list of 1 to 10,000 keys"):
        parse_signal("1", "execute-snapshot", {"data-collections": ["public.t"], "keys": keys})


def test_keys_of_two_tables_are_refused() -> None:
    with pytest.raises(SignalError, match="exactly one table"):
        parse_signal("1", "execute-snapshot", {"data-collections": ["a", "b"], "keys": [["1"]]})


@pytest.mark.parametrize("restart_at", ["never", "signal", "tables"])
def test_only_the_rows_with_the_keys_are_read_also_after_a_restart(restart_at: str) -> None:
    progress, _ = SnapshotProgress().receive(REQUEST)
    if restart_at == "signal":
        progress = restarted(progress)
    progress, _ = progress.resolved("1", {TABLE: 1_000_000})
    if restart_at == "tables":
        progress = restarted(progress)
    engine = SnapshotEngine(progress)
    asked: list[str] = []
    emitted = []
    while not engine.is_idle:
        (request,) = engine.requests()
        assert request.keys
        asked += request.keys
        # Every second row does not exist any more.
        rows = [ChunkRow(key, "", key, key) for key in request.keys[::2]]
        engine.arrived(Chunk(request, rows, lambda version: True, 0, False))
        emitted += [row for each in engine.reached(0) for row in each.rows]
    assert tuple(asked) == KEYS
    assert emitted == [*KEYS[:500:2], *KEYS[500::2]]


def test_a_row_that_changes_while_it_is_read_does_not_follow_the_change() -> None:
    progress, _ = SnapshotProgress().receive(ExecuteSnapshot("1", (TABLE,), keys=('["1"]', '["2"]')))
    engine = SnapshotEngine(progress.resolved("1", [TABLE])[0])
    (request,) = engine.requests()
    assert engine.change(7, TABLE, [("1",)], whole=True) == []
    rows = [ChunkRow((key,), "", f'["{key}"]', key) for key in "12"]
    engine.arrived(Chunk(request, rows, lambda version: False, 5, False))
    assert [list(each.rows) for each in engine.reached(5)] == [["2"]]
    assert engine.is_idle


def test_a_request_is_finished_when_it_was_taken_and_none_of_its_rows_remains() -> None:
    waiting, _ = SnapshotProgress().with_channel("folder", ["a.json"]).receive(REQUEST)
    assert not SnapshotProgress().has_finished("1", "folder", "a.json")
    assert not waiting.has_finished("1", "folder", "a.json")
    assert waiting.has_finished("2", "folder", "a.json")
    assert not waiting.has_finished("2", "folder", "b.json")


def test_the_frontier_of_each_source_shows_its_snapshots() -> None:
    progress, _ = SnapshotProgress().receive(REQUEST)
    flat = FlatFrontier({"slot": FlatPosition([1, progress], 0)}, None)
    assert flat.snapshots == (progress,)
    assert IncrementalFrontier(flat, progress).snapshots == (progress,)
    assert IncrementalFrontier(flat, None, dealt=True).snapshots == ()
