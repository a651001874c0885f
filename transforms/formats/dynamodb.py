"""DynamoDB Streams records, made of any source's events: the JSON that Lambda functions get. Pure.

    records = events | FormatEvents(DynamoDbFormat(stream_view_type="NEW_IMAGE", aws_region="eu-west-1"))

| event | eventName | images |
|---|---|---|
| CREATE, READ | INSERT | NewImage |
| UPDATE | MODIFY | NewImage, OldImage |
| DELETE | REMOVE | OldImage |

Images are whole rows and include the key; `stream_view_type` says which of them a record has. A change of the
primary key is a REMOVE and an INSERT. Messages and schema changes become no record; a truncate raises a ValueError.

| column | attribute value |
|---|---|
| BOOL | `{"BOOL":true}` |
| integers, FLOAT32, FLOAT64, DECIMAL | `{"N":"1.5"}`, up to 38 digits; no NaN and no infinities |
| BYTES, PROTO | `{"B":"…"}`, base64 |
| DATE, TIME, TIMESTAMP, LOCAL_TIMESTAMP, INTERVAL | `{"S":"…"}`, ISO 8601 with all digits |
| all other texts, JSON too | `{"S":"…"}` |
| ARRAY, STRUCT | `{"L":[…]}`, `{"M":{…}}` |
| NULL | `{"NULL":true}`; left out by YDB |

The dialect `ydb` writes what YDB writes for document tables: times in milliseconds, a sequence number of at least
21 digits, INSERT only with both images.

Sources: Amazon DynamoDB API reference, "Record" and "StreamRecord"; DynamoDB developer guide, "Data types" and
"Item sizes"; YDB source code, `TDynamoDBStreamsJsonSerializer`.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable
from datetime import date
from decimal import Decimal
from hashlib import blake2b
from typing import Any, Literal, get_args

import msgspec

from penstock.event import ChangeEvent, ColumnType, Image, Kind, Op, Source, TableSchema
from penstock.event.keys import changed_key
from penstock.transforms.formats.capture import check_cells, check_choice, check_source
from penstock.transforms.formats.formatted import FormattedRecord
from penstock.transforms.formats.table_format import TableFormat
from penstock.transforms.formats.value_text import fraction, interval_text, time_text, whole_second
from penstock.transforms.tables import table_name

StreamViewType = Literal["KEYS_ONLY", "NEW_IMAGE", "OLD_IMAGE", "NEW_AND_OLD_IMAGES"]
Dialect = Literal["aws", "ydb"]

_NAMES = {Op.CREATE: "INSERT", Op.READ: "INSERT", Op.UPDATE: "MODIFY", Op.DELETE: "REMOVE"}
_EPOCH_DAY = date(1970, 1, 1).toordinal()
_SMALLEST, _LARGEST = Decimal("1E-130"), Decimal("9.9999999999999999999999999999999999999E+125")

_json = msgspec.json.Encoder().encode

Attribute = dict[str, Any]


class DynamoDbFormat(TableFormat["_Table"]):
    """Formats events as records of DynamoDB Streams. The options have DynamoDB's names.

    The key of a record is the JSON object of its `Keys`. `eventID` is the same after a repeated read. `SequenceNumber`
    holds the version of the event, so it grows with the commits.

    Args:
        stream_view_type: Which images a record has. All but KEYS_ONLY need a source that sends whole rows.
        aws_region: The `awsRegion` of the records.
        event_source_arn: The `eventSourceARN` of the records. Without it, the field is left out.
        dialect: aws, or ydb for what YDB writes for document tables.

    Raises:
        UsageError: an option has a value that DynamoDB does not have.
    """

    modes = get_args(StreamViewType)

    def __init__(
        self,
        *,
        stream_view_type: StreamViewType = "NEW_AND_OLD_IMAGES",
        aws_region: str = "",
        event_source_arn: str = "",
        dialect: Dialect = "aws",
    ) -> None:
        super().__init__()
        check_choice("stream_view_type", stream_view_type, get_args(StreamViewType))
        check_choice("dialect", dialect, get_args(Dialect))
        self._view, self._region, self._arn = stream_view_type, aws_region, event_source_arn
        self._ydb = dialect == "ydb"
        self._new = stream_view_type in ("NEW_IMAGE", "NEW_AND_OLD_IMAGES")
        self._old = stream_view_type in ("OLD_IMAGE", "NEW_AND_OLD_IMAGES")

    @property
    def required_mode(self) -> StreamViewType:
        """The mode that the source must satisfy."""
        return self._view

    def __call__(self, event: ChangeEvent) -> list[FormattedRecord]:
        """Return the records of an event, in their order.

        Raises:
            ValueError: a value that DynamoDB does not have, or an image that is not the whole row; the message names
                the column.
        """
        if event.op in (Op.MESSAGE, Op.SCHEMA):
            return []
        table, key, before = self._plan(event), event.key, event.before
        if event.op is Op.TRUNCATE or key is None:
            what = "no record for a truncate" if event.op is Op.TRUNCATE else "no table without a primary key"
            raise ValueError(f"DynamoDB Streams has {what}: filter the events of {table.name} out")
        if event.cells:
            check_cells(self._view, event)
        if (old_key := changed_key(event)) is not None:
            removal = self._record(table, event, old_key, Op.DELETE, before, None, "-0")
            return [removal, self._record(table, event, key, Op.CREATE, None, event.after, "-1")]
        return [self._record(table, event, key, event.op, before, event.after, "")]

    def _make_plan(self, source: Source, schema: TableSchema) -> _Table:
        check_source(self._view, source)
        return _Table(source, schema, self._view, self._ydb)

    def _record(
        self,
        table: _Table,
        event: ChangeEvent,
        key: Image,
        op: Op,
        before: Image | None,
        after: Image | None,
        suffix: str,
    ) -> FormattedRecord:
        keys = table.attributes(key, table.key_names)
        number = self._sequence_number(event)
        change = {
            "ApproximateCreationDateTime": self._time(event.timestamp),
            "Keys": keys,
            **self._images(table, op, before, after),
            "SequenceNumber": number,
        }
        if not self._ydb:
            sized = (change[part] for part in ("Keys", "NewImage", "OldImage") if part in change)
            change["SizeBytes"] = sum(map(_item_size, sized))
        change["StreamViewType"] = self._view
        # The id is made of the event, so it is the same after a repeated read. `suffix` tells the two records of a
        # changed key apart.
        record = {
            "eventID": f"0-{int(number)}" if self._ydb else _event_id(event.id + suffix),
            "eventName": self._event_name(op),
            "eventVersion": "1.0" if self._ydb else "1.1",
            "eventSource": "ydb:document-table" if self._ydb else "aws:dynamodb",
            "awsRegion": self._region,
            "dynamodb": change,
        }
        if self._arn:
            record["eventSourceARN"] = self._arn
        return FormattedRecord(table.name, _json(keys), _json(record), event.timestamp, event.version)

    def _event_name(self, op: Op) -> str:
        # YDB writes INSERT in this view alone: only with both images does it know that the row is new.
        if self._ydb and _NAMES[op] == "INSERT" and self._view != "NEW_AND_OLD_IMAGES":
            return "MODIFY"
        return _NAMES[op]

    def _images(self, table: _Table, op: Op, before: Image | None, after: Image | None) -> dict[str, Any]:
        images: dict[str, Any] = {}
        if self._new and op is not Op.DELETE:
            images["NewImage"] = table.attributes(after or {}, table.names)
        if self._old and op in (Op.UPDATE, Op.DELETE):
            # Spanner sends the old values of the changed columns only. The others are in the new row.
            old = {**(after or {}), **before} if before is not None else {}
            images["OldImage"] = table.attributes(old, table.names)
        return images

    def _time(self, timestamp: int) -> int | float:
        """Return milliseconds for YDB. AWS has seconds; a float holds today's times down to the microsecond."""
        return timestamp // 1_000_000 if self._ydb else timestamp // 1_000 / 1_000_000

    def _sequence_number(self, event: ChangeEvent) -> str:
        version = event.version
        if self._ydb and event.source.system == "ydb":
            return f"{version.index:021d}"
        sequence = version.sequence or "0"
        if not sequence.isdecimal():
            raise ValueError(
                f"the sequence of an event of {table_name(event.source)} is no number, as DynamoDB's is"
            )
        return f"{version.order:020d}{int(sequence):014d}{version.index:06d}"


