"""Assembled transactions become Debezium's records with transaction metadata."""

from __future__ import annotations

import json

import apache_beam as beam
from apache_beam.testing.util import assert_that

from penstock.event import Kind, Op
from penstock.transforms import AssembledTransaction, DebeziumFormat, FormatTransactions
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
