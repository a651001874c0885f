"""Change logs whose files are written by tasks, on the real driver and tasks in this process, killed at every step."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import apache_beam as beam
import deltalake
import pytest
from apache_beam.testing.test_stream import TestStream
from deltalake import DeltaTable

from penstock.event import ChangeEvent, Kind, Op, Source, Version
from penstock.io.columnar.publish_tables import publish_tables
from penstock.io.delta import WriteToDelta
from penstock.io.delta.folder import LocalFolder
from penstock.io.delta.target import DeltaTarget
from penstock.io.staging.batch import EventBlocks
from penstock.io.staging.coders import RecordBlockCoder
from penstock.io.staging.local import LocalStore
from penstock.io.staging.options import StagingOptions
from penstock.io.staging.publish_epochs import PublishEpochs
from penstock.runner.protocol import EpochFailedError
from tests.simulation.staging.epochs import Crash, CrashPoint
from tests.simulation.stream import run_stream
from tests.unit.formats.events import schema_of

NARROW = schema_of({"id": Kind.INT64}, n=Kind.INT32)
WIDE = schema_of({"id": Kind.INT64}, n=Kind.INT32, note=Kind.STRING)
TABLES = ("orders", "items")
EVENTS = 24


def event(number: int) -> ChangeEvent:
    """Return a change of one of two tables. The second half has a new column; one is a TRUNCATE."""
    schema = NARROW if number < EVENTS // 2 else WIDE
    row = {"id": number, "n": number} | ({"note": "new"} if schema is WIDE else {})
    op = Op.TRUNCATE if number == EVENTS - 4 else Op.CREATE
    key, after = (None, None) if op is Op.TRUNCATE else ({"id": number}, row)
    source = Source("postgresql", "s", "shop", "public", TABLES[number % 2])
    return ChangeEvent(source, op, number * 10**9, key, None, after, Version(number), schema)


def stream() -> TestStream:
    elements = TestStream()
    for first in range(0, EVENTS, 8):
        elements = elements.add_elements([event(number) for number in range(first, first + 8)])
    return elements.advance_watermark_to_infinity()


def run(folder: Path, sink: beam.PTransform | None = None, **options: Any) -> None:
    sink = sink or WriteToDelta(str(folder / "lake" / "{table}"), mode="log", roll_seconds=0)
    run_stream(lambda p: p | stream() | "Sink" >> sink, folder=folder, cleans_up=True, **options)


def rows(folder: Path) -> list[tuple[int, str | None]]:
    found = []
    for table in TABLES:
        for row in DeltaTable(folder / "lake" / table).to_pyarrow_table().to_pylist():
            found.append((row["metadata"]["order"], (row["after"] or {}).get("note")))
    return sorted(found)


def expected() -> list[tuple[int, str | None]]:
    return [(number, (event(number).after or {}).get("note")) for number in range(EVENTS)]


def left_behind(folder: Path) -> set[str]:
    """Return the data files that no commit names, and what the staging folder still has."""
    left = {path.name for path in folder.glob("checkpoint/staging/.penstock-staging/*/*/g*")}
    for table in TABLES:
        named = {uri.rpartition("/")[2] for uri in DeltaTable(folder / "lake" / table).file_uris()}
        left |= {path.name for path in (folder / "lake" / table).glob("*.parquet")} - named
    return left


@contextmanager
def killed_at(crash: CrashPoint) -> Iterator[None]:
    """Let every request to the table and every file, in tasks and driver, be a point where the process may die."""

    def guarded(function: Any) -> Any:
        def call(*arguments: Any, **options: Any) -> Any:
            return crash.request(lambda: function(*arguments, **options))

        return call

    with pytest.MonkeyPatch.context() as patch:
        for owner, names in (
            (LocalStore, ("create", "delete", "sync")),
            (LocalFolder, ("create", "length")),
            (DeltaTable, ("__init__", "create_write_transaction")),
            (deltalake, ("write_deltalake",)),
        ):
            for name in names:
                patch.setattr(owner, name, guarded(getattr(owner, name)))
        patch.setattr(DeltaTable, "create", staticmethod(guarded(DeltaTable.create)))
        yield


def test_a_kill_at_any_step_loses_and_doubles_no_row_and_leaves_no_file(
    tmp_path: Path, campaign: Any
) -> None:
    crash = CrashPoint()
    with killed_at(crash):
        run(tmp_path / "whole")
    assert rows(tmp_path / "whole") == expected()
    steps = [(number, before) for number in range(crash.count) for before in (True, False)]
    assert len(steps) > 100
    rng, killed = campaign.random("steps"), 0
    for number, before in rng.sample(steps, campaign.size(12, len(steps))):
        folder = tmp_path / f"{number}-{before}"
        crash.start(number, before)
        with killed_at(crash):
            try:
                run(folder)
            except (Crash, EpochFailedError):
                killed += 1
        crash.restart()
        run(folder)
        assert rows(folder) == expected(), (number, before)
        assert left_behind(folder) == set(), (number, before)
    assert killed


def test_files_of_a_failed_epoch_are_deleted_and_no_others(tmp_path: Path) -> None:
    failed = False

    def faulty(epoch: Any) -> Any:
        def tried(record: Any, attempt: Any) -> Any:
            nonlocal failed
            state = epoch(record, attempt)
            if state is not None and state.publications and not failed:
                failed = True
                raise RuntimeError("the epoch fails after its tasks have written files")
            return state

        return tried

    with pytest.raises(EpochFailedError):
        run(tmp_path, faulty=faulty)
    orphans = set(tmp_path.glob("lake/*/*.parquet"))
    assert len(orphans) == 2
    run(tmp_path)
    assert not any(path.exists() for path in orphans)
    assert rows(tmp_path) == expected()
    assert left_behind(tmp_path) == set()


def test_the_driver_decodes_no_event(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The driver asks the tables, and commits names: it neither reads a file nor makes rows."""
    published = DeltaTarget.publish_files

    def publish(self: DeltaTarget, *arguments: Any) -> Any:
        with pytest.MonkeyPatch.context() as patch:
            for name in ("change_rows", "fitted", "parquet_file", "events_of_epoch"):
                patch.setattr(f"penstock.io.columnar.log_target.{name}", refused)
            return published(self, *arguments)

    def refused(*arguments: Any, **options: Any) -> None:
        raise AssertionError("the driver works on rows")

    monkeypatch.setattr(DeltaTarget, "publish_files", publish)
    run(tmp_path)
    assert rows(tmp_path) == expected()
    assert len(list(tmp_path.glob("lake/*/*.parquet"))) == 6, "one file for each table and epoch"


