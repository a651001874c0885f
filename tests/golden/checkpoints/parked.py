"""Record a record with parked tables (format 4): `python -m tests.golden.checkpoints.parked VERSION`.

It is the record of VERSION's checkpoint, with a parked table whose changes are in a file. Run it once for each release,
as `record`.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

from penstock.attempt import Attempt, DriverToken
from penstock.event import ChangeEvent, Column, ColumnType, Kind, Op, Source, TableSchema, Version
from penstock.io.staging.epochs import EpochDelivery
from penstock.io.staging.local import LocalStore
from penstock.io.staging.parked_files import EpochChanges, ParkedFiles
from penstock.parked import ParkedTable
from penstock.runner.protocol.record import CommitRecord, ParkedPublications
from penstock.runner.protocol.record_codec import encode_record
from penstock.runner.store import Checkpoint
from tests.golden.checkpoints.record import FOLDER

SINK, JOB, STEP = "WriteToDelta", "20261129T020000-4c1d", "Write/Publish"
DRIVERS = (DriverToken(1, "first"),)
NUMBER, TEXT = ColumnType(Kind.INT64, "bigint"), ColumnType(Kind.STRING, "text")
SCHEMA = TableSchema((Column("k", NUMBER, False, 1), Column("v", TEXT)))
SOURCE = Source("postgresql", "srv", "shop", "public", "orders", "all", "DEFAULT")
EVENTS = [
    ChangeEvent(SOURCE, Op.UPDATE, n * 10**9, {"k": n}, None, {"k": n, "v": "x"}, Version(n, str(n)), SCHEMA)
    for n in range(3)
]
NOT_PARKED = ParkedTable("orders", "public.orders", "column v: text is not bigint", 7, 0, 0, False, b"", 5)


def parked_in(folder: Path) -> ParkedTable:
    """Park the events, two epochs in one file below `folder`, and return the table."""
    files, parked = ParkedFiles(LocalStore(str(folder)), SINK), NOT_PARKED
    for epoch, events in ((3, EVENTS[:1]), (4, EVENTS[1:])):
        changes = EpochChanges(EpochDelivery(SINK, JOB, 1, epoch, DRIVERS), events)
        parked = files.with_changes(parked, changes, Attempt(JOB, 1, epoch, "nonce", DRIVERS), 0)
    return parked


def record_with(parked: ParkedTable, version: str) -> CommitRecord:
    """Return the last record of a checkpoint, with a parked table."""
    last = Checkpoint.open(str(FOLDER / version / "checkpoint")).last_record()
    return replace(last, state=replace(last.state, parked=(ParkedPublications(STEP, parked),)))


def main(version: str) -> int:
    target = FOLDER / f"{version}-parked"
    if not target.exists():  # a version that has one keeps it
        target.mkdir()
        parked = parked_in(target / "output")
        (target / "record").write_bytes(encode_record(record_with(parked, version)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