class _Table:
    """The part that is the same for the events of one table with one schema."""

    def __init__(self, source: Source, schema: TableSchema, view: str, ydb: bool) -> None:
        self.name, self._view, self._ydb = table_name(source), view, ydb
        self.names = schema.names
        self.key_names = tuple(column.name for column in schema.key_columns)
        self._show = {column.name: attribute_value(column.type) for column in schema}

    def attributes(self, image: Image, names: tuple[str, ...]) -> Attribute:
        """Return the attribute values of an image.

        Raises:
            ValueError: the image lacks a column, or DynamoDB does not have a value.
        """
        shown: Attribute = {}
        for name in names:
            if name not in image:
                raise ValueError(
                    f"column {name} of {self.name} was not sent, so the image of {self._view} would not be the whole "
                    "row: use stream_view_type=KEYS_ONLY, or a capture type that sends whole rows"
                )
            value = image[name]
            if value is not None:
                shown[name] = self._shown(name, value)
            elif not self._ydb:
                shown[name] = {"NULL": True}
        return shown

    def _shown(self, name: str, value: Any) -> Attribute:
        try:
            return self._show[name](value)
        except (ValueError, TypeError, OverflowError) as error:
            raise ValueError(
                f"column {name} of {self.name} cannot be shown in DynamoDB JSON: {error}"
            ) from None


