"""What one round says about one key."""

from __future__ import annotations

import pytest

from penstock.event import Kind, Op, Version
from penstock.verify.rounds import (
    ColumnDifference,
    Snapshot,
    SourceRow,
    StoredRow,
    difference,
    is_real,
)
from penstock.verify.rounds import Kind as Found
from tests.unit.formats.events import event_of, schema_of

EVENT = event_of(schema_of({"id": Kind.INT64}, value=Kind.INT64), Op.READ, after={"id": 1, "value": 2})
SEEN, UNSEEN = Version(10, "1"), Version(20, "2")
SNAPSHOT = Snapshot(lambda version: version.order <= 10, 1, 15)
COLUMN = ColumnDifference("value", "2", None)


@pytest.mark.parametrize(
    ("event", "stored", "found"),
    [
        (EVENT, StoredRow(SEEN, False), None),
        (None, None, None),
        (None, StoredRow(SEEN, True), None),
        (EVENT, None, Found.MISSING),
        (EVENT, StoredRow(SEEN, True), Found.MISSING),
        (None, StoredRow(SEEN, False), Found.EXTRA),
        (EVENT, StoredRow(SEEN, False, [COLUMN]), Found.DIFFERENT),
        (EVENT, StoredRow(SEEN, False, (), copies=2), Found.REPEATED),
    ],
)
def test_each_kind_of_difference(event, stored, found):
    assert difference(SourceRow(event, SNAPSHOT), stored) is found


@pytest.mark.parametrize(
    ("stored", "truncated", "kept", "real"),
    [
        (StoredRow(SEEN, False, [COLUMN]), None, True, True),
        (StoredRow(UNSEEN, False, [COLUMN]), None, True, False),
        (StoredRow(UNSEEN, True), None, True, False),
        # Not written by a change: a person's hand.
        (StoredRow(None, False, [COLUMN]), None, True, True),
        (None, None, True, True),
        (None, 14, True, True),
        (None, 15, True, False),
        # A deletion may have come and its tombstone gone.
        (None, None, False, False),
    ],
)
def test_a_difference_is_real_if_the_target_has_only_what_the_snapshot_sees(stored, truncated, kept, real):
    assert is_real(SNAPSHOT, stored, None, truncated, tombstones_kept=kept) is real
