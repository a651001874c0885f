"""A snapshot and the changes after it in whole pipelines on the runner, without Spark, on the simulated service."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import apache_beam as beam
import pytest

from penstock.io.spanner import DataChangeRecord
from tests.integration.spanner.test_snapshot import insert
from tests.simulation.stream import run_stream

pytestmark = pytest.mark.parametrize("emulator", ["simulated"], indirect=True, scope="session")

ROWS = 4000
seen: list[tuple[str, int]] = []
fast = threading.Event()
"""Until it is set each row takes a millisecond, so that an epoch ends in the middle of the rows."""


def note(record: DataChangeRecord) -> None:
    """Remember each row and change; the pipeline runs in this process."""
    fast.wait(0.001)
    seen.extend((record.mod_type, int(json.loads(mod.keys)["Id"])) for mod in record.mods)


@pytest.fixture
def filled(database: Any) -> Any:
    seen.clear()
    fast.clear()
    for start in range(0, ROWS, 500):
        insert(database, "Accounts", dict.fromkeys(range(start, start + 500), "a" * 2000))
    return database


def keys(kind: str) -> list[int]:
    return sorted(key for found, key in seen if found == kind)


def test_a_pipeline_that_stops_in_the_middle_finishes_the_same_snapshot(filled: Any, tmp_path: Path) -> None:
    def build(pipeline: beam.Pipeline) -> None:
        # Each run of a program makes its own transform; an hour may have passed since the first one.
        _ = pipeline | filled.reading(snapshot="initial", buffer_bytes=1 << 20) | beam.Map(note)

    def some_rows(_: Any) -> bool:
        return len(seen) > 0

    run_stream(build, folder=tmp_path, stop=some_rows)
    before = len(seen)
    assert 0 < before < ROWS, "the stop was not in the middle"
    fast.set()
    insert(filled, "Accounts", {7: "after it"})
    run_stream(build, folder=tmp_path, stop=lambda _: ("UPDATE", 7) in seen)
    assert keys("READ") == list(range(ROWS))
    assert keys("UPDATE") == [7]
    assert seen.index(("READ", 7)) < seen.index(("UPDATE", 7))


def test_a_drain_in_the_middle_reads_all_rows_and_no_changes(filled: Any) -> None:
    reading = filled.reading(snapshot="initial", buffer_bytes=1 << 20)

    def build(pipeline: beam.Pipeline) -> None:
        _ = pipeline | reading | beam.Map(note)

    changed: list[int] = []

    def draining() -> bool:
        if seen and not changed:
            changed.append(insert(filled, "Accounts", {7: "after it"}))
            fast.set()
        return bool(seen)

    run_stream(build, draining=draining)
    assert keys("READ") == list(range(ROWS))
    assert keys("UPDATE") == []
    assert changed
