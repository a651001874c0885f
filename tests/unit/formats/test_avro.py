"""Avro: the schemas of Confluent's converter, and records in its wire format."""

from __future__ import annotations

import json
import pickle
from itertools import count
from typing import Any

import pytest

from penstock.errors import UsageError
from penstock.event import ChangeEvent, Column, ColumnType, Kind, Op, Source, TableSchema, Version
from penstock.transforms.formats.avro import AvroConverter
from penstock.transforms.formats.avro_schema import avro_schema, connect_schema
from penstock.transforms.formats.converter import JsonConverter
from penstock.transforms.formats.debezium import DebeziumFormat
from penstock.transforms.formats.schema_registry import SchemaRegistry
from penstock.transforms.parsers.debezium import DebeziumParser
from tests.unit.formats.events import event_of, schema_of

registries = count()
ORDERS = TableSchema(
    (
        Column("id", ColumnType(Kind.INT32), False, 1),
        Column("small", ColumnType(Kind.INT16), False),
        Column("price", ColumnType(Kind.DECIMAL, "", 10, 2)),
        Column("at", ColumnType(Kind.LOCAL_TIMESTAMP), True),
        Column("unit price", ColumnType(Kind.FLOAT64)),
        Column("tags", ColumnType(Kind.ARRAY, element=ColumnType(Kind.STRING))),
    )
)
SOURCE = Source("postgresql", database="db", schema="public", table="orders")


def registry(**options: Any) -> SchemaRegistry:
    return SchemaRegistry(f"mock://avro-{next(registries)}", **options)


def order(schema: TableSchema = ORDERS, **columns: Any) -> ChangeEvent:
    return ChangeEvent(
        SOURCE, Op.CREATE, 5_000_000_000, {"id": 1}, None, {"id": 1, **columns}, Version(7, "9", "8"), schema
    )


def schemas(**options: Any) -> tuple[Any, Any]:
    """Return the Avro schemas of key and value that the format registers."""
    known = registry()
    DebeziumFormat("srv", converter=AvroConverter(known), **options)(order(small=2))
    return json.loads(known.schema(1, "AVRO")), json.loads(known.schema(2, "AVRO"))


def test_the_schemas_are_those_of_confluents_converter() -> None:
    # By the rules of AvroData.fromConnectSchema, for the schema that Debezium's PostgreSQL connector makes.
    key, value = schemas(debezium_exact=True)
    assert json.dumps(key, separators=(",", ":")) == (
        '{"type":"record","name":"Key","namespace":"srv.public.orders","fields":[{"name":"id","type":"int"}],'
        '"connect.name":"srv.public.orders.Key"}'
    )
    before, after, source, transaction, op, ts_ms, _, _ = value["fields"]
    assert (value["name"], value["namespace"]) == ("Envelope", "srv.public.orders")
    assert list(value) == ["type", "name", "namespace", "fields", "connect.version", "connect.name"]
    assert json.dumps(before, separators=(",", ":")) == (
        '{"name":"before","type":["null",{"type":"record","name":"Value","fields":['
        '{"name":"id","type":"int"},'
        '{"name":"small","type":{"type":"int","connect.type":"int16"}},'
        '{"name":"price","type":["null",{"type":"bytes","scale":2,"precision":10,"connect.version":1,'
        '"connect.parameters":{"scale":"2","connect.decimal.precision":"10"},'
        '"connect.name":"org.apache.kafka.connect.data.Decimal","logicalType":"decimal"}],"default":null},'
        '{"name":"at","type":["null",{"type":"long","connect.version":1,'
        '"connect.name":"io.debezium.time.MicroTimestamp"}],"default":null},'
        '{"name":"unit_price","type":["null","double"],"default":null,"penstock.name":"unit price"},'
        '{"name":"tags","type":["null",{"type":"array","items":["null","string"]}],"default":null}'
        '],"connect.name":"srv.public.orders.Value"}],"default":null}'
    )
    assert after == {"name": "after", "type": ["null", "Value"], "default": None}
    assert source["type"]["namespace"] == "io.debezium.connector.postgresql"
    assert json.dumps(source["type"]["fields"][4], separators=(",", ":")) == (
        '{"name":"snapshot","type":[{"type":"string","connect.version":1,"connect.parameters":{"allowed":'
        '"true,first,first_in_data_collection,last_in_data_collection,last,false,incremental"},'
        '"connect.default":"false","connect.name":"io.debezium.data.Enum"},"null"],"default":"false"}'
    )
    assert transaction["type"][1]["name"] == "block"
    assert op == {"name": "op", "type": "string"}
    assert ts_ms == {"name": "ts_ms", "type": ["null", "long"], "default": None}


