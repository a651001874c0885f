"""A data change record as lines of JSON: one object for each changed row, with Spanner's field names. Pure.

    {"commit_timestamp":"2026-01-31T12:00:00.123456789Z","record_sequence":"00000000", … ,
     "mod_index":0,"number_of_mods":2,"keys":{…},"new_values":{…},"old_values":{…}}

The three objects at the end are the text that Spanner sent: an INT64 or NUMERIC stays a string, a column that
was not sent is absent, one that is NULL is null. A side that Spanner sent as NULL is null.
(`commit_timestamp`, `server_transaction_id`, `record_sequence`, `mod_index`) identifies a line and orders all
lines. Column types are left out: they would be most of each line and are the same in almost all.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

import msgspec

from penstock.io.spanner.record import ColumnType, DataChangeRecord, Mods
from penstock.timestamps import format_timestamp, parse_timestamp
from penstock.transforms.formats.lines import Line

_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


def mod_lines(record: DataChangeRecord) -> Iterator[Line]:
    """Yield one line for each mod of `record`, in its order. The key of a line is the text of its key object."""
    head = _encode(_shared(record))[:-1]
    for index, mod in enumerate(record.mods):
        keys = _side(mod.keys)
        line = (
            f'{head},"mod_index":{index},"number_of_mods":{len(record.mods)},"keys":{keys}'
            f',"new_values":{_side(mod.new_values)},"old_values":{_side(mod.old_values)}}}'
        )
        yield Line(record.table_name, keys, line)


def _shared(record: DataChangeRecord) -> dict[str, object]:
    """Return the fields that all mods of a record share, in the order of Spanner's documentation."""
    return {
        "commit_timestamp": format_timestamp(record.commit_timestamp),
        "record_sequence": record.record_sequence,
        "server_transaction_id": record.server_transaction_id,
        "is_last_record_in_transaction_in_partition": record.is_last_record_in_transaction_in_partition,
        "table_name": record.table_name,
        "mod_type": record.mod_type,
        "value_capture_type": record.value_capture_type,
        "number_of_records_in_transaction": record.number_of_records_in_transaction,
        "number_of_partitions_in_transaction": record.number_of_partitions_in_transaction,
        "transaction_tag": record.transaction_tag,
        "is_system_transaction": record.is_system_transaction,
    }


def _side(text: str) -> str:
    """Return one JSON object for a line. A line break in it can only be space between tokens, so it becomes a space."""
    if not text:
        return "null"
    return text.replace("\n", " ").replace("\r", " ") if "\n" in text or "\r" in text else text


class _ParsedLine(msgspec.Struct):
    commit_timestamp: str
    record_sequence: str
    server_transaction_id: str
    is_last_record_in_transaction_in_partition: bool
    table_name: str
    mod_type: str
    value_capture_type: str
    number_of_records_in_transaction: int
    number_of_partitions_in_transaction: int
    transaction_tag: str
    is_system_transaction: bool
    mod_index: int
    keys: msgspec.Raw
    new_values: msgspec.Raw
    old_values: msgspec.Raw


_decode = msgspec.json.Decoder(_ParsedLine).decode


def record_of_line(line: bytes, columns: tuple[ColumnType, ...]) -> tuple[DataChangeRecord, int]:
    """Return a record with the one mod of a line, and the index of the mod in its record.

    `columns`: of the table.

    Raises:
        ValueError: it is no line of `mod_lines`.
    """
    parsed = _decode(line)
    sides = [bytes(side).decode() for side in (parsed.keys, parsed.new_values, parsed.old_values)]
    record = DataChangeRecord(
        parse_timestamp(parsed.commit_timestamp),
        parsed.record_sequence,
        parsed.server_transaction_id,
        parsed.is_last_record_in_transaction_in_partition,
        parsed.table_name,
        columns,
        Mods(tuple("" if side == "null" else side for side in sides)),
        parsed.mod_type,
        parsed.value_capture_type,
        parsed.number_of_records_in_transaction,
        parsed.number_of_partitions_in_transaction,
        parsed.transaction_tag,
        parsed.is_system_transaction,
    )
    return record, parsed.mod_index
