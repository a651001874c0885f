"""The records on the pages of docs/formats are those that the formats make."""

from __future__ import annotations

import re
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from penstock.event import (
    CellChange,
    ChangeEvent,
    Column,
    ColumnType,
    Image,
    Kind,
    Op,
    Source,
    TableSchema,
    Transaction,
    Version,
)
from penstock.transforms import (
    BigtableChangeLogFormat,
    ChangeFeedFormat,
    CloudEventsFormat,
    DebeziumFormat,
    DynamoDbFormat,
    EventFormat,
    SpannerBigQueryFormat,
    YdbFormat,
)
from penstock.transforms.formats.avro import AvroConverter
from penstock.transforms.formats.converter import Converter
from penstock.transforms.formats.lines import RecordLines
from penstock.transforms.formats.protobuf import ProtobufConverter
from penstock.transforms.formats.schema_registry import SchemaRegistry

PAGES = Path(__file__).resolve().parents[3] / "docs" / "formats"
AT = 1_795_263_118_775_981_000
ORDERS = TableSchema(
    (
        Column("Id", ColumnType(Kind.INT64, "INT64"), False, 1),
        Column("State", ColumnType(Kind.STRING, "STRING")),
        Column("Price", ColumnType(Kind.DECIMAL, "NUMERIC", 38, 9)),
    )
)
SOURCE = Source("spanner", "my-project/main", "shop", "", "Orders", "AllOrders", "NEW_ROW_AND_OLD_VALUES")
NEW: Image = {"Id": 1, "State": "new", "Price": Decimal("2.50")}
PAID: Image = {**NEW, "State": "paid"}


def order(op: Op, before: Image | None, after: Image | None) -> ChangeEvent:
    version, transaction = Version(AT, "tx-7", "00000001", 0), Transaction("tx-7", 1, 1, True)
    return ChangeEvent(SOURCE, op, AT, {"Id": 1}, before, after, version, ORDERS, transaction)


EVENTS = [
    order(Op.CREATE, None, NEW),
    order(Op.UPDATE, {"Id": 1, "State": "new"}, PAID),
    order(Op.DELETE, PAID, None),
    order(Op.READ, None, NEW),
]
CELLS = (
    CellChange("SET_CELL", "cf", b"name", 1_769_860_800_123_000, None, b"Ada"),
    CellChange("DELETE_CELLS", "cf", b"age", 0, None),
    CellChange("DELETE_FAMILY", "old"),
)
ROW_CHANGE = ChangeEvent(
    Source("bigtable", "my-project/main", table="users"),
    Op.UPDATE,
    AT,
    {"row_key": b"user#17"},
    None,
    {"row_key": b"user#17"},
    Version(AT, "", f"{3:020d}"),
    TableSchema((Column("row_key", ColumnType(Kind.BYTES), False, 1),)),
    Transaction("", origin="c1"),
    None,
    CELLS,
)


def made_by(*formats: Callable[[ChangeEvent], Any], events: list[ChangeEvent] = EVENTS) -> set[str]:
    records = [record for format_ in formats for event in events for record in format_(event)]
    return {part.decode() for record in records for part in (record.key, record.value) if part}


def registered_schemas() -> set[str]:
    registry = SchemaRegistry("mock://documented")
    DebeziumFormat("srv", converter=AvroConverter(registry))(EVENTS[0])
    return {registry.schema(id_, "AVRO") for id_ in (1, 2)}


def lines_of(converter: Callable[[SchemaRegistry], Converter]) -> set[str]:
    """Return the lines of the events in Avro or Protobuf, with keys, from a registry without schemas."""
    registry = SchemaRegistry(f"mock://documented-{converter.__name__}")
    lines = RecordLines(DebeziumFormat("srv", converter=converter(registry)), "messages")
    return {bytes(line.line).decode() for event in EVENTS for line in lines(event)}


FEED = YdbFormat("feed")
MADE = {
    "debezium.md": made_by(DebeziumFormat("srv")),
    "avro-protobuf.md": registered_schemas() | lines_of(AvroConverter) | lines_of(ProtobufConverter),
    "event-envelope.md": made_by(EventFormat("srv")),
    "ydb.md": made_by(
        FEED,
        YdbFormat("feed", mode="NEW_AND_OLD_IMAGES", virtual_timestamps=True),
        YdbFormat("feed", mode="NEW_AND_OLD_IMAGES", format="DEBEZIUM_JSON"),
    )
    | {(FEED.barrier("Orders", AT).value or b"").decode()},
    "change-feed.md": made_by(ChangeFeedFormat()),
    "dynamodb.md": made_by(DynamoDbFormat(aws_region="eu-west-1")),
    "cloudevents.md": made_by(CloudEventsFormat(FEED)),
    "google-templates.md": made_by(SpannerBigQueryFormat())
    | made_by(BigtableChangeLogFormat("main"), events=[ROW_CHANGE]),
}


@pytest.mark.parametrize("page", MADE)
def test_every_record_on_the_page_is_made_by_the_format(page: str) -> None:
    blocks = re.findall(r"```json\n(.*?)```", (PAGES / page).read_text("utf-8"), re.DOTALL)
    shown = [line for block in blocks for line in block.splitlines()]
    assert shown
    assert [line for line in shown if line not in MADE[page]] == []


def test_every_format_has_its_page() -> None:
    assert {page.name for page in PAGES.glob("*.md")} == {*MADE, "README.md", "arrow.md"}
