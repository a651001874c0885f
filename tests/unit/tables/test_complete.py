"""Delta and Iceberg tables that say until when they are complete."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable, write_deltalake
from pyiceberg.catalog import load_catalog

from penstock.attempt import offering_staging
from penstock.compat import UTC
from penstock.errors import UsageError
from penstock.event import Kind, Source
from penstock.io import delta, iceberg
from penstock.io.delta.target import DeltaTarget
from penstock.io.iceberg.target import IcebergTarget
from penstock.io.staging import TargetUnavailableError
from penstock.io.staging.publish_epochs import PublishBatches
from penstock.tables import TableSelection
from tests.support.catalogs import catalog_in
from tests.unit.formats.events import event_of, schema_of
from tests.unit.tables.histories import Writer
from tests.unit.tables.test_delta import batches

NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)


def us(at: datetime) -> int:
    return (at - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)


@dataclass
class Lake:
    """A sink of tables, in one format. `times` reads the marks of a table, `commits` counts its commits."""

    folder: Path
    target: Any
    times: Callable[[str], dict[str, datetime]]
    commits: Callable[[str], int]

    def sink(self, name: str = "sink") -> PublishBatches:
        return PublishBatches(self.target, name, None, 10.0)

    def publish(self, sink: PublishBatches, events: list[Any], epoch: int) -> None:
        with offering_staging(str(self.folder / "staging")):
            sink(batches(events, epoch))

    def mark(self, sink: PublishBatches, record: int, at: datetime) -> None:
        with offering_staging(str(self.folder / "staging")):
            sink.mark_complete("job", record, us(at))


def delta_lake(folder: Path, mode: Any, marked: bool = True) -> Lake:
    uri = f"{folder}/lake/{{table}}"
    target = DeltaTarget(uri, mode, "evolve", mark_seconds=60 if marked else None)
    return Lake(
        folder,
        target,
        lambda table: delta.complete_until(folder / "lake" / table),
        lambda table: DeltaTable(folder / "lake" / table).version(),
    )


def iceberg_lake(folder: Path, mode: Any, marked: bool = True) -> Lake:
    properties = catalog_in(folder)
    target = IcebergTarget(
        "shop.{table}", "test", mode, "evolve", properties, mark_seconds=60 if marked else None
    )
    return Lake(
        folder,
        target,
        lambda table: iceberg.complete_until(f"shop.{table}", catalog="test", catalog_properties=properties),
        lambda table: len(
            load_catalog("test", **properties).load_table(f"shop.{table}").metadata.metadata_log
        ),
    )


LAKES = {"delta": delta_lake, "iceberg": iceberg_lake}


@pytest.fixture(params=LAKES)
def make_lake(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[..., Lake]:
    make = LAKES[request.param]
    return lambda mode="current", **more: make(tmp_path, mode, **more)


def table_of(writer: Writer) -> str:
    return str(writer.changes(1)[0].source.table)


@pytest.mark.parametrize("mode", ["current", "log"])
def test_the_time_of_a_table_moves_on_without_rows_and_never_back(make_lake, mode: Any) -> None:
    lake, writer = make_lake(mode), Writer(1)
    sink = lake.sink()
    lake.publish(sink, writer.changes(3), 5)
    table = table_of(writer)
    assert lake.times(table) == {}
    lake.mark(sink, 10, NOON)
    assert lake.times(table) == {"job": NOON}
    lake.mark(sink, 11, NOON + timedelta(microseconds=1))
    assert lake.times(table) == {"job": NOON + timedelta(microseconds=1)}
    # A driver that was paused wakes up.
    lake.mark(sink, 9, NOON - timedelta(seconds=1))
    assert lake.times(table) == {"job": NOON + timedelta(microseconds=1)}
    lake.publish(sink, writer.changes(3), 12)
    assert lake.times(table) == {"job": NOON + timedelta(microseconds=1)}


def test_a_driver_that_is_paused_in_the_middle_of_a_mark_does_not_put_the_time_back(
    make_lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake, writer = make_lake(), Writer(1)
    lake.publish(lake.sink(), writer.changes(3), 5)
    kind = type(lake.target)
    original = kind._mark

    def pause(self: Any, table: Any, mark: Any) -> None:
        """The table is open; now the successor writes a newer mark."""
        monkeypatch.setattr(kind, "_mark", original)
        original(self, self._open(name), type(mark).of("job", "sink", 12, us(NOON + timedelta(seconds=9))))
        original(self, table, mark)

    name = next(iter(lake.target.written)).name
    monkeypatch.setattr(kind, "_mark", pause)
    # A commit of Delta is refused. A property of Iceberg is written, and does not count.
    with suppress(TargetUnavailableError):
        lake.mark(lake.sink(), 10, NOON)
    assert lake.times(table_of(writer)) == {"job": NOON + timedelta(seconds=9)}


def test_a_table_of_two_sinks_is_complete_when_both_are(make_lake) -> None:
    lake, writer = make_lake(), Writer(1)
    for number, name in enumerate(("one", "two")):
        sink = lake.sink(name)
        lake.publish(sink, writer.changes(3), 5)
        lake.mark(sink, 10, NOON + timedelta(seconds=number))
    assert lake.times(table_of(writer)) == {"job": NOON}


def test_idle_tables_get_marks_from_the_next_driver_too(make_lake) -> None:
    lake = make_lake()
    schema = schema_of({"id": Kind.INT64})
    events = [
        event_of(schema, after={"id": 1}, source=Source("spanner", "p/i", "shop", "", table))
        for table in ("first", "second")
    ]
    lake.publish(lake.sink(), events, 5)
    lake.mark(lake.sink(), 10, NOON)
    assert lake.times("first") == lake.times("second") == {"job": NOON}
    # The sink writes one of them no more.
    lake.target = lake.target.selecting(TableSelection(without_tables=("second",)))
    lake.mark(lake.sink(), 11, NOON + timedelta(seconds=1))
    assert (lake.times("first"), lake.times("second")) == (
        {"job": NOON + timedelta(seconds=1)},
        {"job": NOON},
    )


def test_without_the_option_there_is_no_mark(make_lake) -> None:
    lake, writer = make_lake(marked=False), Writer(1)
    sink = lake.sink()
    lake.publish(sink, writer.changes(3), 5)
    table = table_of(writer)
    before = lake.commits(table)
    lake.mark(sink, 10, NOON)
    assert (lake.times(table), lake.commits(table)) == ({}, before)
    assert not list(lake.folder.glob("staging/**/table_*"))


def test_commits_of_other_writers_of_a_delta_table_are_no_marks(tmp_path: Path) -> None:
    from deltalake import CommitProperties

    lake, writer = delta_lake(tmp_path, "log"), Writer(1)
    sink = lake.sink()
    lake.publish(sink, writer.changes(3), 5)
    lake.mark(sink, 10, NOON)
    table = DeltaTable(tmp_path / "lake" / table_of(writer))
    for text in ("nightly job", '{"complete_until": 1}'):
        rows = table.to_pyarrow_table().slice(0, 0)
        write_deltalake(
            table, rows, mode="append", commit_properties=CommitProperties({"userMetadata": text})
        )
    assert lake.times(table_of(writer)) == {"job": NOON}
    assert delta.complete_until(tmp_path / "lake" / table_of(writer), commits=2) == {}


def test_the_time_between_marks_is_checked(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="mark_complete_seconds must be 0 or more, got -1"):
        delta.WriteToDelta(tmp_path, mark_complete=True, mark_complete_seconds=-1)
    sink = delta.WriteToDelta(tmp_path, mark_complete=True)
    assert sink.mark_seconds == 60
    assert delta.WriteToDelta(tmp_path).mark_seconds is None
