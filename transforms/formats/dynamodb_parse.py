"""DynamoDB Streams records of YDB's document tables back to events. Pure.

    parse = DynamoDbParser(schema, Source("ydb", database="/local", table="orders"))
    event = parse(value, timestamp=…, version=…)

| eventName | event |
|---|---|
| INSERT | CREATE |
| MODIFY | UPDATE |
| REMOVE | DELETE |

| attribute value | Python value |
|---|---|
| BOOL, S, N, B | bool, str, Decimal, bytes |
| NULL | None |
| L, M | list, dict |
| SS, NS, BS | list |

YDB leaves NULL out of images, so a column of the schema that a whole image lacks is NULL. Columns whose names begin
with two underscores are YDB's own, and are left out.

Sources: Amazon DynamoDB API reference, "StreamRecord" and "AttributeValue"; YDB source code,
`TDynamoDBStreamsJsonSerializer`.
"""

from __future__ import annotations

from binascii import a2b_base64
from decimal import Decimal
from typing import Any

import msgspec

from penstock.event import ChangeEvent, Image, Op, Source, TableSchema, Version

_Attributes = dict[str, dict[str, Any]]


class _Streams(msgspec.Struct):
    Keys: _Attributes
    OldImage: _Attributes | None = None
    NewImage: _Attributes | None = None
    ApproximateCreationDateTime: float = 0


class _Record(msgspec.Struct):
    eventName: str  # noqa: N815  (names of the format)
    dynamodb: _Streams


_decode = msgspec.json.Decoder(_Record).decode
_OPS = {"INSERT": Op.CREATE, "MODIFY": Op.UPDATE, "REMOVE": Op.DELETE}


class DynamoDbParser:
    """Parses the records of one changefeed of one document table."""

    def __init__(self, schema: TableSchema, source: Source) -> None:
        self._schema, self._source = schema, source
        self._nulls = {name: None for name in schema.names if not name.startswith("__")}

    def __call__(self, value: bytes, *, timestamp: int, version: Version) -> ChangeEvent:
        """Return the event of a record, with the time and the version that the caller knows.

        Raises:
            ValueError: not such a record, or a value that does not have the form of its type.
        """
        try:
            record = _decode(value)
        except msgspec.DecodeError as error:
            raise ValueError(f"not a DynamoDB Streams record: {error}") from None
        op = _OPS.get(record.eventName)
        if op is None:
            raise ValueError(f"eventName {record.eventName!r} does not exist in DynamoDB Streams")
        streams = record.dynamodb
        keys = self._image(streams.Keys)
        missing = [column.name for column in self._schema.key_columns if column.name not in keys]
        if missing:
            # Not YDB's own columns of the key, such as `__Hash`: `_image` leaves them out.
            hidden = [name for name in missing if not name.startswith("__")]
            if hidden:
                raise ValueError(f"the record lacks {hidden[0]}, a column of the key of {self._source.table}")
        key = {column.name: keys[column.name] for column in self._schema.key_columns if column.name in keys}
        before = None if streams.OldImage is None else self._nulls | self._image(streams.OldImage)
        after = None if streams.NewImage is None else self._nulls | self._image(streams.NewImage)
        if op is not Op.DELETE and after is None:
            after = key
        return ChangeEvent(self._source, op, timestamp, key, before, after, version, self._schema)

    def _image(self, attributes: _Attributes) -> Image:
        return {
            name: self._value(name, attribute)
            for name, attribute in attributes.items()
            if not name.startswith("__")
        }

    def _value(self, name: str, attribute: dict[str, Any]) -> Any:
        try:
            ((kind, value),) = attribute.items()
            return _PARSE[kind](value)
        except (ValueError, ArithmeticError, TypeError, KeyError, AttributeError):
            raise ValueError(
                f"column {name} of {self._source.table}: not an attribute value of DynamoDB"
            ) from None


def _parsed(attribute: dict[str, Any]) -> Any:
    ((kind, value),) = attribute.items()
    return _PARSE[kind](value)


def _parsed_list(values: list[Any]) -> list[Any]:
    return [_parsed(each) for each in values]


def _parsed_map(values: dict[str, Any]) -> dict[str, Any]:
    return {name: _parsed(each) for name, each in values.items()}


def _checked_bool(value: Any) -> bool:
    if not isinstance(value, bool):
        raise TypeError
    return value


_PARSE: dict[str, Any] = {
    "BOOL": _checked_bool,
    "S": str,
    "N": Decimal,
    "B": a2b_base64,
    "NULL": lambda value: None,
    "L": _parsed_list,
    "M": _parsed_map,
    "SS": list,
    "NS": lambda values: [Decimal(each) for each in values],
    "BS": lambda values: [a2b_base64(each) for each in values],
}
