"""Rows that must be read again by their key: what they cost, and how many are remembered."""

from __future__ import annotations

import json
import tracemalloc

import pytest

from penstock.io.change_streams.incremental import engine as module
from penstock.io.change_streams.incremental.engine import Chunk, ChunkRow, SnapshotEngine
from penstock.io.change_streams.incremental.progress import SnapshotProgress
from penstock.io.change_streams.incremental.signals import ExecuteSnapshot

TABLE = "public.t"


def engine_of_one_table() -> SnapshotEngine:
    engine = SnapshotEngine(SnapshotProgress())
    engine.receive(ExecuteSnapshot("1", (TABLE,)))
    engine.resolve("1", [TABLE], {})
    return engine


def move(engine: SnapshotEngine, number: int) -> None:
    """Emit a change that moves a row to another key and lacks columns."""
    engine.change(number, TABLE, [number, -number], whole=False, name=f"[{-number}]", moved=True)


def waiting(engine: SnapshotEngine) -> list[str]:
    """Return the keys that the checkpoint has."""
    (snapshot,), *_ = engine.progress.document()
    ((*_, repairs),) = snapshot[-1]
    return list(repairs)


def test_the_positions_of_many_moved_rows_share_their_keys() -> None:
    engine, count = engine_of_one_table(), 4_000
    positions = []
    tracemalloc.start()
    for number in range(1, count + 1):
        move(engine, number)
        positions.append(engine.progress)
    size, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert waiting(engine) == [f"[{-number}]" for number in range(1, count + 1)]
    # A copy of all keys in each position would take 64 MB.
    assert size < 20_000_000


def test_a_row_that_moves_twice_is_read_once() -> None:
    engine = engine_of_one_table()
    for number in (1, 2, 1):
        move(engine, number)
    assert waiting(engine) == ["[-1]", "[-2]"]


def test_a_table_with_too_many_moved_rows_is_read_again_from_its_beginning(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "MAX_REPAIRS", 3)
    engine = engine_of_one_table()
    (request,) = engine.requests()
    rows = [ChunkRow(1, "[1]", "[1]", "row")]
    engine.arrived(Chunk(request, rows, lambda version: True, 0, False))
    assert [each.rows for each in engine.reached(0)] == [["row"]]
    (late,) = engine.requests()
    assert late.cursor == "[1]"
    for number in range(1, 5):
        move(engine, number)
    assert waiting(engine) == []
    (request,) = engine.requests()
    assert (request.cursor, request.keys) == ("", ())
    # The chunk that was requested before is of no use: its cursor is ahead of the beginning.
    engine.arrived(Chunk(late, rows, lambda version: True, 0, True))
    assert not list(engine.reached(0))


def test_keys_are_read_from_a_checkpoint_in_one_list() -> None:
    engine = engine_of_one_table()
    keys = [f"[{number}]" for number in range(1_200)]
    engine.progress = engine.progress.with_repairs(TABLE, keys)
    stored = json.loads(json.dumps(engine.progress.document()))
    resumed = SnapshotEngine(SnapshotProgress.from_document(stored))
    assert waiting(resumed) == keys
    (request,) = resumed.requests()
    assert list(request.keys) == keys[:500]
