"""The sinks of the kill campaigns: how each is started, written, disturbed, read back and compared with the source.

A class is one entry of `TARGETS`. Its `write` runs in the pipeline; all other methods run in the process that kills.
What a target has is read with its own client or with another engine, never with the code of the sink.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sqlite3
import threading
import uuid
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import apache_beam as beam

from penstock.emulators.emulator import Emulator
from penstock.emulators.server_process import ServerProcess
from penstock.event import ChangeEvent
from penstock.transforms.formats.formatted import FormattedRecord
from tests.integration.sinks.source import BAD_OWNER, Key, Truth, cells_of, number_at
from tests.oracle.kill import FileAppears, Moment

Options = dict[str, Any]
Refused = dict[str, beam.PCollection[Any]]
Rows = dict[Key, tuple[int, int]]


class TargetUnderTest:
    """A running target. `folder` is its own folder; `hooks` is where its `write` may create files."""

    outage: ClassVar[str] = ""
    """What `take_down` does; "" if there is nothing that can be down."""

    def __init__(self, folder: Path, hooks: Path) -> None:
        self.folder, self.hooks = folder, hooks
        folder.mkdir()

    def start(self) -> None:
        """Start the server and create what the sink expects."""

    def options(self) -> Options:
        """The arguments of `write`, as JSON."""
        return {}

    @staticmethod
    def write(events: beam.PCollection[ChangeEvent], **options: Any) -> Refused:
        """Apply the sink; return its error outputs by name."""
        raise NotImplementedError

    def publishing(self) -> Moment | None:
        """A moment in the middle of a publication of this sink; None: shortly after a commit."""
        return None

    def take_down(self) -> None:
        """Make the target unavailable."""

    def bring_back(self) -> None:
        """End what `take_down` began."""

    def faults(self, truth: Truth) -> list[str]:
        """Compare with the source; return one sentence for each fault."""
        raise NotImplementedError

    def figures(self) -> dict[str, Any]:
        """Figures for the evidence, after `faults`."""
        return {}

    def stop(self) -> None:
        """End the server."""


def replica_faults(name: str, found: Iterable[tuple[str, int, int, int]], truth: Truth) -> list[str]:
    """Compare rows (owner, slot, a, b) with those of the source."""
    listed = list(found)
    rows = {(owner, slot): (a, b) for owner, slot, a, b in listed}
    expected = truth.rows()
    faults = [] if len(rows) == len(listed) else [f"{name}: a key is there twice"]
    missing, foreign = expected.keys() - rows.keys(), rows.keys() - expected.keys()
    differ = [key for key in expected.keys() & rows.keys() if rows[key] != expected[key]]
    for what, keys in (("missing", missing), ("not in the source", foreign), ("different", differ)):
        if keys:
            faults.append(f"{name}: {len(keys)} rows are {what}, such as {sorted(keys)[0]}")
    return faults


def log_faults(
    name: str,
    found: Iterable[tuple[str, int, int]],
    truth: Truth,
    *,
    repeats: bool = False,
    ordered: bool = True,
) -> list[str]:
    """Compare a log (owner, slot, time of the event in ns) with that of the source.

    `found` is in the order in which a consumer sees it. With `repeats` the first one of equal events counts.
    """
    log: dict[Key, list[int]] = {}
    for owner, slot, time in found:
        log.setdefault((owner, slot), []).append(number_at(time))
    if repeats:
        log = {key: list(dict.fromkeys(numbers)) for key, numbers in log.items()}
    if not ordered:
        log = {key: sorted(numbers) for key, numbers in log.items()}
    expected = truth.log()
    faults = []
    for key in sorted(expected.keys() | log.keys()):
        if log.get(key, []) != expected.get(key, []):
            times, wanted = Counter(log.get(key, [])), Counter(expected.get(key, []))
            lost, more = (wanted - times).total(), (times - wanted).total()
            faults.append(f"{name}: {key} has {lost} lost and {more} doubled events, or another order")
    return faults[:5]


def owner_key(event: ChangeEvent) -> tuple[str, int]:
    """Return the key of an event as a tuple."""
    assert event.key is not None
    return event.key["owner"], event.key["slot"]


# --- files --------------------------------------------------------------------------------------------------------


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


# --- Spark --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RenameFolder:
    """The function of `WriteToSpark`: the folder of an id appears by a rename, and only once.

    To overwrite the folder would not be safe from a driver that was paused in the middle of it: when it wakes up, Spark
    adds its files to those that the next driver has written.
    """

    lake: str

    def __call__(self, dataframe: Any, epoch_id: int) -> None:
        rows = dataframe.selectExpr(
            "key", "cast(timestamp as long) as seconds", "metadata.version as version"
        )
        attempt = f"{self.lake}/.attempt-{uuid.uuid4().hex}"
        rows.write.parquet(attempt)
        try:
            os.rename(attempt, f"{self.lake}/epoch={epoch_id}")
        except OSError:  # the id has its folder already
            shutil.rmtree(attempt)


class Spark(TargetUnderTest):
    """A function of a DataFrame that writes Parquet, one folder for each id."""

    def options(self) -> Options:
        return {"lake": str(self.folder / "lake")}

    @staticmethod
    def write(events: beam.PCollection[ChangeEvent], **options: Any) -> Refused:
        from penstock.io.spark import WriteToSpark

        sink = WriteToSpark(RenameFolder(options["lake"]), shards=2).with_exception_handling()
        return {"spark": (events | "Spark" >> sink)[1]}

    def publishing(self) -> Moment:
        return FileAppears(self.folder / "lake", "epoch=*")

    def faults(self, truth: Truth) -> list[str]:
        import duckdb

        rows = duckdb.sql(
            f"select key, seconds from read_parquet('{self.folder}/lake/*/*.parquet', hive_partitioning=true) "
            "order by epoch, version"
        ).fetchall()
        entries = [(*json.loads(key).values(), seconds * 1_000_000_000) for key, seconds in rows]
        return log_faults("Spark", entries, truth)

    def figures(self) -> dict[str, Any]:
        return {"epochs": len(list((self.folder / "lake").glob("epoch=*")))}


# --- tables -------------------------------------------------------------------------------------------------------


class Delta(TargetUnderTest):
    """Delta tables on an S3 server: current rows and the log."""

    outage = "the S3 server is killed and started again"
    _commits = 0

    def start(self) -> None:
        from penstock.emulators.server_process import free_port
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
        listen(self._server, self._port)

    def faults(self, truth: Truth) -> list[str]:
        current = self._read("current", "owner, slot, a, b", "not _penstock_deleted")
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
        rows = self._read("current", "owner, slot, a, b", "not _penstock_deleted")
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


# --- rows ---------------------------------------------------------------------------------------------------------


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
        limits = "-c idle_in_transaction_session_timeout=3s -c statement_timeout=15s"
        return {"dsn": f"{self._server.dsn()} options='{limits}'"}

    @staticmethod
    def write(events: beam.PCollection[ChangeEvent], **options: Any) -> Refused:
        from penstock.io.sql import WriteToSql

        replica = WriteToSql(options["dsn"], shards=2).with_exception_handling()
        log = WriteToSql(options["dsn"], mode="log", table="{table}_log", shards=2).with_exception_handling()
        return {"sql": (events | "Replica" >> replica)[1], "sql-log": (events | "Log" >> log)[1]}

    def publishing(self) -> Moment:
        return InTransaction(self._server.dsn())

    def take_down(self) -> None:
        self._server.kill()

    def bring_back(self) -> None:
        self._server.restart()

    def faults(self, truth: Truth) -> list[str]:
        import psycopg

        with psycopg.connect(self._server.dsn()) as session:
            rows = session.execute(
                "select owner, slot, a, b from counts where not _penstock_deleted"
            ).fetchall()
            log = session.execute(
                "select key ->> 'owner', (key ->> 'slot')::int, extract(epoch from committed_at)::bigint * 1000000000 "
                'from counts_log order by version collate "C"'
            ).fetchall()
        return replica_faults("SQL replica", rows, truth) + log_faults("SQL log", log, truth)

    def stop(self) -> None:
        self._server.stop()


@dataclass(frozen=True, slots=True)
class RecordFormat:
    """A format of Kafka and Pub/Sub: the key, and the time of the event. It shows in the hooks that a batch is sent."""

    hooks: str
    name: str
    refuses_bad: bool = False

    def __call__(self, event: ChangeEvent) -> list[FormattedRecord]:
        owner, slot = owner_key(event)
        if event.timestamp % 20_000_000_000 == 0:
            Path(self.hooks, f"{self.name}-{event.id}").touch()
        value = f"{owner} {slot} {event.timestamp}"
        if owner == BAD_OWNER:
            if self.refuses_bad:
                raise ValueError("no message can express the event")
            value = "x" * 50_000
        key = f"{owner}/{slot}".encode()
        return [FormattedRecord("counts", key, value.encode(), event.timestamp, event.version)]


class Kafka(TargetUnderTest):
    """Two topics of a Kafka broker: transactional and idempotent."""

    outage = "the broker is killed and started again"
    _repeated = 0

    def start(self) -> None:
        from penstock.emulators.kafka import KafkaBroker

        self._broker = KafkaBroker.start()

    def options(self) -> Options:
        return {"servers": self._broker.address, "hooks": str(self.hooks)}

    @staticmethod
    def write(events: beam.PCollection[ChangeEvent], **options: Any) -> Refused:
        from penstock.io.kafka import WriteToKafka

        refused = {}
        for guarantee in ("transactional", "idempotent"):
            sink = WriteToKafka(
                options["servers"],
                format=RecordFormat(options["hooks"], guarantee),
                topic=guarantee,
                guarantee=guarantee,  # type: ignore[arg-type]
                partitions=3,
                # The retention counts from the commit times of the source, which are long ago.
                topic_config={"max.message.bytes": "20000", "retention.ms": "-1"},
                config={"compression.type": "none"},
                shards=2,
            ).with_exception_handling()
            refused[f"kafka-{guarantee}"] = (events | guarantee >> sink)[1]
        return refused

    def publishing(self) -> Moment:
        return FileAppears(self.hooks, "transactional-*")

    def take_down(self) -> None:
        self._broker.kill()

    def bring_back(self) -> None:
        self._broker.restart()

    def faults(self, truth: Truth) -> list[str]:
        committed, idempotent = self._read("transactional"), self._read("idempotent")
        self._repeated = len(idempotent) - len(set(idempotent))
        return log_faults("Kafka transactional", committed, truth) + log_faults(
            "Kafka idempotent", idempotent, truth, repeats=True
        )

    def figures(self) -> dict[str, Any]:
        return {"repeated events of the idempotent topic": self._repeated}

    def _read(self, topic: str) -> list[tuple[str, int, int]]:
        from tests.integration.kafka.conftest import read_all

        return [message_entry(message.value() or b"") for message in read_all(self._broker.address, topic)]

    def stop(self) -> None:
        self._broker.stop()


def message_entry(value: bytes) -> tuple[str, int, int]:
    """Return the entry of a log from the value of a message."""
    owner, slot, time = value.decode().split()
    return owner, int(slot), int(time)


class Paused(TargetUnderTest):
    """A target that is an emulator, which keeps its data in memory: it is down when it does not answer."""

    outage = "the emulator hangs"
    _emulator: Emulator

    def take_down(self) -> None:
        os.killpg(self._emulator.process_group, signal.SIGSTOP)

    def bring_back(self) -> None:
        os.killpg(self._emulator.process_group, signal.SIGCONT)

    def stop(self) -> None:
        self._emulator.stop()


class PubSub(Paused):
    """A topic of Pub/Sub, whose subscription has message ordering."""

    def start(self) -> None:
        from google.cloud import pubsub_v1

        from penstock.emulators.pubsub import PubSubEmulator

        self._emulator = PubSubEmulator.start()
        os.environ["PUBSUB_EMULATOR_HOST"] = self._emulator.host
        self._subscriber = pubsub_v1.SubscriberClient()
        topic = self._subscriber.topic_path("penstock-tests", "counts")
        self._subscription = self._subscriber.subscription_path("penstock-tests", "counts")
        pubsub_v1.PublisherClient().create_topic(name=topic)
        settings = {"name": self._subscription, "topic": topic, "enable_message_ordering": True}
        self._subscriber.create_subscription(request=settings)
        # Messages are taken during the run, because the emulator holds all others in memory.
        self._taken: list[Any] = []
        self._ended = threading.Event()
        self._consumer = threading.Thread(target=self._consume)
        self._consumer.start()

    def options(self) -> Options:
        return {"hooks": str(self.hooks)}

    @staticmethod
    def write(events: beam.PCollection[ChangeEvent], **options: Any) -> Refused:
        from penstock.io.pubsub import WriteToPubSub

        format_ = RecordFormat(options["hooks"], "pubsub", refuses_bad=True)
        sink = WriteToPubSub(project="penstock-tests", topic="counts", format=format_, shards=2)
        return {"pubsub": (events | "Pub/Sub" >> sink.with_exception_handling())[1]}

    def publishing(self) -> Moment:
        return FileAppears(self.hooks, "pubsub-*")

    def faults(self, truth: Truth) -> list[str]:
        self._ended.set()
        self._consumer.join()
        by_id = {each.attributes["penstock_id"]: each for each in self._taken}
        self._repeated = len(self._taken) - len(by_id)
        entries = [message_entry(each.data) for each in by_id.values()]
        return log_faults("Pub/Sub", entries, truth, ordered=False)

    def figures(self) -> dict[str, Any]:
        return {"repeated messages": self._repeated}

    def _consume(self) -> None:
        from google.api_core import exceptions

        quiet = False
        while not (quiet and self._ended.is_set()):
            try:
                answer = self._subscriber.pull(
                    subscription=self._subscription, max_messages=1000, timeout=5, retry=None
                )
            except (exceptions.DeadlineExceeded, exceptions.ServiceUnavailable):
                quiet = True
                continue
            found = answer.received_messages
            quiet = not found
            self._taken += [received.message for received in found]
            if ids := [received.ack_id for received in found]:
                self._subscriber.acknowledge(subscription=self._subscription, ack_ids=ids)

    def stop(self) -> None:
        self._ended.set()
        super().stop()


class Spanner(Paused):
    """A table of Google's Spanner emulator."""

    _DDL = (
        "CREATE TABLE counts (owner STRING(20) NOT NULL, slot INT64 NOT NULL, a INT64, b INT64, note STRING(100), "
        "`at` TIMESTAMP) PRIMARY KEY (owner, slot)"
    )

    def start(self) -> None:
        from penstock.emulators.spanner import SpannerEmulator

        self._emulator = SpannerEmulator.start()
        self._emulator.create_database("penstock-test", "penstock-test", "copy", [self._DDL])

    def options(self) -> Options:
        return {"emulator_host": self._emulator.host}  # type: ignore[attr-defined]

    @staticmethod
    def write(events: beam.PCollection[ChangeEvent], **options: Any) -> Refused:
        from penstock.io.spanner import WriteToSpanner

        sink = WriteToSpanner(
            project="penstock-test", instance="penstock-test", database="copy", shards=2, **options
        )
        return {"spanner": (events | "Spanner" >> sink.with_exception_handling())[1]}

    def faults(self, truth: Truth) -> list[str]:
        from penstock.io.spanner.write import SpannerTarget

        host = self.options()["emulator_host"]
        database = (
            SpannerTarget("penstock-test", "penstock-test", "copy", emulator_host=host)
            .open(skip_refused=False)
            ._database
        )
        with database.snapshot() as snapshot:
            rows = [tuple(row) for row in snapshot.execute_sql("SELECT owner, slot, a, b FROM counts")]
        return replica_faults("Spanner", rows, truth)


