"""Versions of rows that a snapshot has read."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from penstock.io.postgres.arrow_rows import sequence_of as sequence_in_arrow
from penstock.io.postgres.events import version_of
from penstock.io.postgres.record import ChangeKind, LogRecord, LogTransaction, read_record
from tests.unit.postgres.test_snapshot_merge import TABLE


@dataclass
class Place:
    lsn: int
    time: int
    number: int

    def read(self) -> LogRecord:
        record = read_record(TABLE, ("1", "b", "c"))
        return msgspec.structs.replace(record, lsn=self.lsn, event_timestamp=self.time, sequence=self.number)


def test_a_row_that_is_read_later_has_a_higher_version_also_if_the_server_has_written_no_log() -> None:
    # In the first snapshot it was row 9, and in the second one row 1.
    first, second = Place(500, 1_000, 9).read(), Place(500, 1_001, 1).read()
    assert version_of(first) < version_of(second) < version_of(Place(501, 1_000, 1).read())
    assert sequence_in_arrow(second) == 1_001


def test_a_row_has_a_higher_version_than_the_changes_that_it_contains() -> None:
    change = LogRecord(
        ChangeKind.INSERT, 9_999, LogTransaction(7, 499, 9_999), 1, 450, True, TABLE, ("1", "b", "c")
    )
    assert version_of(change) < version_of(Place(500, 1_000, 1).read())
