"""Avro and Protobuf with a registry that speaks HTTP and checks compatibility."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.testing.util import assert_that, equal_to
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer
from confluent_kafka.serialization import MessageField, SerializationContext

from penstock.event import ColumnType, Kind, Op, TableSchema
from penstock.transforms import DebeziumFormat, FormatEvents
from penstock.transforms.formats.avro import AvroConverter
from penstock.transforms.formats.converter import Converter
from penstock.transforms.formats.protobuf import ProtobufConverter
from penstock.transforms.formats.schema_registry import (
    SchemaRefusedError,
    SchemaRegistry,
    SchemaRegistryError,
)
from tests.support.schema_registry import SchemaRegistryServer
from tests.unit.formats.events import event_of, schema_of

CONVERTERS = [AvroConverter, ProtobufConverter]
New = Callable[[SchemaRegistry], Converter]
QUICK = {"max.retries": 0}


@pytest.fixture
def server() -> Iterator[SchemaRegistryServer]:
    with SchemaRegistryServer() as server:
        yield server


def table(**columns: Kind | ColumnType) -> TableSchema:
    return schema_of({"id": Kind.INT64}, **columns)


def insert(schema: TableSchema, **columns: Any) -> Any:
    return event_of(schema, Op.CREATE, after={"id": 1, **columns})


def read(server: SchemaRegistryServer, record: Any) -> Any:
    """Return the value of a record as Confluent's own deserializer reads it."""
    client = SchemaRegistryClient({"url": server.url})
    return AvroDeserializer(client)(record.value, SerializationContext(record.topic, MessageField.VALUE))


@pytest.mark.parametrize("converter", CONVERTERS)
def test_the_registry_is_asked_for_each_schema_and_never_for_a_record(
    server: SchemaRegistryServer, converter: New
) -> None:
    format_ = DebeziumFormat("srv", converter=converter(SchemaRegistry(server.url)))
    schema = table(name=Kind.STRING)
    assert server.requests == []
    format_(insert(schema, name="a"))
    asked = len(server.requests)
    for name in "bcdef":
        format_(insert(schema, name=name))
    assert len(server.requests) == asked
    assert server.subjects == ["srv.Orders-key", "srv.Orders-value"]


def test_confluents_deserializer_reads_the_records_through_changes_of_the_table(
    server: SchemaRegistryServer,
) -> None:
    format_ = DebeziumFormat("srv", converter=AvroConverter(SchemaRegistry(server.url)))
    price = ColumnType(Kind.DECIMAL, "", 10, 2)
    steps = [
        (table(name=Kind.STRING), {"name": "Ada"}),
        (table(name=Kind.STRING, price=price), {"name": "Ada", "price": Decimal("2.50")}),
        (table(price=price), {"price": Decimal("3.00")}),
    ]
    for schema, columns in steps:
        (record,) = format_(insert(schema, **columns))
        assert read(server, record)["after"] == {"id": 1, **columns}
    assert len(server.texts("srv.Orders-value")) == 3


@pytest.mark.parametrize("converter", CONVERTERS)
def test_without_auto_register_only_known_schemas_are_written(
    server: SchemaRegistryServer, converter: New
) -> None:
    schema = table(name=Kind.STRING)
    reading = converter(SchemaRegistry(server.url, auto_register=False))
    with pytest.raises(SchemaRefusedError, match=r"srv\.Orders-key: register it, or set auto_register=True"):
        DebeziumFormat("srv", converter=reading)(insert(schema))
    assert server.subjects == []
    registered = DebeziumFormat("srv", converter=converter(SchemaRegistry(server.url)))(insert(schema))
    assert DebeziumFormat("srv", converter=reading)(insert(schema)) == registered


def test_an_incompatible_schema_is_refused_with_the_reason_and_asked_for_again_after_a_while(
    server: SchemaRegistryServer,
) -> None:
    now = [0.0]
    registry = SchemaRegistry(server.url, clock=lambda: now[0])
    format_ = DebeziumFormat("srv", converter=AvroConverter(registry))
    format_(insert(table(n=Kind.INT64), n=1))
    retyped = insert(table(n=Kind.BOOL), n=True)
    with pytest.raises(SchemaRefusedError, match=r"srv\.Orders-value.*incompatible.*another compatibility"):
        format_(retyped)
    asked = len(server.requests)
    server.set_compatibility("srv.Orders-value", "NONE")
    with pytest.raises(SchemaRefusedError, match="incompatible"):
        format_(retyped)
    assert len(server.requests) == asked
    now[0] = 61.0
    (record,) = format_(retyped)
    assert read(server, record)["after"] == {"id": 1, "n": True}


def test_a_registry_that_does_not_answer_is_no_fault_of_an_element(server: SchemaRegistryServer) -> None:
    server.down = True
    registry = SchemaRegistry(server.url, settings=QUICK)
    transform = FormatEvents(DebeziumFormat("srv", converter=AvroConverter(registry)))
    with pytest.raises(SchemaRegistryError, match="503"), beam.Pipeline() as pipeline:
        records, _ = (
            pipeline | beam.Create([insert(table(n=Kind.INT64), n=1)]) | transform.with_exception_handling()
        )
        assert_that(records, equal_to([]))


def test_a_schema_that_the_registry_refuses_goes_to_the_error_output(server: SchemaRegistryServer) -> None:
    registry = SchemaRegistry(server.url)
    format_ = DebeziumFormat("srv", converter=AvroConverter(registry))
    format_(insert(table(n=Kind.INT64), n=1))
    good, bad = insert(table(n=Kind.INT64), n=2), insert(table(n=Kind.BOOL), n=True)
    with beam.Pipeline() as pipeline:
        records, failures = (
            pipeline | beam.Create([good, bad]) | FormatEvents(format_).with_exception_handling()
        )
        assert_that(
            records | beam.Map(lambda record: record.value), equal_to([format_(good)[0].value]), "good"
        )
        assert_that(failures | beam.Map(lambda failure: failure[0]), equal_to([bad]), "bad")


def test_an_address_without_a_registry_is_a_service_error() -> None:
    registry = SchemaRegistry("http://127.0.0.1:9", settings=QUICK)
    with pytest.raises(SchemaRegistryError):
        registry.schema(1, "AVRO")
