"""Targets that are databases: PostgreSQL, Spanner, Bigtable and BigQuery."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

import apache_beam as beam
import pytest
from google.api_core.client_options import ClientOptions
from google.auth.credentials import AnonymousCredentials
from msgspec.structs import replace

from penstock.event import ChangeEvent
from penstock.io.staging.complete_marks import complete_times, decode_mark
from penstock_emulators.oracle.kill import FileAppears, Moment
from tests.support.sinks.faults import log_faults, replica_faults
from tests.support.sinks.source import (
    BAD_OWNER,
    WRITERS,
    Key,
    Truth,
    cells_of,
    number_at,
    statement,
    whole,
)
from tests.support.sinks.target import (
    EmulatedTarget,
    Options,
    Refused,
    TargetUnderTest,
    apply,
    show_sending,
)


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

    error_outputs = ("sql-one", "sql", "sql-log")
    marked = "sql-log"
    outage = "the server is killed and started again"

    def start(self) -> None:
        from penstock_emulators.postgres import PostgresServer

        self._server = PostgresServer.start()

    def create(self, place: str) -> None:
        import psycopg

        with psycopg.connect(self._server.dsn(), autocommit=True) as session:
            session.execute(f'create database "{place}"')
        self._place = place

    def options(self) -> Options:
        # Short limits, so that the transaction of a paused driver does not hold its successor back for a minute.
        limits = "-c idle_in_transaction_session_timeout={0} -c lock_timeout={0}"
        if self.network is None:
            return {"dsn": f"{self._dsn()} options='{limits.format('3s')}'"}
        if not hasattr(self, "_proxy"):
            self._proxy = self.network.before(self._server.port)
        quick = limits.format("200ms")
        return {"dsn": f"{self._dsn()} host=127.0.0.1 port={self._proxy.port} options='{quick}'"}

    @staticmethod
    def write(events: beam.PCollection[ChangeEvent], *, error_output: bool = True, **options: Any) -> Refused:
        from penstock.io.sql import WriteToSql

        dsn = options["dsn"]
        rows = events | "Whole rows" >> beam.Map(whole).with_output_types(ChangeEvent)
        one = WriteToSql(dsn, table="{table}_one", shards=1)
        log = WriteToSql(dsn, mode="log", table="{table}_log", shards=2, mark_complete=True)
        return {
            **apply(events, "sql-one", one, error_output),
            **apply(rows, "sql", WriteToSql(dsn, shards=2), error_output),
            **apply(events, "sql-log", log, error_output),
        }

    def publishing(self) -> Moment:
        return InTransaction(self._dsn())

    def take_down(self) -> None:
        self._server.kill()

    def bring_back(self) -> None:
        self._server.restart()

    def faults(self, truth: Truth) -> list[str]:
        import psycopg

        with psycopg.connect(self._dsn()) as session:
            select = "select owner, slot, a, b, big from {} where not _penstock_deleted"
            rows, one = (session.execute(select.format(name)).fetchall() for name in ("counts", "counts_one"))
        faults = replica_faults("SQL replica", rows, truth) + log_faults("SQL log", self.log(), truth)
        return faults + replica_faults("SQL replica of one shard", one, truth)

    def complete(self) -> dict[str, datetime]:
        return dict(self._query("select job, min(complete_until) from penstock_complete group by job"))

    def log(self) -> list[tuple[str, int, int]]:
        return self._query(
            "select key ->> 'owner', (key ->> 'slot')::int, extract(epoch from committed_at)::bigint * 1000000000 "
            'from counts_log order by version collate "C"'
        )

    def _query(self, query: str) -> list[Any]:
        import psycopg

        with psycopg.connect(self._dsn()) as session:
            return session.execute(query).fetchall()

    def stop(self) -> None:
        self._server.stop()

    def _dsn(self) -> str:
        return self._server.dsn(self._place)


class Spanner(EmulatedTarget):
    """A table of Google's Spanner emulator."""

    error_outputs = ("spanner",)

    _DDL = (
        "CREATE TABLE counts (owner STRING(20) NOT NULL, slot INT64 NOT NULL, a INT64, b INT64, "
        "big STRING(100), note STRING(100), `at` TIMESTAMP) PRIMARY KEY (owner, slot)"
    )

    def start(self) -> None:
        from penstock_emulators.spanner import SpannerEmulator

        self._emulator = SpannerEmulator.start()

    def create(self, place: str) -> None:
        self._emulator.create_database("penstock-test", "penstock-test", place, [self._DDL])
        self._place = place

    def options(self) -> Options:
        return {**super().options(), "database": self._place}

    @staticmethod
    def write(events: beam.PCollection[ChangeEvent], *, error_output: bool = True, **options: Any) -> Refused:
        from penstock.io.spanner import WriteToSpanner

        hooks = options.pop("hooks")
        sink = WriteToSpanner(project="penstock-test", instance="penstock-test", shards=2, **options)
        rows = events | "Whole rows" >> beam.Map(whole).with_output_types(ChangeEvent)
        return apply(rows, "spanner", show_sending(sink, hooks, "spanner"), error_output)

    def publishing(self) -> Moment:
        return FileAppears(self.hooks, "spanner-*")

    def shrink_requests(self, patch: pytest.MonkeyPatch) -> None:
        # Two or three rows of `counts`.
        patch.setattr("penstock.io.spanner.sink.sender.MAX_CELLS", 32)

    def database(self) -> Any:
        """The database, through Google's client."""
        from google.cloud import spanner

        client = spanner.Client(
            project="penstock-test",
            credentials=AnonymousCredentials(),
            client_options=ClientOptions(api_endpoint=self._emulator.host),
            disable_builtin_metrics=True,
        )
        return client.instance("penstock-test").database(self._place)

    def faults(self, truth: Truth) -> list[str]:
        with self.database().snapshot() as snapshot:
            rows = [tuple(row) for row in snapshot.execute_sql("SELECT owner, slot, a, b, big FROM counts")]
        return replica_faults("Spanner", rows, truth)


