"""Converters: they turn the key or the value of a record into bytes, as the converters of Kafka Connect do. Pure.

    DebeziumFormat("shop", converter=JsonConverter(schemas_enable=True))
    DebeziumFormat("shop", converter=AvroConverter(SchemaRegistry("http://registry:8081")))

A converter gets a schema of Kafka Connect once, and then payloads of that schema. `AvroConverter` and
`ProtobufConverter` are in separate modules, because they need extras.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, Protocol

import msgspec

from penstock.transforms.formats.debezium_types import Schema
from penstock.transforms.formats.formatted import Encoding

Encode = Callable[[Any], bytes]
Part = Literal["key", "value"]


class Opened(msgspec.Struct, frozen=True):
    """A key or a value as Kafka Connect's JsonConverter shows it: the Connect schema, if there is one, and the payload.

    Both are the bytes of JSON.
    """

    schema: msgspec.Raw | None
    payload: Any


class Converter(Protocol):
    """Converts payloads of Kafka Connect to bytes, and back. Picklable."""

    @property
    def as_json(self) -> bool:
        """True: payloads are for a JSON encoder. False: they consist of dicts and lists, and a column that is not
        sent must be null."""

    def check(self) -> None:
        """Check before the pipeline starts that the converter can work; see `SchemaRegistry.check`."""

    @property
    def embeds_schema(self) -> bool:
        """Whether each key and value contains its schema."""

    def encoder(self, topic: str, part: Part, schema: Schema) -> Encode:
        """Return the function that encodes payloads of a schema, for the keys or the values of a topic.

        It raises a ValueError that names the field of a payload that does not fit the schema.
        """

    def open(self, data: bytes) -> Opened:
        """Return what `encoder` encoded.

        Raises:
            ValueError: the bytes are not of this converter.
        """


class JsonConverter:
    """JSON as Kafka Connect writes it. `schemas_enable` puts the schema into each key and value."""

    as_json = True

    def __init__(self, *, schemas_enable: bool = False) -> None:
        self.embeds_schema = schemas_enable

    def check(self) -> None:
        """Do nothing: JSON needs no registry."""

    def encoder(self, topic: str, part: Part, schema: Schema) -> Encode:
        """Return the function that encodes payloads of a schema."""
        if not self.embeds_schema:
            return _encode
        # The schema is as large as the row, so it is encoded once.
        prefix = b'{"schema":' + _encode(schema) + b',"payload":'
        return lambda payload: prefix + _encode(payload) + b"}"

    def open(self, data: bytes) -> Opened:
        """Return schema and payload; an object without these two members is its own payload.

        Raises:
            ValueError: not a JSON object.
        """
        outer = _decode_outer(data)
        # `{"payload": …}` alone can be a row with a column of that name, so both members must be there.
        if not bytes(outer.payload) or not bytes(outer.schema):
            return Opened(None, data)
        # A schema of null is what JsonConverter writes for a record without a schema.
        return Opened(None if bytes(outer.schema) == b"null" else outer.schema, outer.payload)


class _Outer(msgspec.Struct):
    """A key or a value of either form: with `schema` and `payload`, or bare."""

    # Not `Raw | None`: msgspec reads a union with Raw as null only.
    schema: msgspec.Raw = msgspec.Raw(b"")
    payload: msgspec.Raw = msgspec.Raw(b"")


_encode = msgspec.json.Encoder().encode
_decode_outer = msgspec.json.Decoder(_Outer).decode


def encoding_of(converter: Converter) -> Encoding:
    """Return what the bytes of a converter are."""
    return "json" if converter.as_json else "binary"