def test_the_driver_leaves_no_intent_to_the_clean_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So the clean-up asks the tables only after a failure."""
    asked: list[Any] = []
    monkeypatch.setattr(DeltaTarget, "delete_unnamed", lambda self, files: asked.extend(files))
    run(tmp_path)
    assert asked == []
    assert left_behind(tmp_path) == set()


def test_a_checkpoint_of_an_earlier_version_is_resumed(tmp_path: Path) -> None:
    """It holds events of all tables in one shard, and a publication with events."""
    target = DeltaTarget(f"{tmp_path}/lake/{{table}}", "log", "evolve")
    earlier = PublishEpochs(target, EventBlocks(RecordBlockCoder().encode), shards=1, roll_seconds=0)
    now = publish_tables(target, options=StagingOptions(roll_seconds=0))
    commits = 0

    def has_staged(record: Any) -> bool:
        nonlocal commits
        commits += bool(record.state.publications)
        return commits == 2

    run(tmp_path, earlier, stop=has_staged)
    assert len(rows(tmp_path)) == 8, "the second publication waits"
    run(tmp_path, now)
    assert rows(tmp_path) == expected()
    assert left_behind(tmp_path) == set()


def test_a_table_that_is_left_out_after_its_files_were_written_keeps_none_of_them(tmp_path: Path) -> None:
    from penstock.tables import TableSelection

    sink = WriteToDelta(str(tmp_path / "lake" / "{table}"), mode="log", roll_seconds=0)
    run(tmp_path, sink, stop=lambda record: bool(record.state.publications))
    run(tmp_path, sink.selecting(TableSelection(without_tables=("items",))))
    assert [path.name for path in tmp_path.glob("lake/items/*")] == []
    found = DeltaTable(tmp_path / "lake" / "orders").to_pyarrow_table()
    assert found.num_rows == EVENTS // 2


@pytest.mark.parametrize(
    ("owner", "name"),
    [(LocalFolder, "create"), (DeltaTable, "create_write_transaction")],
    ids=["a file of a task", "the commit of the table"],
)
def test_a_kill_right_after_a_step_leaves_no_file_without_a_commit(
    tmp_path: Path, owner: Any, name: str
) -> None:
    crash, step = CrashPoint(), getattr(owner, name)
    crash.start(1, before=False)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(owner, name, lambda *given, **named: crash.request(lambda: step(*given, **named)))
        with pytest.raises((Crash, EpochFailedError)):
            run(tmp_path)
    run(tmp_path)
    assert rows(tmp_path) == expected()
    assert left_behind(tmp_path) == set()
