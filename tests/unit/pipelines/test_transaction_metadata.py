"""`transaction_metadata` of the pipeline from PostgreSQL to files: BEGIN, places and END around each transaction."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.runners.portability.fn_api_runner import FnApiRunner
from apache_beam.transforms.window import TimestampedValue

from penstock.errors import UsageError
from penstock.io.postgres import ReadFromPostgresChangeStream
from penstock.io.postgres.column_types import column_type
from penstock.io.postgres.record import ChangeKind, LogRecord, LogTransaction, Table, TableColumn
from penstock.pipelines.event_lines import EventLines
from penstock.pipelines.event_options import EventOptions
from penstock.pipelines.postgres_to_files import postgres_to_files
from penstock.transforms.formats.lines import Line

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


def test_transaction_metadata_is_refused_with_rows_of_snapshots() -> None:
    events = EventOptions.of("postgres", {"format": "debezium", "transaction_metadata": True})
    for options in ({"snapshot": "initial"}, {"signal_file": "/data/signals"}):
        source = ReadFromPostgresChangeStream(**SOURCE, **options)  # type: ignore[arg-type]
        assert source.reads_snapshots
        with pytest.raises(UsageError, match="set snapshot=never"):
            build(source, events)
    assert not ReadFromPostgresChangeStream(**SOURCE).reads_snapshots  # type: ignore[arg-type]


def build(source: Any, events: EventOptions) -> None:
    postgres_to_files.__wrapped__(beam.Pipeline(), source=source, events=events, output="/data")  # type: ignore[attr-defined]


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
