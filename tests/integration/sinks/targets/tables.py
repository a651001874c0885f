"""Targets that are tables of a lake: Delta and Iceberg."""

from __future__ import annotations

import sqlite3
import time
from typing import Any

import apache_beam as beam

from penstock.emulators.server_process import ServerProcess, free_port
from penstock.event import ChangeEvent
from tests.integration.sinks.source import Truth
from tests.integration.sinks.targets.faults import log_faults, replica_faults
from tests.integration.sinks.targets.target import Options, Refused, TargetUnderTest
from tests.oracle.kill import FileAppears, Moment


class Delta(TargetUnderTest):
    """Delta tables on an S3 server: current rows and the log."""

    outage = "the S3 server is killed and started again"
    _commits = 0

    def start(self) -> None:
        from tests.object_stores.servers import VERSITYGW

        self._kind, self._port = VERSITYGW, free_port()
        self._data = self.folder / "data"
        self._data.mkdir()
        self._kind.make_bucket(self._port, str(self._data))
        self.bring_back()

    def options(self) -> Options:
        storage = {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{self._port}",
            "AWS_ALLOW_HTTP": "true",
            **self._kind.environment,
        }
        return {"uri": "s3://bucket/lake", "storage_options": storage}

    @staticmethod
    def write(events: beam.PCollection[ChangeEvent], **options: Any) -> Refused:
        from penstock.io.delta import WriteToDelta

        refused = {}
        for mode in ("current", "log"):
            sink = WriteToDelta(
                f"{options['uri']}/{mode}",
                mode=mode,  # type: ignore[arg-type]
                storage_options=options["storage_options"],
                roll_seconds=options.get("roll_seconds", 1),
            )
            refused[f"delta-{mode}"] = (events | f"Delta {mode}" >> sink.with_exception_handling())[1]
        return refused

    def publishing(self) -> Moment:
        # A file of rows is there, and not yet the entry of the log that names it.
        return FileAppears(self._data / "bucket" / "lake", "*/*.parquet")

    def take_down(self) -> None:
        self._server.stop()

    def bring_back(self) -> None:
        command = self._kind.command(self._port, str(self._data))
        self._server = ServerProcess(command, self.folder / "log")
        assert self._server.listens(self._port, time.monotonic() + 60), "the S3 server does not listen"

    def faults(self, truth: Truth) -> list[str]:
        current = self._read("current", "owner, slot, a, b, big", "not _penstock_deleted")
        log = self._read("log", "key.owner, key.slot, epoch_ns(timestamp)", "true order by metadata.version")
        return replica_faults("Delta current", current, truth) + log_faults("Delta log", log, truth)

    def figures(self) -> dict[str, Any]:
        return {"commits": self._commits}

    def _read(self, mode: str, columns: str, where: str) -> list[Any]:
        import duckdb
        from deltalake import DeltaTable

        options = self.options()
        table = DeltaTable(f"{options['uri']}/{mode}", storage_options=options["storage_options"])
        self._commits += table.version()
        rows = duckdb.from_arrow(table.to_pyarrow_table())
        return rows.query("rows", f"select {columns} from rows where {where}").fetchall()

    def stop(self) -> None:
        self._server.stop()


class Iceberg(TargetUnderTest):
    """Iceberg tables with a catalogue in SQLite: current rows and the log."""

    outage = "the database of the catalogue is locked"
    _locked: sqlite3.Connection | None = None

    def options(self) -> Options:
        warehouse = self.folder / "warehouse"
        return {
            "type": "sql",
            "uri": f"sqlite:///{self.folder}/catalog.db",
            "warehouse": f"file://{warehouse}",
        }

    @staticmethod
    def write(events: beam.PCollection[ChangeEvent], **options: Any) -> Refused:
        from penstock.io.iceberg import WriteToIceberg

        refused = {}
        roll_seconds = options.pop("roll_seconds", 1)
        for mode in ("current", "log"):
            sink = WriteToIceberg(
                f"shop.counts_{mode}",
                mode=mode,  # type: ignore[arg-type]
                catalog_properties=options,
                roll_seconds=roll_seconds,
            )
            refused[f"iceberg-{mode}"] = (events | f"Iceberg {mode}" >> sink.with_exception_handling())[1]
        return refused

    def publishing(self) -> Moment:
        return FileAppears(self.folder / "warehouse", "shop/*/metadata/*.metadata.json")

    def take_down(self) -> None:
        self._locked = sqlite3.connect(self.folder / "catalog.db", isolation_level=None, timeout=60)
        self._locked.execute("begin exclusive")

    def bring_back(self) -> None:
        if self._locked is not None:
            self._locked.close()

    def faults(self, truth: Truth) -> list[str]:
        rows = self._read("current", "owner, slot, a, b, big", "not _penstock_deleted")
        entries = self._read(
            "log", "key.owner, key.slot, epoch_ns(timestamp)", "true order by metadata.version"
        )
        self._snapshots = len(self._table("current").snapshots())
        return replica_faults("Iceberg current", rows, truth) + log_faults("Iceberg log", entries, truth)

    def figures(self) -> dict[str, Any]:
        return {"snapshots": self._snapshots}

    def _read(self, mode: str, columns: str, where: str) -> list[Any]:
        import duckdb

        rows = duckdb.from_arrow(self._table(mode).scan().to_arrow())
        return rows.query("rows", f"select {columns} from rows where {where}").fetchall()

    def _table(self, mode: str) -> Any:
        from pyiceberg.catalog import load_catalog

        return load_catalog("default", **self.options()).load_table(f"shop.counts_{mode}")
