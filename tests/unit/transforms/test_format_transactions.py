"""Assembled transactions become Debezium's records with transaction metadata."""

from __future__ import annotations

import json

import apache_beam as beam
from apache_beam.testing.util import assert_that
from msgspec.structs import replace

from penstock.event import Kind, Op, Version
from penstock.transforms import AssembledTransaction, DebeziumFormat, FormatTransactions
from penstock.transforms.assemble_transactions import in_commit_order
from penstock.transforms.formats.debezium_transaction import format_transaction
from tests.unit.formats.events import event_of, schema_of

SCHEMA = schema_of({"Id": Kind.INT64}, State=Kind.STRING)


def test_a_transaction_is_framed_by_begin_and_end_and_its_records_have_their_place() -> None:
    events = tuple(event_of(SCHEMA, Op.CREATE, after={"Id": number, "State": "new"}) for number in (1, 2))

    def check(records: list) -> None:
        begin, *rows, end = [json.loads(record.value) for record in records]
        assert [begin["status"], end["status"], end["event_count"]] == ["BEGIN", "END", 2]
        assert [row["transaction"]["total_order"] for row in rows] == [1, 2]
        assert records[0].topic == records[-1].topic == "srv.transaction"

    with beam.Pipeline() as pipeline:
        transactions = pipeline | beam.Create([AssembledTransaction("7", 1, events)])
        assert_that(transactions | FormatTransactions(DebeziumFormat("srv")), check)


def test_the_count_of_a_transaction_has_only_the_events_that_become_records() -> None:
    events = (
        event_of(SCHEMA, Op.CREATE, after={"Id": 1, "State": "new"}),
        replace(event_of(SCHEMA, Op.CREATE, after={"Id": 1}), op=Op.TRUNCATE, key=None, after=None),
    )
    # The connector leaves truncates out before it counts.
    for skipped, count in (("t", 1), ("none", 2)):
        records = format_transaction(DebeziumFormat("srv", skipped_operations=skipped), events)
        assert json.loads(records[-1].value or b"")["event_count"] == count == len(records) - 2


def test_transactions_of_one_time_have_the_order_of_the_log_and_not_of_their_ids() -> None:
    # The event timestamps of PostgreSQL may be equal, and ids are texts.
    def of(id_: str, commit_lsn: int) -> AssembledTransaction:
        event = replace(
            event_of(SCHEMA, Op.CREATE, after={"Id": 1}), version=Version(commit_lsn, id_, "1", 0)
        )
        return AssembledTransaction(id_, 1, (event,))

    first, second = of("99", 500), of("100", 600)
    assert in_commit_order([second, first]) == [first, second]
