"""`AvroConverter`: keys and values in Avro, with schemas in a registry. Needs the extras `avro` and `schema-registry`.

    DebeziumFormat("shop", converter=AvroConverter(SchemaRegistry("http://registry:8081")))

A record is a zero byte, the schema id in four bytes, big-endian, and the Avro datum (Confluent's wire format).
"""

from __future__ import annotations

from collections.abc import Callable
from io import BytesIO
from typing import Any

import msgspec

from penstock.extras import require_extra
from penstock.transforms.formats.avro_schema import (
    ORIGINAL_NAME,
    AvroSchema,
    avro_schema,
    connect_schema,
    full_name,
    without_logical_types,
)
from penstock.transforms.formats.connect_json import json_values
from penstock.transforms.formats.converter import Encode, Opened, Part
from penstock.transforms.formats.debezium_types import Schema
from penstock.transforms.formats.schema_registry import Registration, SchemaRegistry, schema_id

Rename = Callable[[Any], Any] | None


class AvroConverter:
    """Converts payloads of Kafka Connect to Avro as Confluent's AvroConverter does.

    Raises:
        UsageError: an extra is missing.
    """

    as_json = False

    def __init__(self, registry: SchemaRegistry) -> None:
        require_extra("avro", "fastavro")
        require_extra("schema-registry", "confluent_kafka.schema_registry")
        self._registry = registry
        self._readers: dict[int, _Reader] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_readers": {}}

    def encoder(self, topic: str, part: Part, schema: Schema) -> Encode:
        """Return the function that encodes payloads of a schema.

        Raises:
            ValueError: Avro cannot express the schema.
        """
        return _Writer(self._registry, topic, part, schema)

    def open(self, data: bytes) -> Opened:
        """Return schema and payload of a record.

        Raises:
            ValueError: not in Confluent's wire format, or not a datum of its schema.
            SchemaRegistryError: the registry does not have the schema, or does not answer.
        """
        id_ = schema_id(data)
        reader = self._readers.get(id_)
        if reader is None:
            reader = self._readers[id_] = _Reader(self._registry.schema(id_, "AVRO"))
        return reader(data)


class _Writer:
    def __init__(self, registry: SchemaRegistry, topic: str, part: Part, schema: Schema) -> None:
        import fastavro

        self._write = fastavro.schemaless_writer
        avro = avro_schema(schema)
        self._text = msgspec.json.encode(avro).decode()
        name = full_name(avro)
        self._what = f"the {part}s of topic {topic}"
        self._registration = Registration(registry, registry.subject(topic, part, name), "AVRO")
        plain = without_logical_types(avro)
        self._parsed = fastavro.parse_schema(plain)
        self._rename = _renaming(plain, {}, to_avro=True)
        self._records = _optional_records(self._parsed)
        self._prefix: bytes | None = None

    def __call__(self, payload: Any) -> bytes:
        prefix = self._prefix
        if prefix is None:
            prefix = self._prefix = self._registration.prefix(lambda: self._text)
        if self._rename is not None:
            payload = self._rename(payload)
        datum = payload
        if self._records:
            named = {
                field: (name, value)
                for field, name in self._records
                if (value := payload.get(field)) is not None
            }
            datum = payload | named
        data = BytesIO()
        data.write(prefix)
        try:
            self._write(data, self._parsed, datum)
        # fastavro raises what Python raises: AttributeError for a text in a number's place, and others.
        except (ValueError, TypeError, OverflowError, AttributeError, KeyError, IndexError):
            known: dict[str, Any] = {}
            _note_records(self._parsed, known)
            field = _misfit(self._parsed, payload, known) or "a number"
            raise ValueError(f"{field} in {self._what} has a value that its Avro type cannot hold") from None
        return data.getvalue()


class _Reader:
    def __init__(self, text: str) -> None:
        import fastavro

        avro = msgspec.json.decode(text)
        self._connect = connect_schema(avro)
        self._schema = msgspec.Raw(msgspec.json.encode(self._connect))
        plain = without_logical_types(avro)
        self._rename = _renaming(plain, {}, to_avro=False)
        self._parsed = fastavro.parse_schema(plain)
        self._read = fastavro.schemaless_reader
        self._show = json_values(self._connect)

    def __call__(self, data: bytes) -> Opened:
        try:
            payload: Any = self._read(BytesIO(data[5:]), self._parsed, None)
        except (ValueError, TypeError, EOFError, IndexError, OverflowError):
            raise ValueError("the record is not an Avro datum of its schema") from None
        if self._rename is not None:
            payload = self._rename(payload)
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
            elif isinstance(each, str) and each not in _PYTHON and each != "null":
                found.append((field["name"], each))
    return found


def _renaming(avro: AvroSchema, known: dict[str, Any], to_avro: bool) -> Rename:
    """Return the function that renames the fields of a datum; None if no field has another name."""
    if isinstance(avro, list):
        return next((found for each in avro if (found := _renaming(each, known, to_avro))), None)
    if isinstance(avro, str):
        return known.get(avro.rpartition(".")[2])
    if avro["type"] == "array":
        inner = _renaming(avro["items"], known, to_avro)
        return inner and (lambda values: values and [inner(each) for each in values])
    if avro["type"] != "record":
        return None
    rules = {}
    for field in avro["fields"]:
        original, name = field.get(ORIGINAL_NAME, field["name"]), field["name"]
        here, there = (original, name) if to_avro else (name, original)
        rules[here] = (there, _renaming(field["type"], known, to_avro))
    if all(here == there and rule is None for here, (there, rule) in rules.items()):
        return None

    def rename(datum: Any) -> Any:
        if datum is None:
            return None
        return {
            there: rule(datum[here]) if rule else datum[here]
            for here, (there, rule) in rules.items()
            if here in datum
        }

    known[avro["name"].rpartition(".")[2]] = rename
    return rename


def _note_records(avro: AvroSchema, known: dict[str, Any]) -> None:
    """Collect the records of a schema by their names: a later field refers to them."""
    if isinstance(avro, list):
        for each in avro:
            _note_records(each, known)
    elif isinstance(avro, dict) and avro["type"] == "record":
        known[avro["name"]] = avro
        for field in avro["fields"]:
            _note_records(field["type"], known)
    elif isinstance(avro, dict):
        _note_records(avro.get("items", avro["type"]), known)


def _misfit(avro: AvroSchema, value: Any, known: dict[str, Any]) -> str | None:
    """Return the path of the first field whose value does not fit its type; empty: the value itself; None: all fit.

    For error messages: fastavro's own show the value.
    """
    if isinstance(avro, list):
        (required,) = (each for each in avro if each != "null")
        return None if value is None else _misfit(required, value, known)
    if isinstance(avro, str) and avro not in known:
        return None if isinstance(value, _PYTHON[avro]) else ""
    if isinstance(avro, str):
        avro = known[avro]
    if avro["type"] == "record":
        for field in avro["fields"] if isinstance(value, dict) else ():
            inner = _misfit(field["type"], value.get(field["name"]), known)
            if inner is not None:
                return f"{field['name']}.{inner}" if inner else str(field["name"])
        return None if isinstance(value, dict) else ""
    if avro["type"] == "array":
        misfits = (_misfit(avro["items"], each, known) for each in value)
        return next((found for found in misfits if found is not None), None)
    return _misfit(avro["type"], value, known)


_PYTHON: dict[str, Any] = {
    "boolean": bool,
    "int": int,
    "long": int,
    "float": int | float,
    "double": int | float,
    "string": str,
    "bytes": bytes,
}
