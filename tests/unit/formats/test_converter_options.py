"""Avro and Protobuf chosen by names, as pipelines offer them; NULL in keys; binary records as lines."""

from __future__ import annotations

import json
from base64 import b64decode
from itertools import count
from typing import Any

import msgspec
import pytest

from penstock.errors import UsageError
from penstock.event import ChangeEvent, Column, ColumnType, Kind, Op, TableSchema
from penstock.transforms.formats.avro import AvroConverter
from penstock.transforms.formats.catalog import make_format
from penstock.transforms.formats.converter_options import make_converter
from penstock.transforms.formats.debezium import DebeziumFormat
from penstock.transforms.formats.event_envelope import EventFormat
from penstock.transforms.formats.lines import RecordLines
from penstock.transforms.formats.protobuf import ProtobufConverter
from penstock.transforms.formats.schema_registry import SchemaRegistry, SchemaRegistryError
from penstock.transforms.parsers.debezium import DebeziumParser
from penstock.transforms.parsers.envelope import EventParser
from tests.unit.formats.events import event_of, schema_of

GIVEN = {"server": "shop"}
ROWS = schema_of({"Id": Kind.INT64, "Part": Kind.STRING}, State=Kind.STRING)
DELETE = event_of(ROWS, Op.DELETE, before={"Id": 1, "Part": "a", "State": "open"})
NULL_KEY = event_of(ROWS, Op.CREATE, after={"Id": 1, "Part": None, "State": "open"})
registries = count()


def url() -> str:
    return f"mock://options-{next(registries)}"


def converter_of(name: str, registry: SchemaRegistry) -> Any:
    return AvroConverter(registry) if name == "avro" else ProtobufConverter(registry)


@pytest.mark.parametrize("converter", ["avro", "protobuf"])
@pytest.mark.parametrize("name", ["debezium", "envelope"])
def test_a_pipeline_chooses_a_converter_by_its_name(name: str, converter: str) -> None:
    address = url()
    options = {name: {"converter": converter, "registry_url": address, "registry_auto_register": "true"}}
    format_: Any = make_format("spanner", name, options, GIVEN)
    format_.check()
    record = format_(DELETE)[0]
    assert record.value[:5] == b"\x00\x00\x00\x00\x02"
    parsers: dict[str, Any] = {"debezium": DebeziumParser, "envelope": EventParser}
    opened = converter_of(converter, SchemaRegistry(address)).open(record.value)
    assert json.loads(bytes(opened.payload))["before"]["State"] == "open"
    assert parsers[name](converter=converter_of(converter, SchemaRegistry(address)))


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"converter": "avro"}, "converter avro needs registry_url"),
        ({"registry_url": "http://x"}, "have no effect with converter json"),
        ({"converter": "xml"}, "converter 'xml' does not exist: use one of json, avro, protobuf"),
        (
            {"converter": "avro", "registry_url": "mock://x", "registry_login": "me:secret"},
            r"given as a reference, such as \$\{env:NAME\}",
        ),
        (
            {"converter": "avro", "registry_url": "mock://x", "schemas_enable": "true"},
            "schemas_enable belongs to JSON",
        ),
    ],
)
def test_options_of_a_converter_that_cannot_work_are_refused(options: dict[str, Any], complaint: str) -> None:
    with pytest.raises(UsageError, match=complaint) as refusal:
        make_format("spanner", "debezium", {"debezium": options}, GIVEN)
    assert "secret" not in str(refusal.value)


@pytest.mark.slow
def test_a_registry_that_does_not_answer_is_found_before_the_start() -> None:
    unreachable = make_converter(converter="avro", registry_url="http://127.0.0.1:9")
    assert unreachable is not None
    with pytest.raises(SchemaRegistryError, match="did not answer"):
        DebeziumFormat("shop", converter=unreachable).check()


def test_the_login_of_a_registry_is_read_where_it_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    converter = make_converter(converter="avro", registry_url=url(), registry_login="${env:REGISTRY_LOGIN}")
    assert converter is not None
    monkeypatch.delenv("REGISTRY_LOGIN", raising=False)
    with pytest.raises(UsageError, match="REGISTRY_LOGIN is not set"):
        converter.check()
    monkeypatch.setenv("REGISTRY_LOGIN", "user:password")
    converter.check()


