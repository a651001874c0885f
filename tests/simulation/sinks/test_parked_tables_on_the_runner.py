"""Parked tables on the real driver, tasks and checkpoint, in this process; the targets are Delta and Iceberg."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.testing.test_stream import TestStream

from penstock.event import ChangeEvent, Column, ColumnType, Kind, Op, Source, TableSchema, Version
from penstock.io.columnar.table_rows import Mode
from penstock.io.delta import WriteToDelta
from penstock.io.iceberg import WriteToIceberg
from penstock.parked import ParkedTable, TableAction, TableRequest
from penstock.runner.protocol.complete import complete_until_us, others_complete_until_us
from penstock.runner.protocol.errors import EpochFailedError
from penstock.runner.protocol.record import CommitRecord
from penstock.runner.remote import RemoteJob
from penstock.runner.store.checkpoint import Checkpoint
from penstock.tables import TableSelection
from tests.simulation.stream import run_stream
from tests.support.catalogs import catalog_in

pytestmark = pytest.mark.long(seconds=10)

TABLES = ("a", "b", "bad")
NUMBER, TEXT = ColumnType(Kind.INT64), ColumnType(Kind.STRING)


def event(table: str, number: int, value: Any, *, kind: ColumnType | None = None) -> ChangeEvent:
    """Return an event of a row of five, with `value` in the column v; event time and version are the number."""
    key = {"k": number % 5}
    schema = TableSchema((Column("k", NUMBER, False, 1), Column("v", kind or NUMBER)))
    source = Source("test", "srv", "shop", "public", table)
    after = {**key, "v": value}
    return ChangeEvent(
        source, Op.UPDATE, number * 10**9, key, None, after, Version(number, str(number)), schema
    )


def epochs(poisoned: range, last: int) -> list[list[ChangeEvent]]:
    """Return an epoch for each number: a change of each table. In `poisoned` the table bad sends texts."""
    return [
        [
            event(table, number, f"{number}", kind=TEXT)
            if table == "bad" and number in poisoned
            else event(table, number, number)
            for table in TABLES
        ]
        for number in range(1, last)
    ]


def rows(events: Sequence[Sequence[ChangeEvent]], table: str) -> dict[int, str]:
    """Return the rows that a target has after the events, values as text."""
    changes = [each for epoch in events for each in epoch if each.source.table == table]
    return {each.key["k"]: str(each.after["v"]) for each in changes if each.key and each.after}


def stream_of(events: Sequence[Sequence[ChangeEvent]]) -> TestStream:
    stream = TestStream()
    for each in events:
        stream = stream.add_elements(each).advance_watermark_to(each[0].timestamp // 10**9)
    return stream.advance_watermark_to_infinity()


class Delta:
    def __init__(self, folder: Path) -> None:
        self._folder = folder / "lake"

    def write(self, mode: Mode, **options: Any) -> beam.PTransform:
        return WriteToDelta(f"{self._folder}/{{table}}", mode=mode, roll_seconds=0, **options)

    def rows(self, table: str) -> list[dict[str, Any]]:
        from deltalake import DeltaTable

        return DeltaTable(self._folder / table).to_pyarrow_table().to_pylist()

    def make_text(self, table: str) -> None:
        """Do what a person does: give the column v the type that the source has now."""
        from deltalake import DeltaTable, write_deltalake

        found = DeltaTable(self._folder / table)
        held = found.to_pyarrow_table()
        place = held.schema.get_field_index("v")
        as_text = held.set_column(place, "v", held["v"].cast("string"))
        write_deltalake(found, as_text, mode="overwrite", schema_mode="overwrite")

    def commits(self, table: str) -> int:
        from deltalake import DeltaTable

        return DeltaTable(self._folder / table).version()

    def named(self, table: str) -> set[str]:
        """Return the names of the files that any version of the table has."""
        log = (self._folder / table / "_delta_log").glob("*.json")
        actions = [json.loads(line) for path in log for line in path.read_text().splitlines()]
        return {each["add"]["path"] for each in actions if "add" in each}


class Iceberg:
    def __init__(self, folder: Path) -> None:
        self._properties = catalog_in(folder)

    def write(self, mode: Mode, **options: Any) -> beam.PTransform:
        catalog = {"catalog": "test", "catalog_properties": self._properties}
        return WriteToIceberg("shop.{table}", mode=mode, roll_seconds=0, **catalog, **options)

    def _table(self, table: str) -> Any:
        from pyiceberg.catalog import load_catalog

        return load_catalog("test", **self._properties).load_table(f"shop.{table}")

    def rows(self, table: str) -> list[dict[str, Any]]:
        return self._table(table).scan().to_arrow().to_pylist()

    def make_text(self, table: str) -> None:
        from pyiceberg.types import StringType

        found = self._table(table)
        # Iceberg cannot change int to text: the old column gets another name.
        with found.update_schema() as update:
            update.rename_column("v", "v_number")
        with self._table(table).update_schema() as update:
            update.add_column("v", StringType())

    def commits(self, table: str) -> int:
        return len(self._table(table).history())

    def named(self, table: str) -> set[str]:
        return {each.file.file_path.rpartition("/")[2] for each in self._table(table).scan().plan_files()}


@pytest.fixture(params=[Delta])
def target(request: Any, tmp_path: Path) -> Any:
    return request.param(tmp_path)


class Job:
    """A pipeline whose source is `events`, which is stopped and started again."""

    def __init__(
        self, target: Any, events: Sequence[Sequence[ChangeEvent]], folder: Path, mode: Mode
    ) -> None:
        self._target, self._events, self._folder, self._mode = target, events, folder, mode
        self.records: list[CommitRecord] = []

    def run(
        self, stop: Callable[[CommitRecord], bool] = lambda record: False, **options: Any
    ) -> CommitRecord:
        options = {"on_refused_table": "park", **options}
        selection = options.pop("selection", None)
        write = self._target.write(self._mode, **options)
        if selection is not None:
            write = write.selecting(selection)
        return run_stream(
            lambda p: p | stream_of(self._events) | "To tables" >> write,
            folder=self._folder,
            stop=stop,
            on_commit=lambda record, _: self.records.append(record),
            cleans_up=True,
        )

    def run_until_parked(self, changes: int, **options: Any) -> CommitRecord:
        """Run until so many changes are parked."""
        return self.run(stop=lambda record: parked_changes(record) == changes, **options)

    @property
    def remote(self) -> RemoteJob:
        return RemoteJob(Checkpoint.existing(f"{self._folder}/checkpoint"))

    def ask(self, action: str) -> ParkedTable:
        (table,) = self.remote.parked("public.bad")
        self.remote.request_table(action, table)
        return table


def parked_changes(record: CommitRecord) -> int:
    return sum(each.table.changes for each in record.state.parked)


def live(target: Any, table: str) -> dict[int, str]:
    """Return the rows that are valid, values as text; each key once."""
    valid = [row for row in target.rows(table) if not row["_penstock_deleted"]]
    valid = [row for row in valid if row.get("_penstock_valid_to") is None]
    found = {row["k"]: str(row["v"] if row["v"] is not None else row["v_number"]) for row in valid}
    assert len(found) == len(valid), "a key is in the table twice"
    return found


@pytest.mark.parametrize(
    ("target", "mode"), [(Delta, "current"), (Delta, "history"), (Iceberg, "history")], indirect=["target"]
)
def test_a_refused_table_is_parked_and_exact_after_its_resume(
    target: Any, mode: Mode, tmp_path: Path
) -> None:
    events = epochs(range(4, 20), 20)
    job = Job(target, events, tmp_path, mode)
    job.run_until_parked(6)
    (parked,) = job.remote.parked()
    assert (parked.source, parked.changes) == ("public.bad", 6)
    assert "column v" in parked.reason
    assert "INT64 to STRING" in parked.reason
    written = [live(target, table) for table in ("a", "b", "bad")]
    assert written == [rows(events[:9], "a"), rows(events[:9], "b"), rows(events[:3], "bad")]
    target.make_text("bad")
    # A start without a request changes nothing, although the table would take the changes now.
    job.run_until_parked(9)
    assert live(target, "bad") == rows(events[:3], "bad")
    job.ask("resume")
    assert job.run().state.done
    assert [live(target, table) for table in TABLES] == [rows(events, table) for table in TABLES]
    if mode == "history":
        assert len(target.rows("bad")) == 19, "a version of a row is missing, or is there twice"
    assert not list(Path(f"{tmp_path}/checkpoint/staging").rglob("*.parked"))
    assert not job.remote._table_requests.all()


def test_the_time_of_a_sink_stands_still_while_a_table_is_parked_and_the_others_go_on(
    target: Any, tmp_path: Path
) -> None:
    job = Job(target, epochs(range(4, 12), 12), tmp_path, "current")
    job.run_until_parked(6)
    parked = [record for record in job.records if record.state.parked]
    step = parked[0].state.parked[0].transform
    first = complete_until_us(parked[0].state)[step]
    assert first is not None
    assert first <= 4_000_000, "the first refused change is at 4 s"
    assert {complete_until_us(each.state)[step] for each in parked} == {first}
    assert (others_complete_until_us(parked[-1].state)[step] or 0) >= 8_000_000
    assert job.remote.parked()[0].complete_us == first
    target.make_text("bad")
    job.ask("resume")
    job.run(stop=lambda record: not record.state.parked)
    times = [complete_until_us(record.state).get(step) for record in job.records]
    known = [each for each in times if each is not None]
    assert known == sorted(known)
    assert known[-1] > first


def test_a_table_is_refused_again_if_nobody_has_corrected_it(target: Any, tmp_path: Path) -> None:
    job = Job(target, epochs(range(2, 9), 9), tmp_path, "current")
    job.run_until_parked(2)
    before = job.ask("resume")
    job.run_until_parked(4)
    (after,) = job.remote.parked()
    assert (after.since_us, after.resuming) == (before.since_us, False)
    assert not job.remote._table_requests.all(), "the request is tried in each epoch"


def test_a_skipped_table_goes_on_with_the_next_changes(target: Any, tmp_path: Path, caplog: Any) -> None:
    events = epochs(range(3, 6), 12)
    job = Job(target, events, tmp_path, "current")
    job.run_until_parked(4)  # the last one is a number again
    job.ask("skip")
    assert job.run().state.done
    assert "4 changes" in caplog.text
    kept = [*events[:2], *events[6:]]
    assert [live(target, table) for table in TABLES] == [
        rows(events, "a"),
        rows(events, "b"),
        rows(kept, "bad"),
    ]


@pytest.mark.parametrize(
    ("target", "mode"),
    [(Delta, "current"), (Delta, "history"), (Iceberg, "current"), (Iceberg, "history")],
    indirect=["target"],
)
def test_a_refilled_table_loses_its_rows_and_goes_on_with_the_next_changes(
    target: Any, mode: Mode, tmp_path: Path, caplog: Any
) -> None:
    events = epochs(range(3, 6), 9)
    job = Job(target, events, tmp_path, mode)
    job.run_until_parked(4)  # the last one is a number again
    assert live(target, "bad") == {1: "1", 2: "2"}
    job.ask("refill")
    assert job.run().state.done
    assert "4 parked changes are dropped" in caplog.text
    assert live(target, "bad") == {2: "7", 3: "8"}
    assert [live(target, table) for table in ("a", "b")] == [rows(events, table) for table in ("a", "b")]
    assert not list(Path(f"{tmp_path}/checkpoint/staging").rglob("*.parked"))


def test_an_input_does_not_end_while_a_table_is_parked(target: Any, tmp_path: Path) -> None:
    events = epochs(range(2, 6), 6)
    job = Job(target, events, tmp_path, "current")
    with pytest.raises(
        EpochFailedError, match=r"input has ended, and 1 tables are parked.*penstock tables JOB resume"
    ):
        job.run()
    target.make_text("bad")
    job.ask("resume")
    assert job.run().state.done
    assert [live(target, table) for table in TABLES] == [rows(events, table) for table in TABLES]


def test_a_limit_stops_the_pipeline_and_names_the_table_and_both_commands(
    target: Any, tmp_path: Path
) -> None:
    job = Job(target, epochs(range(2, 40), 40), tmp_path, "current")
    text = r"max_parked_bytes=1500.*public\.bad.*resume public\.bad.*skip public\.bad"
    with pytest.raises(EpochFailedError, match=text):
        job.run(max_parked_bytes=1500)
    assert 0 < job.remote.parked()[0].size <= 1500


def test_stop_is_the_default_and_resumes_what_an_earlier_run_has_parked(target: Any, tmp_path: Path) -> None:
    events = epochs(range(3, 9), 9)
    job = Job(target, events, tmp_path, "current")
    job.run_until_parked(3)
    with pytest.raises(EpochFailedError, match=r"column v .* from INT64 to STRING"):
        job.run(on_refused_table="stop")
    target.make_text("bad")
    assert job.run(on_refused_table="stop").state.done
    assert [live(target, table) for table in TABLES] == [rows(events, table) for table in TABLES]


def test_parked_changes_of_a_table_that_is_left_out_are_not_written(target: Any, tmp_path: Path) -> None:
    events = epochs(range(3, 9), 9)
    job = Job(target, events, tmp_path, "current")
    job.run_until_parked(3)
    target.make_text("bad")
    job.ask("resume")
    selection = TableSelection(without_tables=("public.bad",))
    assert job.run(selection=selection).state.done
    assert live(target, "bad") == rows(events[:2], "bad")


def test_a_request_has_no_effect_on_a_later_parking(target: Any, tmp_path: Path) -> None:
    job = Job(target, epochs(range(2, 12), 12), tmp_path, "current")
    job.run_until_parked(2)
    (old,) = job.remote.last().state.parked
    job.ask("skip")
    job.run(stop=lambda record: any(each.table.since_us > old.table.since_us for each in record.state.parked))
    # As a driver that was killed after the commit leaves it.
    request = TableRequest(old.transform, old.table.name, old.table.since_us, TableAction.SKIP)
    job.remote._table_requests.put(request)
    before = parked_changes(job.remote.last())
    job.run(stop=lambda record: parked_changes(record) >= before + 2)
    assert not job.remote._table_requests.all()
