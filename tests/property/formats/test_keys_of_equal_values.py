"""Keys whose equal values have several texts: topics and replicas have one row for each row of the table.

PostgreSQL compares the bytes of a key to decide whether an UPDATE logs the old one, and the operator of its type to
decide whether two keys are equal.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.event import ChangeEvent, Column, ColumnType, Kind, TableSchema
from penstock.event.keys import canonical_key, without_trailing_zeros
from penstock.event.replica import ReplicaRow, apply, fold
from penstock.io.columnar.table_rows import key_text
from penstock.io.postgres import messages as m
from penstock.io.postgres.catalog import describe
from penstock.io.postgres.column_types import CatalogType
from penstock.io.postgres.events import EventConverter
from penstock.io.postgres.record import ChangeKind, LogRecord, LogTransaction, Table
from penstock.transforms.formats.debezium import DebeziumFormat
from penstock.transforms.formats.debezium_log import LogRecordFormat
from penstock.transforms.formats.dynamodb import DynamoDbFormat
from penstock.transforms.formats.formatted import FormattedRecord
from penstock.transforms.formats.ydb import YdbFormat

CITEXT = 20_001
CATALOG = {CITEXT: CatalogType(CITEXT, "public", "citext", category="b")}

# Type, and rows of texts: all texts of one row are one value for PostgreSQL.
TYPES: dict[str, tuple[int, list[list[str]]]] = {
    "numeric": (1700, [["2.5", "2.50", "2.500"], ["0", "0.0", "0.00"], ["100", "100.0"], ["-1", "-1.00"]]),
    "numeric[]": (1231, [["{2.5,1}", "{2.50,1.0}"], ["{0}", "{0.0}"]]),
    "double precision": (701, [["0", "-0"], ["1.5"], ["1e+100"]]),
    "real": (700, [["-0", "0"], ["3.14"]]),
    "timestamp with time zone": (
        1184,
        [["2024-05-01 10:00:00+00", "2024-05-01 12:00:00+02"], ["2024-05-01 10:00:00.1+00"]],
    ),
    "interval": (1186, [["P1M", "P30D", "PT720H"], ["P1D", "PT24H"]]),
    "citext": (CITEXT, [["ada", "Ada", "ADA"], ["bob", "BOB"]]),
    "text of a nondeterministic collation": (25, [["ada", "Ada"], ["é", "é"]]),
    "jsonb": (3802, [["1", "1.0"], ['{"a": 1}', '{"a": 1.0}']]),
    "character": (1042, [["a", "a  "], ["b"]]),
}

FORMATS: dict[str, Callable[[ChangeEvent], list[FormattedRecord]]] = {
    "debezium": DebeziumFormat("srv"),
    "debezium with schemas": DebeziumFormat("srv", schemas_enable=True),
    "debezium_exact": DebeziumFormat("srv", debezium_exact=True),
    "debezium as texts": DebeziumFormat(
        "srv",
        decimal_handling_mode="string",
        interval_handling_mode="string",
        time_precision_mode="isostring",
    ),
    "debezium as doubles": DebeziumFormat("srv", decimal_handling_mode="double"),
    "ydb": YdbFormat("feed", mode="NEW_IMAGE", extended_dates=True),
    "ydb as debezium": YdbFormat("feed", mode="NEW_IMAGE", format="DEBEZIUM_JSON"),
    "dynamodb": DynamoDbFormat(stream_view_type="NEW_IMAGE"),
}


def table_of(oid: int, identity: str) -> Table:
    columns = (m.RelationColumn("k", oid, -1, True), m.RelationColumn("v", 23, -1, identity == "f"))
    relation = m.Relation(1, "public", "t", identity, columns)
    return describe(relation, [("k", True, 1, None), ("v", False, None, None)], CATALOG)


class Source:
    """A table with a key and a number, and the records of its log."""

    def __init__(self, table: Table, texts: list[list[str]]) -> None:
        self.table, self.classes = table, {text: place for place, row in enumerate(texts) for text in row}
        self.rows: dict[int, tuple[str, str]] = {}
        self.records: list[LogRecord] = []

    def log(self, kind: ChangeKind, old: tuple[str, str] | None, new: tuple[str, str] | None) -> None:
        full = self.table.replica_identity == "FULL"
        if (
            kind is ChangeKind.UPDATE
            and not full
            and old is not None
            and new is not None
            and old[0] == new[0]
        ):
            old = None
        shown = old if old is None or full else (old[0], None)
        lsn = len(self.records) + 1
        transaction = LogTransaction(lsn, lsn, lsn * 1_000_000)
        self.records.append(
            LogRecord(
                kind,
                lsn * 1_000_000,
                transaction,
                1,
                lsn,
                True,
                self.table,
                new,
                shown,
                full and old is not None,
            )
        )

    def run(self, text: str, to: str, value: int) -> None:
        """Insert, delete, or update the row with this key, so that each statement is one that the server allows."""
        place, target = self.classes[text], self.classes[to]
        old = self.rows.get(place)
        if old is None:
            self.rows[place] = (text, str(value))
            self.log(ChangeKind.INSERT, None, self.rows[place])
        elif value % 5 == 0:
            self.log(ChangeKind.DELETE, self.rows.pop(place), None)
        elif target == place or target not in self.rows:
            del self.rows[place]
            self.rows[target] = (to, str(value))
            self.log(ChangeKind.UPDATE, old, self.rows[target])

    @property
    def values(self) -> list[int]:
        return sorted(int(value) for _, value in self.rows.values())


def compacted(records: Iterator[FormattedRecord]) -> dict[bytes, Any]:
    topic: dict[bytes, Any] = {}
    for record in records:
        assert record.key is not None
        topic[record.key] = None if record.value is None else json.loads(record.value)
    return topic


def value_of(record: Any) -> int | None:
    if record is None:
        return None
    record = record.get("payload", record)
    if "dynamodb" in record:
        image = record["dynamodb"].get("NewImage")
        return int(image["v"]["N"]) if image else None
    if "op" in record:
        return None if record["op"] == "d" else record["after"]["v"]
    return None if "erase" in record else record["newImage"]["v"]


def drawn(data: st.DataObject, name: str) -> Source:
    oid, texts = TYPES[name]
    every = st.sampled_from([text for row in texts for text in row])
    source = Source(table_of(oid, data.draw(st.sampled_from("fd"))), texts)
    for text, to, value in data.draw(st.lists(st.tuples(every, every, st.integers(1, 99)), max_size=12)):
        source.run(text, to, value)
    return source


def events(source: Source) -> list[ChangeEvent]:
    convert = EventConverter()
    return [event for record in source.records for event in convert(record)]


@pytest.mark.parametrize("name", TYPES)
@given(data=st.data(), format_name=st.sampled_from(list(FORMATS)))
@settings(max_examples=60, deadline=None)
def test_a_compacted_topic_has_the_rows_of_the_table(
    name: str, data: st.DataObject, format_name: str
) -> None:
    source, format_ = drawn(data, name), FORMATS[format_name]
    if "ydb" in format_name or format_name == "dynamodb":  # they check that the source sends whole rows
        source.table = msgspec.structs.replace(source.table, replica_identity="FULL")
        source.records = [msgspec.structs.replace(each, table=source.table) for each in source.records]
    topic = compacted(record for event in events(source) for record in format_(event))
    assert sorted(filter(None, map(value_of, topic.values()))) == source.values


@pytest.mark.parametrize("name", TYPES)
@given(data=st.data())
@settings(max_examples=25, deadline=None)
def test_records_made_without_events_have_the_same_bytes(name: str, data: st.DataObject) -> None:
    source, format_ = drawn(data, name), DebeziumFormat("srv")
    direct, convert = LogRecordFormat(format_), EventConverter()
    for record in source.records:
        assert direct(record) == [each for event in convert(record) for each in format_(event)]


@pytest.mark.parametrize("name", TYPES)
@given(data=st.data(), size=st.integers(1, 5))
@settings(max_examples=25, deadline=None)
def test_a_keyed_replica_has_the_rows_of_the_table(name: str, data: st.DataObject, size: int) -> None:
    source = drawn(data, name)
    found, rows = events(source), dict[str, ReplicaRow]()
    for place in range(0, len(found), size):
        for changes in fold(found[place : place + size]).values():
            current = {
                id_: rows[key_text(key)]
                for id_, key in changes.keys_to_read().items()
                if key_text(key) in rows
            }
            rows |= {key_text(row.key): row for row in apply(changes, current).values()}
    assert sorted(row.values["v"] for row in rows.values() if not row.deleted) == source.values


NUMBERS = st.decimals(allow_nan=False, allow_infinity=False, places=3) | st.sampled_from(
    [Decimal("1E+3"), Decimal("0E-5"), Decimal("-0.0")]
)


@given(NUMBERS, st.integers(1, 6))
def test_equal_numbers_have_one_form(number: Decimal, zeros: int) -> None:
    text = format(number, "f")
    other = Decimal(f"{text}{'' if '.' in text else '.'}{'0' * zeros}")
    shown = {str(each) for each in (without_trailing_zeros(number), without_trailing_zeros(other))}
    assert len(shown) == 1
    assert Decimal(shown.pop()) == number


def test_elements_of_nested_arrays_have_one_form() -> None:
    schema = TableSchema((Column("k", ColumnType(Kind.ARRAY, element=ColumnType(Kind.DECIMAL)), False, 1),))
    key = canonical_key(schema, {"k": [[Decimal("1.0"), None], [Decimal("2.50")]]})
    assert str(key) == "{'k': [[Decimal('1'), None], [Decimal('2.5')]]}"