def test_a_column_that_may_not_be_sent_is_optional_unless_debezium_is_copied_exactly() -> None:
    _, value = schemas()
    row = {field["name"]: field for field in value["fields"][0]["type"][1]["fields"]}
    assert row["small"]["default"] is None
    assert row["id"]["type"] == "int"


def test_a_schema_comes_back_from_avro() -> None:
    row = {
        "type": "struct",
        "optional": False,
        "name": "a.b.C",
        "version": 2,
        "fields": [
            {"type": "int8", "optional": False, "field": "tiny"},
            {"type": "string", "optional": True, "default": "x", "field": "größe"},
            {
                "type": "array",
                "items": {"type": "bytes", "optional": True},
                "optional": False,
                "field": "list",
            },
            {
                "type": "struct",
                "fields": [{"type": "int64", "optional": True, "field": "n"}],
                "optional": True,
                "field": "s",
            },
        ],
    }
    assert connect_schema(avro_schema(row)) == row


@pytest.mark.parametrize(
    ("strategy", "subject"),
    [
        ("TopicName", "srv.public.orders-value"),
        ("RecordName", "srv.public.orders.Envelope"),
        ("TopicRecordName", "srv.public.orders-srv.public.orders.Envelope"),
    ],
)
def test_subjects_follow_the_strategy(strategy: Any, subject: str) -> None:
    known = registry(subject_name_strategy=strategy)
    DebeziumFormat("srv", converter=AvroConverter(known))(order())
    assert len(known.versions(subject, "AVRO")) == 1


def test_an_unknown_strategy_is_refused() -> None:
    with pytest.raises(UsageError, match="TopicName, RecordName, TopicRecordName"):
        registry(subject_name_strategy="Topic")


def test_not_sent_null_and_empty_stay_different() -> None:
    schema = schema_of({"id": Kind.INT64}, number=Kind.INT64, text=Kind.STRING, list=ORDERS.columns[5].type)
    event = event_of(schema, Op.UPDATE, before={"id": 1}, after={"id": 1, "text": "", "list": [None]})
    converter = AvroConverter(registry())
    (record,) = DebeziumFormat("srv", converter=converter)(event)
    (header,) = record.headers
    assert header == ("__penstock.unavailable", b'{"before":["number","list"],"after":["number"]}')
    (parsed,) = DebeziumParser(schema, converter=converter)(record.key, record.value, record.headers)
    assert (parsed.before, parsed.after) == ({"id": 1}, {"id": 1, "text": "", "list": [None]})


def test_a_value_that_does_not_fit_is_refused_without_being_shown() -> None:
    format_ = DebeziumFormat("srv", converter=AvroConverter(registry()))
    with pytest.raises(ValueError, match=r"after\.tags in the values of topic srv\.public\.orders") as error:
        format_(order(small=1, tags=["a", b"secret"]))
    assert "secret" not in str(error.value)
    assert error.value.__suppress_context__


def test_keys_can_have_another_converter() -> None:
    format_ = DebeziumFormat("srv", converter=AvroConverter(registry()), key_converter=JsonConverter())
    (record,) = format_(order(small=1))
    assert record.key == b'{"id":1}'
    assert record.value is not None
    assert record.value[:1] == b"\0"


def test_two_columns_with_one_name_in_avro_are_refused() -> None:
    schema = schema_of({"id": Kind.INT64}, **{"a-b": Kind.INT64, "a_b": Kind.INT64})
    with pytest.raises(ValueError, match="a_b: rename their columns"):
        DebeziumFormat("srv", converter=AvroConverter(registry()))(event_of(schema, after={"id": 1}))


def test_a_column_outside_of_the_schema_is_refused_rather_than_dropped() -> None:
    with pytest.raises(ValueError, match="columns extra of"):
        DebeziumFormat("srv", converter=AvroConverter(registry()))(
            order(**dict.fromkeys(ORDERS.names[1:]), extra=1)
        )


def test_a_format_with_a_registry_can_be_pickled_after_use() -> None:
    format_ = DebeziumFormat("srv", converter=AvroConverter(registry()))
    first = format_(order(small=1))
    assert pickle.loads(pickle.dumps(format_))(order(small=1)) == first


def test_bytes_that_are_not_in_the_wire_format_are_refused() -> None:
    converter = AvroConverter(registry())
    with pytest.raises(ValueError, match="magic byte"):
        converter.open(b'{"id":1}')


def test_secrets_of_a_registry_are_not_shown() -> None:
    assert "pw" not in repr(SchemaRegistry("http://r", settings={"basic.auth.user.info": "u:pw"}))
