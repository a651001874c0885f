"""The coder of changefeed records: a version byte and a msgpack array.

    [event_timestamp, partition, offset, table, data, key, step, tx_id, is_initial_scan, created_at, written_at]

`table` is the msgpack encoding of the table as bytes: it is encoded and parsed once per distinct table.
"""

from __future__ import annotations

import msgspec
from apache_beam import coders

from penstock.coders import VersionedCoder, cached_coding
from penstock.io.change_streams import coders as shared
from penstock.io.ydb.record import ChangefeedRecord, Table
from penstock.io.ydb.source import ChangeStream

VERSION = b"\x01"
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder().decode
_table_bytes, _table = cached_coding(Table)


class ChangefeedRecordCoder(VersionedCoder):
    """Encodes a `ChangefeedRecord` in the format of this module; deterministic."""

    value_type = ChangefeedRecord
    what = "a ChangefeedRecord"

    def encode(self, value: ChangefeedRecord) -> bytes:
        return VERSION + _encode(
            (
                value.event_timestamp,
                value.partition,
                value.offset,
                _table_bytes(value.table),
                value.data,
                value.key,
                value.step,
                value.tx_id,
                value.is_initial_scan,
                value.created_at,
                value.written_at,
            )
        )

    def decode(self, encoded: bytes) -> ChangefeedRecord:
        """Return the record.

        Raises:
            ValueError: the bytes were written by a version that this one does not know.
        """
        self.check_version(encoded[0] if encoded else None)
        timestamp, partition, offset, table, *rest = _decode(memoryview(encoded)[1:])
        return ChangefeedRecord(timestamp, partition, offset, _table(table), *rest)


class ChangeStreamCoder(shared.ChangeStreamCoder):
    """Encodes a `ChangeStream`."""

    value_type = ChangeStream
    system = "ydb"


coders.registry.register_coder(ChangefeedRecord, ChangefeedRecordCoder)
coders.registry.register_coder(ChangeStream, ChangeStreamCoder)