class Bigtable(Paused):
    """A table of the Bigtable emulator, whose source is the same changes as cells."""

    def start(self) -> None:
        from penstock.emulators.bigtable import BigtableEmulator
        from tests.integration.emulators.bigtable.client import Client

        self._emulator = BigtableEmulator.start()
        self._client = Client(self._emulator.host, "counts")
        self._client.create({"f": {}, "penstock": {}})

    def options(self) -> Options:
        return {"emulator_host": self._emulator.host}  # type: ignore[attr-defined]

    @staticmethod
    def write(events: beam.PCollection[ChangeEvent], **options: Any) -> Refused:
        from penstock.io.bigtable import WriteToBigtable

        sink = WriteToBigtable(
            project="penstock-test", instance="penstock-test", table="counts", shards=2, **options
        )
        cells = events | "Cells" >> beam.FlatMap(cells_of).with_output_types(ChangeEvent)
        return {"bigtable": (cells | "Bigtable" >> sink.with_exception_handling())[1]}

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
        return replica_faults("Bigtable", rows, truth)


def listen(server: ServerProcess, port: int, seconds: float = 60.0) -> None:
    """Wait until a server listens."""
    import time

    assert server.listens(port, time.monotonic() + seconds), "the server does not listen"


TARGETS: dict[str, type[TargetUnderTest]] = {
    "files": Files,
    "spark": Spark,
    "delta": Delta,
    "iceberg": Iceberg,
    "sql": Sql,
    "kafka": Kafka,
    "pubsub": PubSub,
    "spanner": Spanner,
    "bigtable": Bigtable,
}
