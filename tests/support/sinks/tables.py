"""Targets that are tables of a lake: Delta and Iceberg."""

from __future__ import annotations

import sqlite3
import time
from datetime import datetime
from typing import Any

import apache_beam as beam
import pytest

from penstock.event import ChangeEvent
from penstock_emulators.oracle.kill import FileAppears, Moment
from penstock_emulators.server_process import ServerProcess, free_port
from tests.conftest import CAMPAIGN
from tests.support.catalogs import catalog_in
from tests.support.sinks.faults import feed_faults, log_faults, replica_faults
from tests.support.sinks.source import Truth
from tests.support.sinks.target import Options, Refused, TargetUnderTest, apply, carry_calls

_LOG = ("key.owner, key.slot, epoch_ns(timestamp)", "true order by metadata.version")
"""The columns and the order of a log."""


class Delta(TargetUnderTest):
    """Delta tables: current rows, and the log in both layouts. On an S3 server in a campaign, otherwise in a folder."""

    error_outputs = ("delta-current", "delta-log", "delta-feed")
    marked = "delta-log"
    outage = "the S3 server is killed and started again"
    _local = True
    _server: ServerProcess | None = None

    def start(self) -> None:
        self._versions: dict[str, int] = {}
        self._data = self.folder / "data"
        self._data.mkdir()
        # The server is installed for campaigns only.
        self._local = self.network is not None or not CAMPAIGN
        if self._local:
            return
        from tests.support.object_stores.servers import VERSITYGW

        self._kind, self._port = VERSITYGW, free_port()
        self._kind.make_bucket(self._port, str(self._data))
        self.bring_back()

    def create(self, place: str) -> None:
        self._place = place

    def options(self) -> Options:
        if self._local:
            return {"uri": str(self._data / self._place), "storage_options": {}}
        storage = {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{self._port}",
            "AWS_ALLOW_HTTP": "true",
            **self._kind.environment,
        }
        return {"uri": f"s3://bucket/{self._place}", "storage_options": storage}

    @staticmethod
    def write(events: beam.PCollection[ChangeEvent], *, error_output: bool = True, **options: Any) -> Refused:
        from penstock.io.delta import WriteToDelta

        refused: Refused = {}
        tables: dict[str, Any] = {
            "current": {"mode": "current"},
            "log": {"mode": "log", "mark_complete": True},
            "feed": {"mode": "log", "layout": "table"},
        }
        for name, more in tables.items():
            sink = WriteToDelta(
                f"{options['uri']}/{name}",
                storage_options=options["storage_options"],
                mark_complete_seconds=1,
                roll_seconds=options.get("roll_seconds", 1),
                **more,
            )
            refused |= apply(events, f"delta-{name}", sink, error_output)
        return refused

    def carry(self, patch: pytest.MonkeyPatch) -> None:
        import deltalake
        from deltalake.exceptions import DeltaError
        from deltalake.table import TableMerger

        from penstock.io.delta.folder import LocalFolder

        def unavailable() -> DeltaError:
            return DeltaError("Generic S3 error: lost by the test")

        # Opening a table, the commit of the names of files, and the files themselves.
        calls = ("__init__", "create_write_transaction")
        carry_calls(self.network, patch, deltalake.DeltaTable, calls, unavailable)
        carry_calls(self.network, patch, LocalFolder, ("create", "length", "delete"), unavailable)
        carry_calls(self.network, patch, deltalake, ("write_deltalake",), unavailable)
        carry_calls(self.network, patch, TableMerger, ("execute",), unavailable)

    def publishing(self) -> Moment:
        # A file of rows is there, and not yet the entry of the log that names it.
        folder = self._data if self._local else self._data / "bucket"
        return FileAppears(folder / self._place, "*/*.parquet")

    def take_down(self) -> None:
        self.stop()

    def bring_back(self) -> None:
        command = self._kind.command(self._port, str(self._data))
        self._server = server = ServerProcess(command, self.folder / "log")
        assert server.listens(self._port, time.monotonic() + 60), "the S3 server does not listen"

    def faults(self, truth: Truth) -> list[str]:
        current = self._read("current", "owner, slot, a, b, big", "not _penstock_deleted")
        faults = replica_faults("Delta current", current, truth) + log_faults("Delta log", self.log(), truth)
        # The order of the log: files of one commit may be listed in any order, and their rows sort by the version.
        feed = sorted(self._table("feed").to_pylist(), key=lambda row: row["_commit_version"])
        return faults + feed_faults("Delta log with layout=table", feed, truth)

    def complete(self) -> dict[str, datetime]:
        from penstock.io.delta import complete_until

        options = self.options()
        return complete_until(f"{options['uri']}/log", storage_options=options["storage_options"])

    def log(self) -> list[tuple[str, int, int]]:
        return self._read("log", *_LOG)

    def figures(self) -> dict[str, Any]:
        return {"commits": sum(self._versions.values())}

    def _read(self, name: str, columns: str, where: str) -> list[Any]:
        import duckdb

        rows = duckdb.from_arrow(self._table(name))
        return rows.query("rows", f"select {columns} from rows where {where}").fetchall()

    def _table(self, name: str) -> Any:
        from deltalake import DeltaTable

        options = self.options()
        table = DeltaTable(f"{options['uri']}/{name}", storage_options=options["storage_options"])
        self._versions[name] = table.version()
        return table.to_pyarrow_table()

    def stop(self) -> None:
        # A server that is not installed was never started.
        if self._server is not None:
            self._server.stop()


