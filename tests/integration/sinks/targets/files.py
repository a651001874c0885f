"""Targets that are files: JSON Lines, Parquet and Avro, and the folders of a function of Spark."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import apache_beam as beam

from penstock.event import ChangeEvent
from tests.integration.sinks.source import BAD_OWNER, Truth, owner_key
from tests.integration.sinks.spark_examples import example
from tests.integration.sinks.targets.faults import log_faults
from tests.integration.sinks.targets.target import Options, Refused, TargetUnderTest
from tests.oracle.kill import FileAppears, Moment


def line_of(event: ChangeEvent) -> dict[str, Any]:
    """The line of an event in the JSON files."""
    owner, slot = owner_key(event)
    return {"owner": owner, "slot": slot, "time": event.timestamp}


class Files(TargetUnderTest):
    """JSON Lines, Parquet and Avro on a local disk."""

    def options(self) -> Options:
        return {"output": str(self.folder)}

    @staticmethod
    def write(events: beam.PCollection[ChangeEvent], **options: Any) -> Refused:
        from penstock.io.files import WriteToAvro, WriteToJsonLines, WriteToParquet

        output, rolled = options["output"], {"shards": 2, "roll_seconds": options.get("roll_seconds", 0.5)}
        _ = events | "JSON" >> WriteToJsonLines(
            f"{output}/json", table="counts", key=owner_key, format=line_of, **rolled
        )
        parquet = WriteToParquet(f"{output}/parquet", **rolled).with_exception_handling()
        avro = WriteToAvro(f"{output}/avro", **rolled).with_exception_handling()
        return {"parquet": (events | "Parquet" >> parquet)[1], "avro": (events | "Avro" >> avro)[1]}

    def publishing(self) -> Moment:
        return FileAppears(self.folder / "json", "counts/*/*.jsonl")

    def faults(self, truth: Truth) -> list[str]:
        json_ = [entry for entry in self._json() if entry[0] != BAD_OWNER]
        faults = log_faults("JSON Lines", json_, truth)
        return faults + [
            fault
            for name, entries in (("Parquet", self._parquet()), ("Avro", self._avro()))
            for fault in log_faults(name, entries, truth)
        ]

    def figures(self) -> dict[str, Any]:
        return {"files": {name: len(list(self._files(name))) for name in ("json", "parquet", "avro")}}

    def _files(self, kind: str) -> Iterable[Path]:
        found = [path for path in (self.folder / kind).rglob("*") if path.is_file()]
        return sorted(
            (path for path in found if not any(part.startswith(".") for part in path.parts)),
            key=lambda path: path.parts,
        )

    def _json(self) -> list[tuple[str, int, int]]:
        lines = [json.loads(line) for path in self._files("json") for line in path.read_bytes().splitlines()]
        return [(line["owner"], line["slot"], line["time"]) for line in lines]

    def _parquet(self) -> list[tuple[str, int, int]]:
        import pyarrow.parquet

        tables = [
            pyarrow.parquet.ParquetFile(path).read(["key", "timestamp"]) for path in self._files("parquet")
        ]
        return [change_row(row) for table in tables for row in table.to_pylist()]

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


class Spark(TargetUnderTest):
    """A function of a DataFrame that writes Parquet, one folder for each id."""

    def options(self) -> Options:
        return {"lake": str(self.folder / "lake")}

    @staticmethod
    def write(events: beam.PCollection[ChangeEvent], **options: Any) -> Refused:
        from penstock.io.spark import WriteToSpark

        sink = WriteToSpark(ToParquet(options["lake"]), shards=2).with_exception_handling()
        return {"spark": (events | "Spark" >> sink)[1]}

    def publishing(self) -> Moment:
        # The function has begun to write, and has not renamed the folder.
        return FileAppears(self.folder / "lake", ".attempt-*")

    def faults(self, truth: Truth) -> list[str]:
        import duckdb

        rows = duckdb.sql(
            "select key, epoch_ns(timestamp) "
            f"from read_parquet('{self.folder}/lake/epoch=*/*.parquet', hive_partitioning=true) "
            "order by epoch, metadata.version"
        ).fetchall()
        entries = [(*json.loads(key).values(), time) for key, time in rows]
        return log_faults("Spark", entries, truth)

    def figures(self) -> dict[str, Any]:
        return {"epochs": len(list((self.folder / "lake").glob("epoch=*")))}
