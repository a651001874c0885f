"""Targets that are databases: PostgreSQL, Spanner, Bigtable and BigQuery."""

from __future__ import annotations

from typing import Any

import apache_beam as beam
from google.api_core.client_options import ClientOptions
from google.auth.credentials import AnonymousCredentials
from msgspec.structs import replace

from penstock.event import ChangeEvent
from tests.integration.sinks.source import BAD_OWNER, Truth, cells_of, whole
from tests.integration.sinks.targets.faults import log_faults, replica_faults
from tests.integration.sinks.targets.target import (
    EmulatedTarget,
    Options,
    Refused,
    TargetUnderTest,
    show_sending,
)
from tests.oracle.kill import FileAppears, Moment


class InTransaction:
    """The moment at which a session of the sink has an open transaction with changes."""

    def __init__(self, dsn: str) -> None:
        import psycopg

        self._session = psycopg.connect(dsn, autocommit=True, application_name="watcher")

    def arm(self) -> None:
        """Nothing to prepare."""

    def is_now(self) -> bool:
        query = (
            "select 1 from pg_stat_activity where application_name = 'penstock' and backend_xid is not null"
        )
        return bool(self._session.execute(query).fetchall())


class Sql(TargetUnderTest):
    """PostgreSQL: current rows and the log."""

    outage = "the server is killed and started again"

    def start(self) -> None:
        from penstock.emulators.postgres import PostgresServer

        self._server = PostgresServer.start()

    def options(self) -> Options:
        # Short limits, so that the transaction of a paused driver does not hold its successor back for a minute.
        limits = "-c idle_in_transaction_session_timeout=3s -c lock_timeout=3s"
        return {"dsn": f"{self._server.dsn()} options='{limits}'"}

    @staticmethod
    def write(events: beam.PCollection[ChangeEvent], **options: Any) -> Refused:
        from penstock.io.sql import WriteToSql

        dsn, refused = options["dsn"], {}
        one = WriteToSql(dsn, table="{table}_one", shards=1).with_exception_handling()
        replica = WriteToSql(dsn, shards=2).with_exception_handling()
        log = WriteToSql(dsn, mode="log", table="{table}_log", shards=2).with_exception_handling()
        refused["sql-one"] = (events | "One shard" >> one)[1]
        refused["sql"] = (
            events | "Whole rows" >> beam.Map(whole).with_output_types(ChangeEvent) | "Replica" >> replica
        )[1]
        refused["sql-log"] = (events | "Log" >> log)[1]
        return refused

    def publishing(self) -> Moment:
        return InTransaction(self._server.dsn())

    def take_down(self) -> None:
        self._server.kill()

    def bring_back(self) -> None:
        self._server.restart()

    def faults(self, truth: Truth) -> list[str]:
        import psycopg

        with psycopg.connect(self._server.dsn()) as session:
            select = "select owner, slot, a, b, big from {} where not _penstock_deleted"
            rows, one = (session.execute(select.format(name)).fetchall() for name in ("counts", "counts_one"))
            log = session.execute(
                "select key ->> 'owner', (key ->> 'slot')::int, extract(epoch from committed_at)::bigint * 1000000000 "
                'from counts_log order by version collate "C"'
            ).fetchall()
        faults = replica_faults("SQL replica", rows, truth) + log_faults("SQL log", log, truth)
        return faults + replica_faults("SQL replica of one shard", one, truth)

    def stop(self) -> None:
        self._server.stop()


class Spanner(EmulatedTarget):
    """A table of Google's Spanner emulator."""

    _DDL = (
        "CREATE TABLE counts (owner STRING(20) NOT NULL, slot INT64 NOT NULL, a INT64, b INT64, "
        "big STRING(100), note STRING(100), `at` TIMESTAMP) PRIMARY KEY (owner, slot)"
    )

    def start(self) -> None:
        from penstock.emulators.spanner import SpannerEmulator

        self._emulator = SpannerEmulator.start()
        self._emulator.create_database("penstock-test", "penstock-test", "copy", [self._DDL])

    @staticmethod
    def write(events: beam.PCollection[ChangeEvent], **options: Any) -> Refused:
        from penstock.io.spanner import WriteToSpanner

        hooks = options.pop("hooks")
        sink = WriteToSpanner(
            project="penstock-test", instance="penstock-test", database="copy", shards=2, **options
        )
        rows = events | "Whole rows" >> beam.Map(whole).with_output_types(ChangeEvent)
        return {"spanner": (rows | "Spanner" >> show_sending(sink, hooks, "spanner"))[1]}

    def publishing(self) -> Moment:
        return FileAppears(self.hooks, "spanner-*")

    def faults(self, truth: Truth) -> list[str]:
        from penstock.io.spanner.write import SpannerTarget

        host = self.options()["emulator_host"]
        database = (
            SpannerTarget("penstock-test", "penstock-test", "copy", emulator_host=host)
            .open(skip_refused=False)
            ._database
        )
        with database.snapshot() as snapshot:
            rows = [tuple(row) for row in snapshot.execute_sql("SELECT owner, slot, a, b, big FROM counts")]
        return replica_faults("Spanner", rows, truth)


