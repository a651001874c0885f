"""Change logs whose files are written by tasks, on the real driver and tasks in this process, killed at every step."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import apache_beam as beam
import deltalake
import pytest
from apache_beam.testing.test_stream import TestStream
from deltalake import DeltaTable
from pyiceberg.catalog import load_catalog
from pyiceberg.catalog.sql import SqlCatalog

from penstock.event import ChangeEvent, Kind, Op, Source, Version
from penstock.io.columnar.publish_tables import publish_tables
from penstock.io.delta import WriteToDelta
from penstock.io.delta.folder import LocalFolder
from penstock.io.delta.target import DeltaTarget
from penstock.io.iceberg import WriteToIceberg
from penstock.io.iceberg.files import FilesOfIo
from penstock.io.iceberg.target import IcebergTarget
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


class Delta:
    """Delta tables in the folder `lake`."""

    target = DeltaTarget
    made_by = "penstock.io.delta.files"
    steps = ((LocalFolder, "create"), (DeltaTable, "create_write_transaction"))

    def __init__(self, folder: Path) -> None:
        self.uri = str(folder / "lake" / "{table}")

    def sink(self, **options: Any) -> Any:
        return WriteToDelta(self.uri, mode="log", roll_seconds=0, **options)

    def open(self) -> DeltaTarget:
        return DeltaTarget(self.uri, "log", "evolve")

    def rows(self, table: str) -> list[Any]:
        return DeltaTable(self.uri.format(table=table)).to_pyarrow_table().to_pylist()

    def named(self, table: str) -> set[str]:
        return {uri.rpartition("/")[2] for uri in DeltaTable(self.uri.format(table=table)).file_uris()}

    @staticmethod
    def requests(patch: pytest.MonkeyPatch, guarded: Callable[[Any], Any]) -> None:
        """Put `guarded` around every request to tables and files."""
        guard(patch, guarded, LocalFolder, "create", "length")
        guard(patch, guarded, DeltaTable, "__init__", "create_write_transaction")
        guard(patch, guarded, deltalake, "write_deltalake")
        patch.setattr(DeltaTable, "create", staticmethod(guarded(DeltaTable.create)))


class Iceberg:
    """Iceberg tables below the folder `lake`, with a catalogue in SQLite."""

    target = IcebergTarget
    made_by = "penstock.io.iceberg.files"
    steps = ((FilesOfIo, "create"), (SqlCatalog, "commit_table"))

    def __init__(self, folder: Path) -> None:
        (folder / "lake").mkdir(parents=True, exist_ok=True)
        uri, warehouse = f"sqlite:///{folder}/lake/catalog.db", f"file://{folder}/lake"
        self.properties = {"type": "sql", "uri": uri, "warehouse": warehouse}

    def sink(self, **options: Any) -> Any:
        properties = self.properties
        return WriteToIceberg(
            "shop.{table}", catalog_properties=properties, mode="log", roll_seconds=0, **options
        )

    def open(self) -> IcebergTarget:
        return IcebergTarget("shop.{table}", "default", "log", "evolve", self.properties)

    def rows(self, table: str) -> list[Any]:
        found: list[Any] = self._table(table).scan().to_arrow().to_pylist()
        return found

    def named(self, table: str) -> set[str]:
        return {each.file.file_path.rpartition("/")[2] for each in self._table(table).scan().plan_files()}

    def _table(self, table: str) -> Any:
        return load_catalog("default", **self.properties).load_table(f"shop.{table}")

    @staticmethod
    def requests(patch: pytest.MonkeyPatch, guarded: Callable[[Any], Any]) -> None:
        """Put `guarded` around every request to tables and files."""
        guard(patch, guarded, FilesOfIo, "create", "length")
        guard(patch, guarded, SqlCatalog, "load_table", "create_table", "commit_table")


def guard(patch: pytest.MonkeyPatch, guarded: Callable[[Any], Any], owner: Any, *names: str) -> None:
    for name in names:
        patch.setattr(owner, name, guarded(getattr(owner, name)))


@pytest.fixture(params=[Delta, Iceberg])
def lake(request: pytest.FixtureRequest) -> Any:
    """A kind of tables: a class whose objects are lakes in a folder."""
    return request.param


def run(lake: Any, folder: Path, sink: beam.PTransform | None = None, **options: Any) -> None:
    sink = sink or lake(folder).sink()
    run_stream(lambda p: p | stream() | "Sink" >> sink, folder=folder, cleans_up=True, **options)


def rows(lake: Any, folder: Path) -> list[tuple[int, str | None]]:
    found = []
    for table in TABLES:
        for row in lake(folder).rows(table):
            found.append((row["metadata"]["order"], (row["after"] or {}).get("note")))
    return sorted(found)


def expected() -> list[tuple[int, str | None]]:
    return [(number, (event(number).after or {}).get("note")) for number in range(EVENTS)]


def files(folder: Path) -> set[Path]:
    """Return the data files of all tables."""
    return set((folder / "lake").rglob("*.parquet"))


def left_behind(lake: Any, folder: Path) -> set[str]:
    """Return the data files that no commit names, and what the staging folder still has."""
    left = {path.name for path in folder.glob("checkpoint/staging/.penstock-staging/*/*/g*")}
    named = {name for table in TABLES for name in lake(folder).named(table)}
    return left | {path.name for path in files(folder)} - named


@contextmanager
def killed_at(lake: Any, crash: CrashPoint) -> Iterator[None]:
    """Let every request to the table and every file, in tasks and driver, be a point where the process may die."""

    def guarded(function: Any) -> Any:
        def call(*arguments: Any, **options: Any) -> Any:
            return crash.request(lambda: function(*arguments, **options))

        return call

    with pytest.MonkeyPatch.context() as patch:
        guard(patch, guarded, LocalStore, "create", "delete", "sync")
        lake.requests(patch, guarded)
        yield


@pytest.mark.long_cases("Iceberg", seconds=15)
@pytest.mark.parametrize(
    "partition_by", [[], pytest.param(["op"], marks=pytest.mark.long(seconds=10), id="partitions")]
)
def test_a_kill_at_any_step_loses_and_doubles_no_row_and_leaves_no_file(
    lake: Any, tmp_path: Path, campaign: Any, partition_by: list[str]
) -> None:
    crash = CrashPoint()

    def run_once(folder: Path) -> None:
        run(lake, folder, lake(folder).sink(partition_by=partition_by))

    with killed_at(lake, crash):
        run_once(tmp_path / "whole")
    assert rows(lake, tmp_path / "whole") == expected()
    steps = [(number, before) for number in range(crash.count) for before in (True, False)]
    assert len(steps) > 100
    rng, killed = campaign.random("steps"), 0
    for number, before in rng.sample(steps, campaign.size(12, len(steps))):
        folder = tmp_path / f"{number}-{before}"
        crash.start(number, before)
        with killed_at(lake, crash):
            try:
                run_once(folder)
            except (Crash, EpochFailedError):
                killed += 1
        crash.restart()
        run_once(folder)
        assert rows(lake, folder) == expected(), (number, before)
        assert left_behind(lake, folder) == set(), (number, before)
    assert killed


@pytest.mark.long_cases("Iceberg", seconds=5)
def test_files_of_a_failed_epoch_are_deleted_and_no_others(lake: Any, tmp_path: Path) -> None:
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
        run(lake, tmp_path, faulty=faulty)
    orphans = files(tmp_path)
    assert len(orphans) == 2
    run(lake, tmp_path)
    assert not any(path.exists() for path in orphans)
    assert rows(lake, tmp_path) == expected()
    assert left_behind(lake, tmp_path) == set()


def test_the_driver_decodes_no_event(lake: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The driver asks the tables, and commits names: it neither reads a file nor makes rows, of new columns either."""
    published = lake.target.publish_files

    def publish(self: Any, *arguments: Any) -> Any:
        with pytest.MonkeyPatch.context() as patch:
            for name in (
                "log_layout.change_rows",
                "log_target.fitted",
                "log_parts._read",
                "log_target.events_of_epoch",
            ):
                patch.setattr(f"penstock.io.columnar.{name}", refused)
            patch.setattr(f"{lake.made_by}.parquet_file", refused)
            return published(self, *arguments)

    def refused(*arguments: Any, **options: Any) -> None:
        raise AssertionError("the driver works on rows")

    monkeypatch.setattr(lake.target, "publish_files", publish)
    run(lake, tmp_path)
    assert rows(lake, tmp_path) == expected()
    assert len(files(tmp_path)) == 6, "one file for each table and epoch"