def test_cloudevents_carry_json_only() -> None:
    with pytest.raises(UsageError, match="data_format needs converter json"):
        make_format(
            "spanner",
            "cloudevents",
            {"debezium": {"converter": "avro", "registry_url": url()}},
            GIVEN,
        )


@pytest.mark.parametrize("converter", ["avro", "protobuf"])
def test_a_binary_value_is_a_line_of_base64(converter: str) -> None:
    format_ = DebeziumFormat("shop", converter=converter_of(converter, SchemaRegistry(url())))
    value, tombstone = format_(DELETE)
    (line,) = RecordLines(format_)(DELETE)
    assert b64decode(line.line) == value.value
    message, last = (json.loads(each.line) for each in RecordLines(format_, "messages")(DELETE))
    assert b64decode(message["key"]["base64"]) == b64decode(last["key"]["base64"]) == value.key
    assert b64decode(message["value"]["base64"]) == value.value
    assert last["value"] is tombstone.value is None


def test_binary_values_with_json_keys_keep_their_keys_readable() -> None:
    format_ = DebeziumFormat(
        "shop",
        converter=AvroConverter(SchemaRegistry(url())),
        key_converter=DebeziumFormat("shop")._options.key_converter,
    )
    message = json.loads(RecordLines(format_, "messages")(DELETE)[0].line)
    assert message["key"] == {"Id": 1, "Part": "a"}
    assert set(message["value"]) == {"base64"}


# Spanner allows NULL in a primary key, and its records do not say which columns are NOT NULL.


def nullable(column: Column, value: bool) -> Column:
    return msgspec.structs.replace(column, nullable=value)


def with_nullable_part(event: ChangeEvent) -> ChangeEvent:
    columns = tuple(nullable(column, column.name == "Part") for column in event.schema)
    return msgspec.structs.replace(event, schema=TableSchema(columns))


@pytest.mark.parametrize("converter", ["avro", "protobuf"])
@pytest.mark.parametrize("declared", [True, False], ids=["declared", "asked for"])
def test_null_in_a_key_comes_back_as_null(converter: str, declared: bool) -> None:
    made = converter_of(converter, SchemaRegistry(url()))
    event = with_nullable_part(NULL_KEY) if declared else NULL_KEY
    (record,) = DebeziumFormat("shop", converter=made, nullable_keys=not declared)(event)
    (parsed,) = DebeziumParser(converter=made)(record.key, record.value)
    assert (parsed.key, parsed.after) == (NULL_KEY.key, NULL_KEY.after)


@pytest.mark.parametrize("converter", ["avro", "protobuf"])
def test_null_in_a_key_of_the_envelope_needs_no_option(converter: str) -> None:
    made = converter_of(converter, SchemaRegistry(url()))
    (record,) = EventFormat("shop", converter=made)(NULL_KEY)
    assert EventParser(converter=made)(record.value).key == {"Id": 1, "Part": None}
    assert json.loads(bytes(made.open(record.key).payload)) == {"Id": 1, "Part": None}


@pytest.mark.parametrize("converter", ["avro", "protobuf"])
def test_null_in_a_key_is_never_another_value(converter: str) -> None:
    format_ = DebeziumFormat("shop", converter=converter_of(converter, SchemaRegistry(url())))
    with pytest.raises(ValueError, match="column Part in the key of shop.Orders is NULL.*nullable_keys"):
        format_(NULL_KEY)


def test_a_key_column_that_may_be_null_is_optional_in_the_schema() -> None:
    (record,) = DebeziumFormat("shop", schemas_enable=True)(with_nullable_part(NULL_KEY))
    fields = json.loads(record.key or b"")["schema"]["fields"]
    assert [field["optional"] for field in fields] == [False, True]
    rows = json.loads(record.value or b"")["schema"]["fields"][1]["fields"]
    assert [field["optional"] for field in rows] == [False, True, False]


def test_a_column_type_is_needed_by_no_option() -> None:
    schema = TableSchema((Column("Id", ColumnType(Kind.INT64), None, 1),))
    (record,) = DebeziumFormat("shop", nullable_keys=True)(event_of(schema, Op.CREATE, after={"Id": 1}))
    assert record.key == b'{"Id":1}'
