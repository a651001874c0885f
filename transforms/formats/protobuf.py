"""`ProtobufConverter`: keys and values in Protobuf, with schemas in a registry.

    DebeziumFormat("shop", converter=ProtobufConverter(SchemaRegistry("http://registry:8081")))

Needs the extras `protobuf` and `schema-registry`. A record is a zero byte, the schema id in four bytes, big-endian, the
path to the message in its file (one zero byte: the first message), and the message (Confluent's wire format).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

from penstock.transforms.formats.connect_json import json_values
from penstock.transforms.formats.connect_payload import refusal
from penstock.transforms.formats.converter import Encode, Opened, Part
from penstock.transforms.formats.debezium_types import Schema
from penstock.transforms.formats.registry_converter import RegistryConverter
from penstock.transforms.formats.schema_registry import Registration, SchemaRegistry

if TYPE_CHECKING:
    from google.protobuf.descriptor_pb2 import FileDescriptorProto

Rule = Callable[[Any], Any]

_FIRST_MESSAGE = b"\x00"
_DECIMAL = "org.apache.kafka.connect.data.Decimal"
_DEFAULT_PRECISION = 64
"""Precision of a decimal whose schema does not state one."""


class ProtobufConverter(RegistryConverter):
    """Converts payloads of Kafka Connect to Protobuf.

    The schema is made when the first record of a table comes, because its field numbers depend on the versions that the
    registry has.

    Raises:
        UsageError: an extra is missing.
    """

    extra = ("protobuf", "google.protobuf")
    schema_type = "PROTOBUF"

    def _writer(self, topic: str, part: Part, schema: Schema) -> Encode:
        return _Writer(self._registry, topic, part, schema)

    def _reader(self, text: str) -> Callable[[bytes], Opened]:
        return _Reader(text)


class _Writer:
    def __init__(self, registry: SchemaRegistry, topic: str, part: Part, schema: Schema) -> None:
        from penstock.transforms.formats.protobuf_schema import protobuf_name

        self._registry, self._schema = registry, schema
        self._what = f"the {part}s of topic {topic}"
        self._subject = registry.subject(topic, part, ".".join(map(protobuf_name, schema["name"].split("."))))
        self._registration = Registration(registry, self._subject, "PROTOBUF")
        self._show = _to_message(schema)
        self._file: FileDescriptorProto | None = None
        self._class: Any = None
        self._prefix = b""

    def __call__(self, payload: Any) -> bytes:
        if not self._prefix:
            self._prefix = self._registration.prefix(self._text) + _FIRST_MESSAGE
            self._class = _message_class(self._file)
        try:
            message = self._class(**(self._show(payload) if self._show else payload))
            return self._prefix + message.SerializeToString(deterministic=True)
        except (ValueError, TypeError, OverflowError, UnicodeError):
            raise refusal(self._schema, payload, self._what, "Protobuf") from None

    def _text(self) -> str:
        from penstock.transforms.formats.protobuf_schema import as_text, file_descriptor, from_text

        versions = map(from_text, self._registry.versions(self._subject, "PROTOBUF"))
        self._file = file_descriptor(self._schema, versions)
        return as_text(self._file)


class _Reader:
    def __init__(self, text: str) -> None:
        from penstock.transforms.formats.protobuf_schema import connect_schema, from_text

        file = from_text(text)
        self._connect = connect_schema(file, file.message_type[0])
        self._schema = msgspec.Raw(msgspec.json.encode(self._connect))
        self._class = _message_class(file)
        self._payload = _struct_from_message(self._connect)
        self._show = json_values(self._connect)

    def __call__(self, data: bytes) -> Opened:
        from google.protobuf.message import DecodeError

        if data[5:6] != _FIRST_MESSAGE:
            raise ValueError("the record is not of the first message of its schema: Penstock writes no other")
        try:
            message = self._class.FromString(data[6:])
        except DecodeError:
            raise ValueError("the record is not a Protobuf message of its schema") from None
        return Opened(self._schema, msgspec.json.encode(self._show(self._payload(message))))


def _message_class(file: Any) -> Any:
    """Return the class of the first message of a file, in a separate pool: two versions have the same names."""
    from confluent_kafka.schema_registry.confluent import meta_pb2
    from confluent_kafka.schema_registry.confluent.type import decimal_pb2
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    pool: Any = descriptor_pool.DescriptorPool()
    for dependency in (descriptor_pb2, meta_pb2, decimal_pb2):
        pool.AddSerializedFile(dependency.DESCRIPTOR.serialized_pb)
    pool.AddSerializedFile(file.SerializeToString())
    return message_factory.GetMessageClass(
        pool.FindFileByName(file.name).message_types_by_name[file.message_type[0].name]
    )


def _to_message(schema: Schema) -> Rule | None:
    """Return the function from a payload that is not null to the arguments of its message; None: no change."""
    from penstock.transforms.formats.protobuf_schema import is_plain_array

    kind = schema["type"]
    if kind == "struct":
        return _struct_to_message(schema)
    if kind == "array":
        element = _to_message(schema["items"])
        if is_plain_array(schema):
            return element and (lambda values: [element(each) for each in values])
        # An element message without a value is null.
        return lambda values: {
            "elements": [
                {} if each is None else {"value": each if element is None else element(each)}
                for each in values
            ]
        }
    if schema.get("name") == _DECIMAL:
        parameters = schema.get("parameters", {})
        precision = int(parameters.get("connect.decimal.precision", _DEFAULT_PRECISION))
        scale = int(parameters["scale"])
        return lambda unscaled: {"value": unscaled, "precision": precision, "scale": scale}
    return None


def _struct_to_message(schema: Schema) -> Rule | None:
    from penstock.transforms.formats.protobuf_schema import protobuf_name

    fields = [
        (field["field"], protobuf_name(field["field"]), _to_message(field)) for field in schema["fields"]
    ]
    required = [field["field"] for field in schema["fields"] if not field.get("optional")]
    same = all(rule is None and name == original for original, name, rule in fields)
    if same and not required:
        return None

    def to_message(payload: Any) -> dict[str, Any]:
        for name in required:
            if payload.get(name) is None:
                # proto3 would write nothing, and every reader would take that for 0 or an empty text.
                raise ValueError("a required field is null")
        if same:
            return payload
        return {
            name: value if rule is None else rule(value)
            for original, name, rule in fields
            if (value := payload.get(original)) is not None
        }

    return to_message


def _struct_from_message(schema: Schema) -> Rule:
    from penstock.transforms.formats.protobuf_schema import protobuf_name

    rules = [
        (field["field"], protobuf_name(field["field"]), _has_presence(field), _from_message(field))
        for field in schema["fields"]
    ]

    def payload(message: Any) -> dict[str, Any]:
        return {
            original: rule(getattr(message, name)) if not presence or message.HasField(name) else None
            for original, name, presence, rule in rules
        }

    return payload


def _has_presence(schema: Schema) -> bool:
    return bool(schema.get("optional"))


def _from_message(schema: Schema) -> Rule:
    from penstock.transforms.formats.protobuf_schema import is_plain_array

    kind = schema["type"]
    if kind == "struct":
        return _struct_from_message(schema)
    if kind == "array":
        element = _from_message(schema["items"])
        if is_plain_array(schema):
            return lambda values: [element(each) for each in values]
        return lambda array: [
            element(each.value) if each.HasField("value") else None for each in array.elements
        ]
    if schema.get("name") == _DECIMAL:
        return lambda decimal: decimal.value
    return lambda value: value