def test_the_driver_leaves_no_intent_to_the_clean_up(
    lake: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So the clean-up asks the tables only after a failure."""
    asked: list[Any] = []
    monkeypatch.setattr(lake.target, "delete_unnamed", lambda self, files: asked.extend(files))
    run(lake, tmp_path)
    assert asked == []
    assert left_behind(lake, tmp_path) == set()


def test_a_checkpoint_of_an_earlier_version_is_resumed(lake: Any, tmp_path: Path) -> None:
    """It holds events of all tables in one shard, and a publication with events."""
    target = lake(tmp_path).open()
    earlier = PublishEpochs(target, EventBlocks(RecordBlockCoder().encode), shards=1, roll_seconds=0)
    now = publish_tables(target, options=StagingOptions(roll_seconds=0))
    commits = 0

    def has_staged(record: Any) -> bool:
        nonlocal commits
        commits += bool(record.state.publications)
        return commits == 2

    run(lake, tmp_path, earlier, stop=has_staged)
    assert len(rows(lake, tmp_path)) == 8, "the second publication waits"
    run(lake, tmp_path, now)
    assert rows(lake, tmp_path) == expected()
    assert left_behind(lake, tmp_path) == set()


def test_a_table_that_is_left_out_after_its_files_were_written_keeps_none_of_them(
    lake: Any, tmp_path: Path
) -> None:
    from penstock.tables import TableSelection

    sink = lake(tmp_path).sink()
    run(lake, tmp_path, sink, stop=lambda record: bool(record.state.publications))
    run(lake, tmp_path, sink.selecting(TableSelection(without_tables=("items",))))
    assert {path.name for path in files(tmp_path)} == lake(tmp_path).named("orders")
    assert len(lake(tmp_path).rows("orders")) == EVENTS // 2


@pytest.mark.long_cases("Iceberg", seconds=5)
@pytest.mark.parametrize("step", [0, 1], ids=["a file of a task", "the commit of the table"])
def test_a_kill_right_after_a_step_leaves_no_file_without_a_commit(
    lake: Any, tmp_path: Path, step: int
) -> None:
    crash, (owner, name) = CrashPoint(), lake.steps[step]
    call = getattr(owner, name)
    crash.start(1, before=False)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(owner, name, lambda *given, **named: crash.request(lambda: call(*given, **named)))
        with pytest.raises((Crash, EpochFailedError)):
            run(lake, tmp_path)
    run(lake, tmp_path)
    assert rows(lake, tmp_path) == expected()
    assert left_behind(lake, tmp_path) == set()
