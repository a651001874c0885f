"""Sinks that send rows: one epoch by Penstock's sender, and the same rows by the plain client."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from penstock.event import CellChange, ChangeEvent, Op, Source, Version
from penstock.event.coder import encode_event
from penstock.event.model import NO_COLUMNS
from penstock.io.staging import Delivery, StagedBatch
from penstock.io.staging.batch import EventBlocks, StagedEvents
from penstock.io.staging.blocks import RecordBlock
from penstock.io.staging.coders import RecordBlockCoder
from penstock.io.staging.connector import Connector
from penstock.io.staging.formatted_run import decode_staged
from penstock.transforms.formats.formatted import FormattedRecord

Contender = tuple[Callable[[Any, int], None], Callable[[Any], Any]]
"""The function that writes an epoch, and the function that prepares its input from the events."""

EMULATORS = ("Pub/Sub", "Spanner current", "Bigtable", "BigQuery log", "BigQuery current")
"""Targets that are emulators, whose speed says little. They get a fifth of the events."""


def batch_of(events: Sequence[ChangeEvent]) -> StagedBatch:
    """Return events as a commit record names them."""
    block = RecordBlock.of([(0, encode_event(each)) for each in events])
    content = b"".join(EventBlocks(RecordBlockCoder().encode).content([block]))
    return StagedBatch(Delivery("s", "j", 0, 1, 1, 1), len(events), len(content), 0, content=content)


def sending(connector: Connector, servers: ExitStack) -> Callable[[Any, int], None]:
    """Return the function that sends a staged batch as the epoch of a number, over one connection."""
    connector.check()
    sender = connector.open(skip_refused=False)
    servers.callback(sender.close)

    def send(batch: StagedBatch, number: int) -> None:
        events = StagedEvents(batch, RecordBlockCoder().decode, decode_staged)
        sender.send(Delivery("s", "j", 0, 1, 1, number), events)

    return send


def rows_of(events: Sequence[ChangeEvent]) -> list[dict[str, Any]]:
    return [each.after for each in events if each.after is not None]


def json_format(event: ChangeEvent) -> list[FormattedRecord]:
    """A format as small as possible: the row as JSON."""
    assert event.key is not None
    value = json.dumps(event.after).encode()
    return [FormattedRecord("orders", b"%d" % event.key["c0"], value, event.timestamp, event.version)]


@contextmanager
def row_contenders() -> Iterator[dict[str, Contender]]:
    """Start all targets; yield the contenders by name. The plain one of a sink has its name and ", plain"."""
    with ExitStack() as servers:
        yield {
            **_sql(servers),
            **_kafka(servers),
            **_pubsub(servers),
            **_spanner(servers),
            **_bigtable(servers),
            **_bigquery(servers),
        }


def _sql(servers: ExitStack) -> dict[str, Contender]:
    import psycopg

    from penstock.io.sql.target import SqlTarget
    from penstock.io.sql.write import connector_of
    from penstock_emulators.postgres import PostgresServer

    server = servers.enter_context(PostgresServer.start())
    session = servers.enter_context(psycopg.connect(server.dsn(), autocommit=True))
    columns = (
        "c0 bigint, c1 bigint, c2 bigint, c3 bigint, c4 bigint, c5 text, c6 text, c7 text, c8 float8, c9 bool"
    )
    session.execute(f"create table plain_log ({columns})")
    session.execute(f"create table plain ({columns}, primary key (c0))")
    session.execute(f"create temp table batch ({columns})")
    updates = ", ".join(f"c{n} = excluded.c{n}" for n in range(1, 10))

    def copy(rows: Any, table: str) -> None:
        with session.cursor() as cursor, cursor.copy(f"copy {table} from stdin") as into:
            for row in rows:
                into.write_row(list(row.values()))

    def plain_log(rows: Any, number: int) -> None:
        copy(rows, "plain_log")

    def plain_upsert(rows: Any, number: int) -> None:
        with session.transaction():
            copy({row["c0"]: row for row in rows}.values(), "batch")
            session.execute(f"insert into plain select * from batch on conflict (c0) do update set {updates}")
            session.execute("truncate batch")

    return {
        "PostgreSQL log": (
            sending(connector_of(SqlTarget(server.dsn(), "log", table="orders_log")), servers),
            batch_of,
        ),
        "PostgreSQL log, plain": (plain_log, rows_of),
        "PostgreSQL current": (sending(connector_of(SqlTarget(server.dsn())), servers), batch_of),
        "PostgreSQL current, plain": (plain_upsert, rows_of),
    }


def _kafka(servers: ExitStack) -> dict[str, Contender]:
    from confluent_kafka import Producer
    from confluent_kafka.admin import AdminClient, NewTopic

    from penstock.io.kafka.target import KafkaTarget
    from penstock.io.kafka.write import connector_of
    from penstock_emulators.kafka import KafkaBroker

    broker = servers.enter_context(KafkaBroker.start())
    admin = AdminClient({"bootstrap.servers": broker.address})
    admin.create_topics([NewTopic("plain", 3, 1)])["plain"].result()
    base = {
        "bootstrap.servers": broker.address,
        "linger.ms": 5,
        "log_level": 2,
        "compression.type": "zstd",
        "acks": "all",
    }
    transactional = Producer({**base, "transactional.id": "plain"})
    transactional.init_transactions(30)
    idempotent = Producer({**base, "enable.idempotence": True})

    def produce(producer: Producer, rows: Any) -> None:
        for row in rows:
            producer.produce("plain", json.dumps(row).encode(), b"%d" % row["c0"])
            producer.poll(0)

    def plain_transaction(rows: Any, number: int) -> None:
        transactional.begin_transaction()
        produce(transactional, rows)
        transactional.commit_transaction(30)

    def plain_idempotent(rows: Any, number: int) -> None:
        produce(idempotent, rows)
        idempotent.flush(30)

    contenders: dict[str, Contender] = {}
    for guarantee, plain in (("transactional", plain_transaction), ("idempotent", plain_idempotent)):
        target = KafkaTarget(broker.address, json_format, topic=guarantee, guarantee=guarantee, partitions=3)  # type: ignore[arg-type]
        contenders[f"Kafka {guarantee}"] = (sending(connector_of(target), servers), batch_of)
        contenders[f"Kafka {guarantee}, plain"] = (plain, rows_of)
    return contenders


def _pubsub(servers: ExitStack) -> dict[str, Contender]:
    import os

    from google.cloud import pubsub_v1
    from google.cloud.pubsub_v1.types import PublisherOptions

    from penstock.io.pubsub.target import PubSubTarget
    from penstock.io.pubsub.write import connector_of
    from penstock_emulators.pubsub import PubSubEmulator

    emulator = servers.enter_context(PubSubEmulator.start())
    os.environ["PUBSUB_EMULATOR_HOST"] = emulator.host
    client = pubsub_v1.PublisherClient(publisher_options=PublisherOptions(enable_message_ordering=True))
    topic = client.topic_path("benchmark", "plain")
    client.create_topic(name=topic)

    def plain(rows: Any, number: int) -> None:
        answers = [
            client.publish(topic, json.dumps(row).encode(), ordering_key=str(row["c0"])) for row in rows
        ]
        for answer in answers:
            answer.result()

    target = PubSubTarget("benchmark", "orders", json_format, create_topics=True)
    return {"Pub/Sub": (sending(connector_of(target), servers), batch_of), "Pub/Sub, plain": (plain, rows_of)}


def _spanner(servers: ExitStack) -> dict[str, Contender]:
    from penstock.io.spanner.sink.sender import SpannerSender
    from penstock.io.spanner.sink.target import SpannerTarget
    from penstock.io.spanner.sink.write import connector_of
    from penstock_emulators.spanner import SpannerEmulator

    kinds = ["INT64"] * 5 + ["STRING(MAX)"] * 3 + ["FLOAT64", "BOOL"]
    columns = ", ".join(f"c{n} {kind}" for n, kind in enumerate(kinds))
    emulator = servers.enter_context(SpannerEmulator.start())
    tables = [f"CREATE TABLE {name} ({columns}) PRIMARY KEY (c0)" for name in ("orders", "plain")]
    emulator.create_database("benchmark", "benchmark", "copy", tables)
    target = SpannerTarget("benchmark", "benchmark", "copy", emulator_host=emulator.host)
    database = SpannerSender(target, skip_refused=False)._database
    names = [f"c{n}" for n in range(10)]

    def plain(rows: Any, number: int) -> None:
        # As many rows in a transaction as in one of the sink, which counts the cells of the versions too.
        listed = [list(row.values()) for row in {row["c0"]: row for row in rows}.values()]
        for start in range(0, len(listed), 1400):
            with database.batch() as batch:
                batch.insert_or_update("plain", names, listed[start : start + 1400])

    return {
        "Spanner current": (sending(connector_of(target), servers), batch_of),
        "Spanner current, plain": (plain, rows_of),
    }


def _bigtable(servers: ExitStack) -> dict[str, Contender]:
    from concurrent.futures import ThreadPoolExecutor

    from google.cloud.bigtable_v2.types import bigtable as api

    from penstock.io.bigtable.sink.target import BigtableTarget
    from penstock.io.bigtable.sink.write import connector_of
    from penstock.io.bigtable.source import Connection
    from penstock_emulators.bigtable import BigtableEmulator
    from tests.integration.emulators.bigtable.client import DATA, INSTANCE, Client, set_cell

    emulator = servers.enter_context(BigtableEmulator.start())
    for name in ("orders", "plain"):
        Client(emulator.host, name).create({"f": {}, "penstock": {}})
    project, instance = INSTANCE.split("/")[1::2]
    target = BigtableTarget(project, instance, "orders", Connection(emulator_host=emulator.host))
    client = Client(emulator.host, "plain")

    def mutate(row: dict[str, Any]) -> None:
        cells = [set_cell("f", name.encode(), str(value).encode(), 1000) for name, value in row.items()]
        request = api.MutateRowRequest.pb()(
            table_name=client.table, row_key=b"%d" % row["c0"], mutations=cells
        )
        client.call(DATA, "MutateRow", request)

    threads = servers.enter_context(ThreadPoolExecutor(32))

    def plain(rows: Any, number: int) -> None:
        list(threads.map(mutate, rows))

    return {
        "Bigtable": (
            sending(connector_of(target), servers),
            lambda events: batch_of([_cells(each) for each in events]),
        ),
        "Bigtable, plain": (plain, rows_of),
    }


def _bigquery(servers: ExitStack) -> dict[str, Contender]:
    """The plain client appends rows to the default stream, as Google's samples do. The emulator appends changes too."""
    from google.cloud.bigquery_storage_v1 import types
    from google.cloud.bigquery_storage_v1.writer import AppendRowsStream
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    from penstock.io.bigquery.clients import rest_client, write_client
    from penstock.io.bigquery.target import BigQueryTarget
    from penstock.io.bigquery.write import connector_of
    from penstock_emulators.bigquery import BigQueryEmulator

    emulator = servers.enter_context(BigQueryEmulator.start())
    given = {"endpoint": emulator.endpoint, "write_endpoint": emulator.write_endpoint}
    target = BigQueryTarget("benchmark", "shop", table="orders_log", **given)
    client = rest_client(target)
    client.create_dataset("benchmark.shop")
    kinds = ["INT64"] * 5 + ["STRING"] * 3 + ["FLOAT64", "BOOL"]
    columns = ", ".join(f"c{number} {kind}" for number, kind in enumerate(kinds))
    client.query(f"CREATE TABLE shop.plain ({columns})").result()
    proto = descriptor_pb2.FieldDescriptorProto
    types_of = {"INT64": proto.TYPE_INT64, "STRING": proto.TYPE_STRING, "BOOL": proto.TYPE_BOOL}
    descriptor = descriptor_pb2.DescriptorProto(name="Plain")
    for number, kind in enumerate(kinds):
        descriptor.field.add(
            name=f"c{number}",
            number=number + 1,
            type=types_of.get(kind, proto.TYPE_DOUBLE),
            label=proto.LABEL_OPTIONAL,
        )
    file = descriptor_pb2.FileDescriptorProto(name="plain.proto", syntax="proto2")
    file.message_type.add().CopyFrom(descriptor)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    message = message_factory.GetMessageClass(pool.FindMessageTypeByName("Plain"))
    template = types.AppendRowsRequest(
        write_stream="projects/benchmark/datasets/shop/tables/plain/streams/_default"
    )
    template.proto_rows.writer_schema.proto_descriptor = descriptor
    stream = AppendRowsStream(write_client(target), template)
    servers.callback(stream.close)

    def plain(rows: Any, number: int) -> None:
        # The emulator wants the name in each request.
        request = types.AppendRowsRequest(write_stream=template.write_stream)
        request.proto_rows.rows.serialized_rows = [message(**row).SerializeToString() for row in rows]
        stream.send(request).result()

    current = BigQueryTarget("benchmark", "shop", "current", **given)
    return {
        "BigQuery log": (sending(connector_of(target), servers), batch_of),
        "BigQuery log, plain": (plain, rows_of),
        "BigQuery current": (sending(connector_of(current), servers), batch_of),
        "BigQuery current, plain": (plain, rows_of),
    }


def _cells(event: ChangeEvent) -> ChangeEvent:
    row = {"row_key": b"%d" % (event.key or {})["c0"]}
    cells = tuple(
        CellChange("SET_CELL", "f", name.encode(), 1000, None, str(value).encode())
        for name, value in (event.after or {}).items()
    )
    source, version = (
        Source("bigtable", "p/i", table="orders"),
        Version(event.version.order * 1000, "", f"{0:020d}"),
    )
    return ChangeEvent(source, Op.UPDATE, event.timestamp, row, None, row, version, NO_COLUMNS, cells=cells)
