"""`AvroConverter`: keys and values in Avro, with schemas in a registry. Needs the extras `avro` and `schema-registry`.

    DebeziumFormat("shop", converter=AvroConverter(SchemaRegistry("http://registry:8081")))

A record is a zero byte, the schema id in four bytes, big-endian, and the Avro datum (Confluent's wire format).
"""

from __future__ import annotations

from collections.abc import Callable
from io import BytesIO
from typing import Any

import msgspec

from penstock.transforms.formats.avro_schema import (
    PRIMITIVE,
    AvroSchema,
    avro_name,
    avro_schema,
    connect_schema,
    full_name,
    without_logical_types,
)
from penstock.transforms.formats.connect_json import json_values
from penstock.transforms.formats.connect_payload import refusal, renaming
from penstock.transforms.formats.converter import Encode, Opened, Part
from penstock.transforms.formats.debezium_types import Schema
from penstock.transforms.formats.registry_converter import RegistryConverter
from penstock.transforms.formats.schema_registry import Registration, SchemaRegistry


class AvroConverter(RegistryConverter):
    """Converts payloads of Kafka Connect to Avro as Confluent's AvroConverter does.

    Raises:
        UsageError: an extra is missing.
    """

    extra = ("avro", "fastavro")
    schema_type = "AVRO"

    def _writer(self, topic: str, part: Part, schema: Schema) -> Encode:
        return _Writer(self._registry, topic, part, schema)

    def _reader(self, text: str) -> Callable[[bytes], Opened]:
        return _Reader(text)


class _Writer:
    def __init__(self, registry: SchemaRegistry, topic: str, part: Part, schema: Schema) -> None:
        import fastavro

        self._write = fastavro.schemaless_writer
        avro = avro_schema(schema)
        # Registered as text. fastavro gets another form below, so the registry sees logical types and the
        # encoder does not.
        self._text = msgspec.json.encode(avro).decode()
        name = full_name(avro)
        self._what = f"the {part}s of topic {topic}"
        self._registration = Registration(registry, registry.subject(topic, part, name), "AVRO")
        # Payloads already hold bytes and integers, as Connect's converters get them. fastavro would convert
        # them a second time.
        plain = without_logical_types(avro)
        self._parsed = fastavro.parse_schema(plain)
        self._schema, self._rename = schema, renaming(schema, avro_name)
        self._records = _optional_records(self._parsed)
        # The id of the schema comes with the first record, so a format can be made before the registry answers.
        self._prefix: bytes | None = None

    def __call__(self, payload: Any) -> bytes:
        prefix = self._prefix
        if prefix is None:
            prefix = self._prefix = self._registration.prefix(lambda: self._text)
        datum = payload if self._rename is None else self._rename(payload)
        # Unions of records need the name of the branch. Without it, fastavro validates every value of the inner
        # record first.
        if self._records:
            datum = datum | {
                field: (name, value)
                for field, name in self._records
                if (value := datum.get(field)) is not None
            }
        data = BytesIO()
        data.write(prefix)
        try:
            self._write(data, self._parsed, datum)
        # fastavro raises what Python raises: AttributeError for a text in a number's place, and others.
        except (ValueError, TypeError, OverflowError, AttributeError, KeyError, IndexError):
            raise refusal(self._schema, payload, self._what, "Avro") from None
        return data.getvalue()


class _Reader:
    def __init__(self, text: str) -> None:
        import fastavro

        avro = msgspec.json.decode(text)
        self._connect = connect_schema(avro)
        self._schema = msgspec.Raw(msgspec.json.encode(self._connect))
        plain = without_logical_types(avro)
        self._rename = renaming(self._connect, avro_name, back=True)
        self._parsed = fastavro.parse_schema(plain)
        self._read = fastavro.schemaless_reader
        self._show = json_values(self._connect)

    def __call__(self, data: bytes) -> Opened:
        try:
            # The first five bytes are the magic byte and the id of the schema, which the caller has read.
            payload: Any = self._read(BytesIO(data[5:]), self._parsed, None)
        except (ValueError, TypeError, EOFError, IndexError, OverflowError):
            raise ValueError("the record is not an Avro datum of its schema") from None
        if self._rename is not None:
            payload = self._rename(payload)
        # The bytes of JSON, because the parser of Debezium's records reads JSON only.
        return Opened(self._schema, msgspec.json.encode(self._show(payload)))


def _optional_records(avro: AvroSchema) -> list[tuple[str, str]]:
    """Return the fields of a record that are null or a record, with the name of that record.

    With the name fastavro need not look at all values of the inner record before it writes them.
    """
    found = []
    for field in avro["fields"]:
        for each in field["type"] if isinstance(field["type"], list) else ():
            if isinstance(each, dict) and each["type"] == "record":
                found.append((field["name"], each["name"]))
            elif isinstance(each, str) and each not in PRIMITIVE:
                found.append((field["name"], each))
    return found
