"""Protobuf: numbers of fields over the versions of a table, and records in Confluent's wire format."""

from __future__ import annotations

import pickle
from decimal import Decimal
from itertools import count
from typing import Any

import pytest

from penstock.event import ChangeEvent, ColumnType, Kind, Op, TableSchema
from penstock.transforms.formats.debezium import DebeziumFormat
from penstock.transforms.formats.protobuf import ProtobufConverter
from penstock.transforms.formats.protobuf_schema import from_text
from penstock.transforms.formats.schema_registry import SchemaRegistry
from penstock.transforms.parsers.debezium import DebeziumParser
from tests.unit.formats.events import event_of, schema_of

registries = count()
SUBJECT = "srv.Orders-value"


def registry(**options: Any) -> SchemaRegistry:
    return SchemaRegistry(f"mock://protobuf-{next(registries)}", **options)


def table(**columns: Kind) -> TableSchema:
    return schema_of({"id": Kind.INT64}, **columns)


def event(schema: TableSchema, **columns: Any) -> ChangeEvent:
    return event_of(schema, Op.CREATE, after={"id": 1, **columns})


def numbers(text: str) -> dict[str, int]:
    """Return the numbers of the columns in a registered schema."""
    (envelope,) = from_text(text).message_type
    (row,) = (message for message in envelope.nested_type if message.name == "Value")
    return {field.name: field.number for field in row.field}


def versions(known: SchemaRegistry, *schemas: TableSchema) -> list[dict[str, int]]:
    """Return the numbers in the versions that a registry has after events of each schema, each in a new worker."""
    for schema in schemas:
        DebeziumFormat("srv", converter=ProtobufConverter(known))(event(schema))
    return [numbers(text) for text in known.versions(SUBJECT, "PROTOBUF")]


def test_a_column_keeps_its_number_when_others_come_and_go() -> None:
    first = table(name=Kind.STRING, age=Kind.INT64)
    dropped_and_added = table(age=Kind.INT64, email=Kind.STRING)
    again = table(name=Kind.STRING, age=Kind.INT64, email=Kind.STRING)
    assert versions(registry(), first, dropped_and_added, again) == [
        {"id": 1, "name": 2, "age": 3},
        {"id": 1, "age": 3, "email": 4},
        {"id": 1, "name": 2, "age": 3, "email": 4},
    ]


def test_a_column_with_a_new_type_gets_a_new_number() -> None:
    assert versions(registry(), table(age=Kind.INT64), table(age=Kind.STRING)) == [
        {"id": 1, "age": 2},
        {"id": 1, "age": 3},
    ]


def test_an_old_schema_that_comes_again_is_the_registered_one() -> None:
    # After a crash, rows from before a change of the table are read again.
    old, new = table(name=Kind.STRING), table(email=Kind.STRING)
    assert len(versions(registry(), old, new, old, new)) == 2


def test_not_sent_null_and_empty_stay_different() -> None:
    tags = ColumnType(Kind.ARRAY, element=ColumnType(Kind.STRING))
    price = ColumnType(Kind.DECIMAL, "", 10, 2)
    schema = schema_of({"id": Kind.INT64}, n=Kind.INT64, tags=tags, more=tags, price=price)
    row = {"id": 1, "tags": [], "more": None, "price": Decimal("-0.50")}
    converter = ProtobufConverter(registry())
    (record,) = DebeziumFormat("srv", converter=converter)(event_of(schema, Op.CREATE, after=row))
    (parsed,) = DebeziumParser(converter=converter)(record.key, record.value, record.headers)
    assert parsed.after == row
    assert parsed.schema.columns[4].type == ColumnType(
        Kind.DECIMAL, "org.apache.kafka.connect.data.Decimal", 10, 2
    )


def test_a_value_that_does_not_fit_is_refused_without_being_shown() -> None:
    format_ = DebeziumFormat("srv", converter=ProtobufConverter(registry()))
    with pytest.raises(ValueError, match=r"after\.n in the values of topic srv\.Orders") as error:
        format_(event(table(n=Kind.INT64), n=2**63 + 4711))
    assert "4711" not in str(error.value)


def test_a_format_with_a_registry_can_be_pickled_after_use() -> None:
    format_ = DebeziumFormat("srv", converter=ProtobufConverter(registry()))
    first = format_(event(table(n=Kind.INT64), n=1))
    assert pickle.loads(pickle.dumps(format_))(event(table(n=Kind.INT64), n=1)) == first


def test_columns_whose_names_differ_in_case_or_underscores_only_are_different_fields() -> None:
    schema = table(a_b=Kind.INT64, aB=Kind.INT64)
    converter = ProtobufConverter(registry())
    (record,) = DebeziumFormat("srv", converter=converter)(event(schema, a_b=1, aB=2))
    (parsed,) = DebeziumParser(schema, converter=converter)(record.key, record.value)
    assert parsed.after == {"id": 1, "a_b": 1, "aB": 2}
