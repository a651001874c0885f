"""One changed row as a line describes it, with the field names of Spanner's documentation."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

from penstock_emulators.oracle.lines import Line

_RFC3339 = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?Z")

Version = tuple[int, str, int]
Identity = tuple[str, str, int]
"""Transaction, record sequence, and index in the record: no two changes of a stream share them."""


@dataclass(frozen=True, slots=True)
class Change:
    """One mod. `version` (commit time in ns, record sequence, index in the record) orders the changes of a key.

    `key` is the key columns as JSON with sorted names, `bucket` the (table, hour, shard) of its file, `place` its
    file and line.
    """

    bucket: tuple[str, str, str]
    place: str
    table: str
    mod_type: str
    key: str
    new: dict[str, Any]
    old: dict[str, Any]
    transaction: str
    version: Version
    mods_in_record: int
    records_in_transaction: int
    partitions_in_transaction: int
    last_in_partition: bool

    @property
    def identity(self) -> Identity:
        return (self.transaction, *self.version[1:])


def changes_of(lines: Iterable[Line]) -> Iterator[Change]:
    """Turn lines into changes, in the same order.

    Raises:
        KeyError, ValueError: a line lacks a field, or its time is not RFC 3339 in UTC.
    """
    return (_change(line) for line in lines)


def nanoseconds(timestamp: str) -> int:
    """Return an RFC 3339 time in UTC (up to nine fraction digits, with Z) as nanoseconds since 1970."""
    found = _RFC3339.fullmatch(timestamp)
    if found is None:
        raise ValueError("a commit_timestamp is not RFC 3339 in UTC with a Z")
    second = datetime.fromisoformat(found[1]).replace(tzinfo=timezone.utc)
    return round(second.timestamp()) * 1_000_000_000 + int((found[2] or "").ljust(9, "0"))


def _change(line: Line) -> Change:
    fields = line.content
    return Change(
        bucket=(line.table, line.hour, line.shard),
        place=line.place,
        table=fields["table_name"],
        mod_type=fields["mod_type"],
        key=json.dumps(fields["keys"], sort_keys=True),
        new=fields["new_values"] or {},
        old=fields["old_values"] or {},
        transaction=fields["server_transaction_id"],
        version=(nanoseconds(fields["commit_timestamp"]), fields["record_sequence"], fields["mod_index"]),
        mods_in_record=fields["number_of_mods"],
        records_in_transaction=fields["number_of_records_in_transaction"],
        partitions_in_transaction=fields["number_of_partitions_in_transaction"],
        last_in_partition=fields["is_last_record_in_transaction_in_partition"],
    )