class Bigtable(EmulatedTarget):
    """A table of the Bigtable emulator, whose source is the same changes as cells."""

    error_outputs = ("bigtable",)
    has_ledger = False
    marked = "bigtable"

    def start(self) -> None:
        from penstock_emulators.bigtable import BigtableEmulator

        self._emulator = BigtableEmulator.start()

    def create(self, place: str) -> None:
        from tests.integration.emulators.bigtable.client import Client

        self._place = place
        self._client = Client(self._emulator.host, place)
        self._client.create({"f": {}, "penstock": {}})

    def options(self) -> Options:
        return {**super().options(), "table": self._place}

    @staticmethod
    def write(events: beam.PCollection[ChangeEvent], *, error_output: bool = True, **options: Any) -> Refused:
        from penstock.io.bigtable import WriteToBigtable

        hooks = options.pop("hooks")
        sink = WriteToBigtable(
            project="penstock-test", instance="penstock-test", shards=2, mark_complete=True, **options
        )
        cells = events | "Cells" >> beam.FlatMap(cells_of).with_output_types(ChangeEvent)
        return apply(cells, "bigtable", show_sending(sink, hooks, "bigtable"), error_output)

    def shrink_requests(self, patch: pytest.MonkeyPatch) -> None:
        # One change of a row: its two cells and its version.
        patch.setattr("penstock.io.bigtable.sink.values.MAX_MUTATIONS", 4)

    def publishing(self) -> Moment:
        return FileAppears(self.hooks, "bigtable-*")

    def complete(self) -> dict[str, datetime]:
        cells = (cell for row in self._client.cells().values() for cell in row.items())
        return complete_times(decode_mark(value) for (_, name, _), value in cells if name == b"mark")

    def applied(self) -> dict[str, set[int]]:
        # A row has only its newest change, whose time is the time of the version's cell.
        newest: dict[Key, int] = {}
        for key, cells in self._client.cells().items():
            if times := [at for family, name, at in cells if (family, name) == ("penstock", b"version")]:
                owner, slot = key.decode().split("/")
                newest[owner, int(slot)] = number_at(max(times) * 1000)
        return {writer: _applied(writer, newest) for writer in WRITERS}

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


def _applied(writer: str, newest: Mapping[Key, int]) -> set[int]:
    """Return the statements of a writer whose rows all have this change or a newer one."""
    end = 1 + max((number for (owner, _), number in newest.items() if owner == writer), default=-1)
    return {
        number
        for number in range(end)
        if all(newest.get(key, -1) >= number for key in statement(writer, number).keys)
    }


class BigQuery(EmulatedTarget):
    """The log in an emulator of BigQuery, which does not merge changes and so has no current rows."""

    error_outputs = ("bigquery",)

    def start(self) -> None:
        from google.cloud import bigquery

        from penstock_emulators.bigquery import BigQueryEmulator

        emulator = BigQueryEmulator.start()
        self._emulator = emulator
        self._options = {"endpoint": emulator.endpoint, "write_endpoint": emulator.write_endpoint}
        self._client = bigquery.Client(
            project="penstock-test",
            credentials=AnonymousCredentials(),
            client_options=ClientOptions(api_endpoint=emulator.endpoint),
        )

    def create(self, place: str) -> None:
        self._client.create_dataset(f"penstock-test.{place}")
        self._place = place

    def options(self) -> Options:
        return {**self._options, "dataset": self._place, "hooks": str(self.hooks)}

    @staticmethod
    def write(events: beam.PCollection[ChangeEvent], *, error_output: bool = True, **options: Any) -> Refused:
        from penstock.io.bigquery import WriteToBigQuery

        hooks = options.pop("hooks")
        sink = WriteToBigQuery(project="penstock-test", shards=2, **options)
        large = events | "Larger than a request" >> beam.Map(enlarge_bad).with_output_types(ChangeEvent)
        return apply(large, "bigquery", show_sending(sink, hooks, "bigquery"), error_output)

    def publishing(self) -> Moment:
        return FileAppears(self.hooks, "bigquery-*")

    def faults(self, truth: Truth) -> list[str]:
        query = (
            "SELECT JSON_VALUE(key, '$.owner'), CAST(JSON_VALUE(key, '$.slot') AS INT64), "
            f"UNIX_SECONDS(committed_at) * 1000000000 FROM {self._place}.counts ORDER BY version"
        )
        rows = [tuple(row.values()) for row in self._client.query(query).result()]
        return log_faults("BigQuery log", rows, truth)


def enlarge_bad(event: ChangeEvent) -> ChangeEvent:
    """Return the event; the bad one is larger than BigQuery's largest request."""
    if event.key is None or event.key["owner"] != BAD_OWNER:
        return event
    return replace(event, after={**(event.after or {}), "note": "x" * 10_000_000})