class Iceberg(TargetUnderTest):
    """Iceberg tables with a catalogue in SQLite: current rows and the log."""

    error_outputs = ("iceberg-current", "iceberg-log")
    marked = "iceberg-log"
    outage = "the database of the catalogue is locked"
    _locked: sqlite3.Connection | None = None

    def create(self, place: str) -> None:
        self._place = self.folder / place
        self._place.mkdir()

    def options(self) -> Options:
        return catalog_in(self._place)

    @staticmethod
    def write(events: beam.PCollection[ChangeEvent], *, error_output: bool = True, **options: Any) -> Refused:
        from penstock.io.iceberg import WriteToIceberg

        refused: Refused = {}
        roll_seconds = options.pop("roll_seconds", 1)
        for mode in ("current", "log"):
            sink = WriteToIceberg(
                f"shop.counts_{mode}",
                mode=mode,  # type: ignore[arg-type]
                catalog_properties=options,
                mark_complete=mode == "log",
                mark_complete_seconds=1,
                roll_seconds=roll_seconds,
            )
            refused |= apply(events, f"iceberg-{mode}", sink, error_output)
        return refused

    def carry(self, patch: pytest.MonkeyPatch) -> None:
        from pyiceberg.catalog.sql import SqlCatalog

        from penstock.io.iceberg.files import FilesOfIo

        requests = ("load_table", "create_table_if_not_exists", "commit_table")
        carry_calls(self.network, patch, SqlCatalog, requests, ConnectionError)
        carry_calls(self.network, patch, FilesOfIo, ("create", "length", "delete"), ConnectionError)

    def publishing(self) -> Moment:
        # A manifest is there, and not yet the metadata that names it.
        return FileAppears(self._place / "warehouse", "shop/*/metadata/*.avro")

    def take_down(self) -> None:
        self._locked = sqlite3.connect(self._place / "catalog.db", isolation_level=None, timeout=60)
        self._locked.execute("begin exclusive")

    def bring_back(self) -> None:
        if self._locked is not None:
            self._locked.close()

    def faults(self, truth: Truth) -> list[str]:
        rows = self._read("current", "owner, slot, a, b, big", "not _penstock_deleted")
        self._snapshots = len(self._table("current").snapshots())
        return replica_faults("Iceberg current", rows, truth) + log_faults("Iceberg log", self.log(), truth)

    def complete(self) -> dict[str, datetime]:
        from penstock.io.iceberg import complete_until

        return complete_until("shop.counts_log", catalog_properties=self.options())

    def log(self) -> list[tuple[str, int, int]]:
        return self._read("log", *_LOG)

    def figures(self) -> dict[str, Any]:
        return {"snapshots": self._snapshots}

    def _read(self, mode: str, columns: str, where: str) -> list[Any]:
        import duckdb

        rows = duckdb.from_arrow(self._table(mode).scan().to_arrow())
        return rows.query("rows", f"select {columns} from rows where {where}").fetchall()

    def _table(self, mode: str) -> Any:
        from pyiceberg.catalog import load_catalog

        return load_catalog("default", **self.options()).load_table(f"shop.counts_{mode}")
