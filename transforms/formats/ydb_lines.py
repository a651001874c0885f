"""A record of a YDB changefeed as a line of JSON: the record is the JSON that YDB wrote. Pure.

    {"commit_timestamp":"2026-01-31T12:00:00.123000Z","step":1769860800123,"tx_id":562949953421315,"partition":0,
     "offset":7,"initial_scan":false,"message_key":null,"record":{"key":[1],"update":{"state":"new"}}}

`step` and `tx_id` are null if the changefeed has no virtual timestamps. `message_key` is the key of the Debezium
format.
(`partition`, `offset`) identifies a line, and orders the lines of one partition.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from penstock.io.ydb.record import ChangefeedRecord
from penstock.timestamps import format_timestamp
from penstock.transforms.formats.lines import Line

_json = msgspec.json.Encoder().encode


class _Key(msgspec.Struct):
    key: msgspec.Raw = msgspec.Raw(b"")
    dynamodb: _Keys | None = None


class _Keys(msgspec.Struct):
    Keys: msgspec.Raw = msgspec.Raw(b"")


_decode = msgspec.json.Decoder(_Key).decode


def changefeed_lines(record: ChangefeedRecord) -> Iterator[Line]:
    """Yield the line of a record. Its order key is the JSON of the primary key; empty for a schema change.

    Raises:
        ValueError: the record is not JSON. The source has sent such records to its error output.
    """
    has_timestamp = record.step or record.tx_id
    fields: dict[str, Any] = {
        "commit_timestamp": format_timestamp(record.commit_timestamp),
        "step": record.step if has_timestamp else None,
        "tx_id": record.tx_id if has_timestamp else None,
        "partition": record.partition,
        "offset": record.offset,
        "initial_scan": record.is_initial_scan,
        "message_key": msgspec.Raw(record.key) if record.key else None,
        "record": msgspec.Raw(record.data),
    }
    yield Line(record.table.name, _order_key(record), _json(fields))


def _order_key(record: ChangefeedRecord) -> bytes:
    if record.key:
        return record.key
    found = _decode(record.data)
    return bytes(found.key if found.dynamodb is None else found.dynamodb.Keys)
