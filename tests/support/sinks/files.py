"""Targets that are files: JSON Lines, Parquet in both layouts and Avro, and the folders of a function of Spark."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import apache_beam as beam
import pytest

from penstock.event import ChangeEvent
from penstock.io.staging.local import LocalStore
from penstock_emulators.oracle.kill import FileAppears, Moment
from tests.support.sinks.faults import feed_faults, log_faults
from tests.support.sinks.source import BAD_OWNER, Truth, owner_key
from tests.support.sinks.spark_examples import example
from tests.support.sinks.target import Options, Refused, TargetUnderTest, apply, carry_calls


def line_of(event: ChangeEvent) -> dict[str, Any]:
    """The line of an event in the JSON files."""
    owner, slot = owner_key(event)
    return {"owner": owner, "slot": slot, "time": event.timestamp}


class Files(TargetUnderTest):
    """JSON Lines, Parquet in both layouts and Avro on a local disk."""

    error_outputs = ("parquet", "feed", "avro")
    # The driver of the runner claims the output, see tests/simulation/staging/test_owner.py.
    has_ledger = False

    def create(self, place: str) -> None:
        self._output = self.folder / place

    def options(self) -> Options:
        return {"output": str(self._output)}

    @staticmethod
    def write(events: beam.PCollection[ChangeEvent], *, error_output: bool = True, **options: Any) -> Refused:
        from penstock.io.files import WriteToAvro, WriteToJsonLines, WriteToParquet

        output, rolled = options["output"], {"shards": 2, "roll_seconds": options.get("roll_seconds", 0.5)}
        _ = events | "JSON" >> WriteToJsonLines(
            f"{output}/json", table="counts", key=owner_key, format=line_of, **rolled
        )
        return {
            **apply(events, "parquet", WriteToParquet(f"{output}/parquet", **rolled), error_output),
            **apply(events, "feed", WriteToParquet(f"{output}/feed", layout="table", **rolled), error_output),
            **apply(events, "avro", WriteToAvro(f"{output}/avro", **rolled), error_output),
        }

    def carry(self, patch: pytest.MonkeyPatch) -> None:
        carry_calls(self.network, patch, LocalStore, ("create", "move", "delete"), OSError)

    def publishing(self) -> Moment:
        return FileAppears(self._output / "json", "counts/*/*.jsonl")

    def faults(self, truth: Truth) -> list[str]:
        json_ = [entry for entry in self._json() if entry[0] != BAD_OWNER]
        faults = log_faults("JSON Lines", json_, truth)
        faults += feed_faults("Parquet with layout=table", self._parquet("feed"), truth)
        return faults + [
            fault
            for name, entries in (
                ("Parquet", map(change_row, self._parquet("parquet"))),
                ("Avro", self._avro()),
            )
            for fault in log_faults(name, entries, truth)
        ]

    def figures(self) -> dict[str, Any]:
        return {"files": {name: len(list(self._files(name))) for name in ("json", "parquet", "feed", "avro")}}

    def _files(self, kind: str) -> Iterable[Path]:
        found = [path for path in (self._output / kind).rglob("*") if path.is_file()]
        return sorted(
            (path for path in found if not any(part.startswith(".") for part in path.parts)),
            key=lambda path: path.parts,
        )

    def _json(self) -> list[tuple[str, int, int]]:
        lines = [json.loads(line) for path in self._files("json") for line in path.read_bytes().splitlines()]
        return [(line["owner"], line["slot"], line["time"]) for line in lines]

    def _parquet(self, kind: str) -> list[dict[str, Any]]:
        import pyarrow.parquet

        tables = [pyarrow.parquet.ParquetFile(path).read() for path in self._files(kind)]
        return [row for table in tables for row in table.to_pylist()]

    def _avro(self) -> list[tuple[str, int, int]]:
        import fastavro

        found = []
        for path in self._files("avro"):
            with path.open("rb") as file:
                found += [change_row(row) for row in fastavro.reader(file)]
        return found


def change_row(row: dict[str, Any]) -> tuple[str, int, int]:
    """Return the entry of a log from a change row."""
    return row["key"]["owner"], row["key"]["slot"], round(row["timestamp"].timestamp()) * 1_000_000_000


@dataclass(frozen=True, slots=True)
class ToParquet:
    """The function `to_parquet` of the page of the sink, as a value that can be pickled."""

    lake: str

    def __call__(self, dataframe: Any, epoch_id: int) -> None:
        example("to_parquet", LAKE=self.lake)(dataframe, epoch_id)


@dataclass(frozen=True)
class SayComplete:
    """The function `say_complete` of the page of the sink, as a value that can be pickled."""

    lake: str

    def __call__(self, complete_until: datetime, record: int) -> None:
        example("say_complete", LAKE=self.lake)(complete_until, record)


class Spark(TargetUnderTest):
    """A function of a DataFrame that writes Parquet, one folder for each id."""

    error_outputs = ("spark",)
    marked = "spark"
    has_ledger = False

    def create(self, place: str) -> None:
        self._lake = self.folder / place

    def options(self) -> Options:
        return {"lake": str(self._lake)}

    @staticmethod
    def write(events: beam.PCollection[ChangeEvent], *, error_output: bool = True, **options: Any) -> Refused:
        from penstock.io.spark import WriteToSpark

        sink = WriteToSpark(
            ToParquet(options["lake"]),
            mark_complete=SayComplete(options["lake"]),
            shards=2,
            roll_seconds=options.get("roll_seconds", 0),
        )
        return apply(events, "spark", sink, error_output)

    def carry(self, patch: pytest.MonkeyPatch) -> None:
        carry_calls(self.network, patch, ToParquet, ("__call__",), ConnectionError)

    def publishing(self) -> Moment:
        # The function has begun to write, and has not renamed the folder.
        return FileAppears(self._lake, ".attempt-*")

    def complete(self) -> dict[str, datetime]:
        marks = sorted(self._lake.glob("_complete/[0-9]*"))
        return {"job": datetime.fromisoformat(marks[-1].read_text())} if marks else {}

    def log(self) -> list[tuple[str, int, int]]:
        import duckdb

        rows = duckdb.sql(
            "select key, epoch_ns(timestamp) "
            f"from read_parquet('{self._lake}/epoch=*/*.parquet', hive_partitioning=true) "
            "order by epoch, metadata.version"
        ).fetchall()
        return [(*json.loads(key).values(), time) for key, time in rows]

    def faults(self, truth: Truth) -> list[str]:
        return log_faults("Spark", self.log(), truth)

    def figures(self) -> dict[str, Any]:
        return {"epochs": len(list(self._lake.glob("epoch=*")))}
