"""The layouts of Google's templates, byte for byte; column names are those of the templates' documentation."""

from __future__ import annotations

import json
from decimal import Decimal

import pytest

from penstock.event import CellChange, ColumnType, Kind, Op, Source
from penstock.io.bigtable.events import EventConverter
from penstock.io.bigtable.record import ChangeStreamMutation, DeleteCells, DeleteFamily, MutationType, SetCell
from penstock.transforms.formats.bigtable_change_log import change_log_lines
from penstock.transforms.formats.google_templates import BigtableChangeLogFormat, SpannerBigQueryFormat
from tests.unit.formats.events import event_of, schema_of

SCHEMA = schema_of(
    {"Id": Kind.INT64},
    Price=Kind.DECIMAL,
    Raw=Kind.BYTES,
    Day=Kind.DATE,
    At=Kind.TIMESTAMP,
    Rates=ColumnType(Kind.ARRAY, element=ColumnType(Kind.FLOAT64)),
)
ROW = {
    "Id": 2**53 + 1,
    "Price": Decimal("1.50"),
    "Raw": b"\xff",
    "Day": 1,
    "At": 1,
    "Rates": [1.5, None, float("nan")],
}


def test_a_row_has_its_columns_and_the_metadata() -> None:
    (record,) = SpannerBigQueryFormat()(event_of(SCHEMA, Op.CREATE, after=ROW))
    assert record.topic == "Orders_changelog"
    assert record.key == b'{"Id":9007199254740993}'
    assert record.value == (
        b'{"Id":9007199254740993,"Price":"1.50","Raw":"/w==","Day":"1970-01-02","At":"1970-01-01T00:00:00.000000001Z",'
        b'"Rates":[1.5,null,"NaN"],"_metadata_spanner_mod_type":"INSERT","_metadata_spanner_table_name":"Orders",'
        b'"_metadata_spanner_commit_timestamp":"2022-12-11T21:00:00.890000000Z","_metadata_spanner_server_transaction_id":"tx",'
        b'"_metadata_spanner_record_sequence":"00000001",'
        b'"_metadata_spanner_is_last_record_in_transaction_in_partition":true,'
        b'"_metadata_spanner_number_of_records_in_transaction":1,"_metadata_spanner_number_of_partitions_in_transaction":1}'
    )


def test_not_sent_null_and_empty_stay_different() -> None:
    (record,) = SpannerBigQueryFormat()(event_of(SCHEMA, after={"Id": 1, "Price": None, "Raw": b""}))
    row = json.loads(record.value or b"")
    assert ("Day" in row, row["Price"], row["Raw"]) == (False, None, "")


def test_a_delete_has_the_old_row_as_far_as_it_was_sent() -> None:
    (record,) = SpannerBigQueryFormat()(event_of(SCHEMA, Op.DELETE, before={"Id": 1, "Price": Decimal(2)}))
    row = json.loads(record.value or b"")
    assert (row["_metadata_spanner_mod_type"], row["Id"], row["Price"]) == ("DELETE", 1, "2")


def test_a_value_that_cannot_be_shown_is_named_by_its_column() -> None:
    with pytest.raises(ValueError, match="column Day of Orders cannot be shown for BigQuery"):
        SpannerBigQueryFormat()(event_of(SCHEMA, after={"Id": 1, "Day": 10**8}))


def test_the_change_log_of_events_has_the_fields_of_the_lines_of_native_records() -> None:
    entries = (SetCell("cf", b"q", 5, b"v"), DeleteCells("cf", b"\xff", 1, None), DeleteFamily("old"))
    change = ChangeStreamMutation(b"r", MutationType.USER, "c1", 5_000, 3, "token", 4_000, entries)
    (event,) = EventConverter("p/i", "users")(change)
    ours = [json.loads(record.value or b"") for record in BigtableChangeLogFormat("i")(event)]
    native = [json.loads(line.line) for line in change_log_lines(change, instance="i", table="users")]
    for line in native:
        del line["low_watermark"], line["entry_index"], line["number_of_entries"]
    assert ours == native
    with pytest.raises(ValueError, match="use BigtableChangeLogFormat"):
        SpannerBigQueryFormat()(event)


def test_base64_is_used_for_all_bytes_if_it_is_asked_for() -> None:
    event = event_of(
        schema_of({"row_key": Kind.BYTES}),
        after={"row_key": b"r"},
        source=Source("bigtable", table="users"),
        cells=(CellChange("SET_CELL", "cf", b"q", 5, None, b"v"),),
    )
    (record,) = BigtableChangeLogFormat("i", base64=True)(event)
    line = json.loads(record.value or b"")
    assert (line["row_key"], line["column"], line["value"]) == ("cg==", "cQ==", "dg==")