class Bigtable(EmulatedTarget):
    """A table of the Bigtable emulator, whose source is the same changes as cells."""

    def start(self) -> None:
        from penstock.emulators.bigtable import BigtableEmulator
        from tests.integration.emulators.bigtable.client import Client

        self._emulator = BigtableEmulator.start()
        self._client = Client(self._emulator.host, "counts")
        self._client.create({"f": {}, "penstock": {}})

    @staticmethod
    def write(events: beam.PCollection[ChangeEvent], **options: Any) -> Refused:
        from penstock.io.bigtable import WriteToBigtable

        hooks = options.pop("hooks")
        sink = WriteToBigtable(
            project="penstock-test", instance="penstock-test", table="counts", shards=2, **options
        )
        cells = events | "Cells" >> beam.FlatMap(cells_of).with_output_types(ChangeEvent)
        return {"bigtable": (cells | "Bigtable" >> show_sending(sink, hooks, "bigtable"))[1]}

    def publishing(self) -> Moment:
        return FileAppears(self.hooks, "bigtable-*")

    def faults(self, truth: Truth) -> list[str]:
        newest: dict[bytes, dict[bytes, tuple[int, bytes]]] = {}
        for key, cells in self._client.cells().items():
            for (family, qualifier, at), value in cells.items():
                if family == "f":
                    row = newest.setdefault(key, {})
                    row[qualifier] = max(row.get(qualifier, (0, b"")), (at, value))
        rows = []
        for key, row in newest.items():
            owner, slot = key.decode().split("/")
            rows.append((owner, int(slot), int(row[b"a"][1]), int(row[b"b"][1])))
        # Bigtable has no changes of keys: a row that moves is a new row, and the source has not sent its large value.
        return replica_faults("Bigtable", rows, truth, ("a", "b"))


class BigQuery(EmulatedTarget):
    """The log in an emulator of BigQuery, which does not merge changes and so has no current rows."""

    def start(self) -> None:
        from google.cloud import bigquery

        from penstock.emulators.bigquery import BigQueryEmulator

        emulator = BigQueryEmulator.start()
        self._emulator = emulator
        self._options = {"endpoint": emulator.endpoint, "write_endpoint": emulator.write_endpoint}
        self._client = bigquery.Client(
            project="penstock-test",
            credentials=AnonymousCredentials(),
            client_options=ClientOptions(api_endpoint=emulator.endpoint),
        )
        self._client.create_dataset("penstock-test.shop")

    def options(self) -> Options:
        return {**self._options, "hooks": str(self.hooks)}

    @staticmethod
    def write(events: beam.PCollection[ChangeEvent], **options: Any) -> Refused:
        from penstock.io.bigquery import WriteToBigQuery

        hooks = options.pop("hooks")
        sink = WriteToBigQuery(project="penstock-test", dataset="shop", shards=2, **options)
        large = events | "Larger than a request" >> beam.Map(enlarge_bad).with_output_types(ChangeEvent)
        return {"bigquery": (large | "BigQuery" >> show_sending(sink, hooks, "bigquery"))[1]}

    def publishing(self) -> Moment:
        return FileAppears(self.hooks, "bigquery-*")

    def faults(self, truth: Truth) -> list[str]:
        query = (
            "SELECT JSON_VALUE(key, '$.owner'), CAST(JSON_VALUE(key, '$.slot') AS INT64), "
            "UNIX_SECONDS(committed_at) * 1000000000 FROM shop.counts ORDER BY version"
        )
        rows = [tuple(row.values()) for row in self._client.query(query).result()]
        return log_faults("BigQuery log", rows, truth)


def enlarge_bad(event: ChangeEvent) -> ChangeEvent:
    """Return the event; the bad one is larger than BigQuery's largest request."""
    if event.key is None or event.key["owner"] != BAD_OWNER:
        return event
    return replace(event, after={**(event.after or {}), "note": "x" * 10_000_000})