def attribute_value(type_: ColumnType) -> Callable[[Any], Attribute]:
    """Return the function from a value of a column type, not NULL, to DynamoDB's attribute value."""
    if type_.kind is Kind.ARRAY:
        element = attribute_value(type_.element or ColumnType(Kind.OTHER))

        # PostgreSQL's arrays of several dimensions are nested lists of one element type.
        def shown(values: Any) -> Attribute:
            if not isinstance(values, list):
                return element(values)
            return {"L": [{"NULL": True} if value is None else shown(value) for value in values]}

        return shown
    if type_.kind is Kind.STRUCT:
        inner = {field.name: attribute_value(field.type) for field in type_.fields}
        return lambda value: {
            "M": {
                name: {"NULL": True} if each is None else inner.get(name, _text)(each)
                for name, each in value.items()
            }
        }
    return _SHOWN.get(type_.kind, _text)


def _text(value: Any) -> Attribute:
    return {"S": value if isinstance(value, str) else str(value)}


def _integer(value: int) -> Attribute:
    return {"N": str(value)}


def _number(value: float | Decimal) -> Attribute:
    number = value if isinstance(value, Decimal) else Decimal(repr(value))
    if not number.is_finite():
        raise ValueError("a number of DynamoDB is neither NaN nor infinite")
    digits = number.as_tuple().digits
    significant = "".join(map(str, digits)).strip("0")
    if len(significant) > 38 or (number and not _SMALLEST <= abs(number) <= _LARGEST):
        raise ValueError("a number of DynamoDB has 38 digits and lies between 1E-130 and 1E+126")
    return {"N": str(value)}


def _binary(value: bytes) -> Attribute:
    return {"B": b64encode(value).decode()}


def _date(value: float) -> Attribute:
    return {"S": str(value) if value - value != 0 else date.fromordinal(int(value) + _EPOCH_DAY).isoformat()}


def _timestamp(value: float) -> Attribute:
    if value - value != 0:
        return {"S": str(value)}
    seconds, nanos = divmod(int(value), 1_000_000_000)
    return {"S": f"{whole_second(seconds)}{fraction(nanos)}Z"}


_SHOWN: dict[Kind, Callable[[Any], Attribute]] = {
    Kind.BOOL: lambda value: {"BOOL": value},
    **{kind: _integer for kind in Kind if kind.startswith(("INT", "UINT"))},
    Kind.FLOAT32: _number,
    Kind.FLOAT64: _number,
    Kind.DECIMAL: _number,
    Kind.BYTES: _binary,
    Kind.PROTO: _binary,
    Kind.DATE: _date,
    Kind.TIME: lambda value: {"S": time_text(value)},
    Kind.TIMESTAMP: _timestamp,
    Kind.LOCAL_TIMESTAMP: lambda value: {"S": _timestamp(value)["S"].removesuffix("Z")},
    Kind.INTERVAL: lambda value: {"S": interval_text(value)},
}


def _event_id(id_: str) -> str:
    return blake2b(id_.encode(), digest_size=16).hexdigest()


def _item_size(item: Attribute) -> int:
    return sum(len(name.encode()) + _size(value) for name, value in item.items())


def _size(value: Attribute) -> int:
    """Return the size of an attribute value by the rules of "Item sizes" in the developer guide."""
    ((kind, held),) = value.items()
    match kind:
        case "S":
            return len(held.encode())
        case "N":
            return (sum(map(str.isdigit, held)) + 1) // 2 + 1 + held.startswith("-")
        case "B":
            return len(held) // 4 * 3 - held[-2:].count("=")
        case "L":
            return 3 + sum(1 + _size(each) for each in held)
        case "M":
            return 3 + sum(1 + len(name.encode()) + _size(each) for name, each in held.items())
    return 1
