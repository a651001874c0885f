"""The coder of data change records: compact, versioned bytes, never pickle.

    byte      version (1)
    int64     commit_timestamp, nanoseconds
    uint32    number of mods
    uint32    number_of_records_in_transaction
    uint32    number_of_partitions_in_transaction
    byte      flags: 1 = is_last_record_in_transaction_in_partition, 2 = is_system_transaction
    byte      width of a length: 1, 2 or 4 bytes
    lengths   of the texts that follow, in characters: 7 fields, then 3 for each mod
    texts     UTF-8, without separators

Integers are little endian. The seven texts are record_sequence, server_transaction_id, table_name, the
column types as JSON, mod_type, value_capture_type and transaction_tag. Column types are encoded and parsed
once per distinct table shape. Equal records have equal bytes.
"""

from __future__ import annotations

import json
import struct
from functools import lru_cache

from apache_beam import coders

from penstock.coders import VersionedCoder
from penstock.io.change_streams import coders as shared
from penstock.io.change_streams.packing import cut, pack, unpack, width_of
from penstock.io.spanner.record import ColumnType, DataChangeRecord, Mods, new_record
from penstock.io.spanner.source import ChangeStream

VERSION = 1
_HEAD = struct.Struct("<BqIIIBB")
_LAST, _SYSTEM = 1, 2
_TEXTS = 7
"""Number of texts of a record before the texts of its mods."""


class DataChangeRecordCoder(VersionedCoder):
    """Encodes a `DataChangeRecord` in the format of this module; deterministic."""

    value_type = DataChangeRecord
    what = "a DataChangeRecord"

    def encode(self, value: DataChangeRecord) -> bytes:
        texts = [
            value.record_sequence,
            value.server_transaction_id,
            value.table_name,
            _column_text(value.column_types),
            value.mod_type,
            value.value_capture_type,
            value.transaction_tag,
        ]
        texts += value.mods.texts
        lengths = [len(text) for text in texts]
        # One width for all lengths: short records have many of them.
        width = width_of(max(lengths))
        head = _HEAD.pack(
            VERSION,
            value.commit_timestamp,
            len(value.mods),
            value.number_of_records_in_transaction,
            value.number_of_partitions_in_transaction,
            _LAST * value.is_last_record_in_transaction_in_partition + _SYSTEM * value.is_system_transaction,
            width,
        )
        return head + pack(lengths, width) + "".join(texts).encode()

    def decode(self, encoded: bytes) -> DataChangeRecord:
        """Return the record.

        Raises:
            ValueError: the bytes were written by a version that this one does not know.
        """
        version, timestamp, mods, records, partitions, flags, width = _HEAD.unpack_from(encoded)
        self.check_version(version)
        # All lengths come first, so the texts are cut from one decoded string.
        start = _HEAD.size + width * (_TEXTS + 3 * mods)
        texts = list(cut(encoded[start:].decode(), unpack(encoded[_HEAD.size : start], width)))
        return new_record(
            timestamp,
            texts[0],
            texts[1],
            bool(flags & _LAST),
            texts[2],
            _column_types(texts[3]),
            Mods(tuple(texts[_TEXTS:])),
            texts[4],
            texts[5],
            records,
            partitions,
            texts[6],
            bool(flags & _SYSTEM),
        )


# The tuple of columns is shared by thousands of records.
@lru_cache(maxsize=1024)
def _column_text(columns: tuple[ColumnType, ...]) -> str:
    rows = [(c.name, c.type, c.is_primary_key, c.ordinal_position) for c in columns]
    return json.dumps(rows, ensure_ascii=False, separators=(",", ":"))


@lru_cache(maxsize=1024)
def _column_types(text: str) -> tuple[ColumnType, ...]:
    return tuple([ColumnType(*row) for row in json.loads(text)])


class ChangeStreamCoder(shared.ChangeStreamCoder):
    """Encodes a `ChangeStream`."""

    value_type = ChangeStream
    system = "spanner"


coders.registry.register_coder(DataChangeRecord, DataChangeRecordCoder)
coders.registry.register_coder(ChangeStream, ChangeStreamCoder)
