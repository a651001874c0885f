"""`transaction_metadata` of pipelines from PostgreSQL: BEGIN, places and END around each transaction."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.runners.portability.fn_api_runner import FnApiRunner
from apache_beam.transforms.window import TimestampedValue

from penstock.errors import UsageError
from penstock.event import ChangeEvent
from penstock.event.coder import decode_event, encode_event
from penstock.event.sharding import shard_of
from penstock.io.postgres import ReadFromPostgresChangeStream
from penstock.io.postgres.column_types import column_type
from penstock.io.postgres.events import EventConverter
from penstock.io.postgres.record import ChangeKind, LogRecord, LogTransaction, Table, TableColumn
from penstock.io.pubsub.values import messages_of
from penstock.pipelines.event_lines import EventLines
from penstock.pipelines.event_options import EventOptions
from penstock.pipelines.source_to_sink import _write_events, build
from penstock.pipelines.transaction_metadata import refuse_snapshots
from penstock.transforms import DebeziumFormat
from penstock.transforms.formats.debezium_transaction import placed_events
from penstock.transforms.formats.lines import Line
from tests.support.batches import Elements

SHOP = SimpleNamespace(database="shop", publication="changes", slot="srv")
SOURCE = {"dsn": "dbname=shop", "publication": "changes", "slot": "srv"}
SECOND = 1_000_000_000
seen: list[tuple[str, Any]] = []


class NoteFn(beam.DoFn):
    """Notes the table and the content of each line."""

    def process(self, line: Line) -> None:
        seen.append((line.table, json.loads(line.line)))


def table(name: str) -> Table:
    return Table(1, "public", name, "DEFAULT", (TableColumn("id", column_type(23), 23, True, 1, False),))


def inserted(xid: int, commit: int, sequence: int, name: str, *, last: bool) -> LogRecord:
    transaction = LogTransaction(xid, commit, SECOND)
    return LogRecord(
        ChangeKind.INSERT,
        SECOND,
        transaction,
        sequence,
        commit - 10 + sequence,
        last,
        table(name),
        (str(sequence),),
    )


def lines(*records: LogRecord) -> list[tuple[str, Any]]:
    seen.clear()
    options = EventOptions.of("postgres", {"format": "debezium", "transaction_metadata": True})
    made = EventLines(options, "postgres", SHOP, lambda: "FULL", 1)
    with beam.Pipeline(FnApiRunner()) as pipeline:
        timed = [TimestampedValue(record, record.event_timestamp // SECOND) for record in records]
        read = pipeline | beam.Create(timed, reshuffle=False)
        _ = read | made | "Note" >> beam.ParDo(NoteFn())
    return list(seen)


def test_each_transaction_is_framed_and_its_records_have_their_place() -> None:
    message = LogRecord(ChangeKind.MESSAGE, SECOND, None, 1, 900, True, prefix="p", content=b"x")
    found = lines(
        inserted(9, 500, 1, "a", last=False),
        inserted(9, 500, 2, "b", last=False),
        message,
        inserted(9, 500, 3, "a", last=True),
    )
    in_transaction = [(name, line) for name, line in found if line.get("op") != "m"]
    assert [name for name, _ in in_transaction] == [
        "transaction",
        "public.a",
        "public.b",
        "public.a",
        "transaction",
    ]
    begin, *rows, end = [line for _, line in in_transaction]
    assert (begin["status"], end["status"], end["event_count"]) == ("BEGIN", "END", 3)
    places = [
        (row["transaction"]["total_order"], row["transaction"]["data_collection_order"]) for row in rows
    ]
    assert places == [(1, 1), (2, 1), (3, 2)]
    assert len(found) == 6  # the message that was written outside of a transaction has no metadata


class NotedRecords(beam.PTransform):
    """A sink that formats the events in its last step, as queues do."""

    def __init__(self, format: DebeziumFormat) -> None:
        super().__init__()
        self._format = format

    def expand(self, events: Any) -> Any:
        return events | beam.FlatMap(self._lines) | beam.ParDo(NoteFn())

    def _lines(self, event: ChangeEvent) -> list[Line]:
        decoded = decode_event(encode_event(event))  # a queue stages its events
        return [Line(each.topic, None, each.value or b"") for each in self._format(decoded)]


def test_records_of_queues_are_those_of_files() -> None:
    records = [inserted(9, 500, n, name, last=n == 3) for n, name in ((1, "a"), (2, "b"), (3, "a"))]
    in_files = lines(*records)
    seen.clear()
    options = EventOptions.of("postgres", {"format": "debezium", "transaction_metadata": True})
    format = DebeziumFormat("srv")
    with beam.Pipeline(FnApiRunner()) as pipeline:
        source = Elements([(each, 1_000_000) for each in records])
        source.stream = SHOP
        _write_events(pipeline, "postgres", source, options, NotedRecords(format), metadata=format)
    assert seen == [(f"srv.{name}", line) for name, line in in_files]


@pytest.mark.parametrize("sink", ["kafka", "pubsub"])
def test_queues_take_transaction_metadata_with_the_checks_of_files(sink: str) -> None:
    target = {
        "kafka": {"bootstrap_servers": "localhost:9"},
        "pubsub": {"target_project": "p", "topic": "changes-{table}"},
    }[sink]

    def labels(**options: Any) -> set[str]:
        pipeline = beam.Pipeline()
        build(pipeline, "postgres", sink, {**SOURCE, **target, **options})
        return {each.unique_name for each in pipeline.to_runner_api().components.transforms.values()}

    assert "TransactionMetadata" not in labels()
    assert "TransactionMetadata" in labels(transaction_metadata=True)
    for options, said in (
        ({"snapshot": "initial"}, "set snapshot=never"),
        ({"dead_letters": "/data/letters"}, "remove dead_letters"),
        ({"format": "envelope"}, "set format=debezium"),
        ({"topic": "{schema}-{table}"}, "Remove {schema}"),
    ):
        with pytest.raises(UsageError, match=said):
            labels(transaction_metadata=True, **options)


def test_begin_and_end_have_ids_of_their_own_and_one_order_in_a_queue() -> None:
    format = DebeziumFormat("srv")
    convert = EventConverter("", "shop", "changes")
    (event,) = convert(inserted(9, 500, 1, "a", last=True))
    begin, row, end = placed_events(format, [event])
    messages = [
        message for each in (begin, row, end) for message in messages_of(each, format, "t", ordering=True)
    ]
    assert len({message.attributes["penstock_id"] for message in messages}) == 3
    assert messages[0].ordering_key == messages[2].ordering_key != messages[1].ordering_key
    assert shard_of(begin, 97) == shard_of(end, 97)
    assert begin.version < row.version < end.version


def test_transaction_metadata_is_refused_with_rows_of_snapshots() -> None:
    events = EventOptions.of("postgres", {"format": "debezium", "transaction_metadata": True})
    for options in ({"snapshot": "initial"}, {"signal_file": "/data/signals"}):
        source = ReadFromPostgresChangeStream(**SOURCE, **options)  # type: ignore[arg-type]
        assert source.reads_snapshots
        with pytest.raises(UsageError, match="set snapshot=never"):
            refuse_snapshots(events, source)
        with pytest.raises(UsageError, match="set snapshot=never"):
            given = {**SOURCE, **options, "output": "/data", "format": "debezium"}
            build(beam.Pipeline(), "postgres", "files", {**given, "transaction_metadata": True})
    assert not ReadFromPostgresChangeStream(**SOURCE).reads_snapshots  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("choices", "said"),
    [
        ({"format": "envelope"}, "set format=debezium"),
        ({"format": "debezium", "dead_letters": "/data/letters"}, "remove dead_letters"),
        ({}, "native lines are written as the source sent them"),
    ],
)
def test_transaction_metadata_needs_debeziums_format_and_every_record(
    choices: dict[str, str], said: str
) -> None:
    with pytest.raises(UsageError, match=said):
        options = EventOptions.of("postgres", {**choices, "transaction_metadata": True})
        EventLines(options, "postgres", SHOP, lambda: "FULL", 1)
