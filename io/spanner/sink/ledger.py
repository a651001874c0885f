"""The ledger of the Spanner sink: one row for each writer, written in the transaction of the rows.

The times until which the target is complete are in another table, with one row for each job and sink.
"""

from __future__ import annotations

from typing import Any

import msgspec
from google.cloud.spanner_v1 import KeySet

from penstock.io.staging.complete_marks import Mark
from penstock.io.staging.delivery import LedgerEntry, Refusal, Sent

LEDGER, COMPLETE = "PenstockLedger", "PenstockComplete"
_COLUMNS = ("Writer", "Generation", "Epoch", "Driver", "Done", "Complete", "Refused")
_COMPLETE_COLUMNS = ("Job", "Sink", "Record", "CompleteUntil")
_decode_refused = msgspec.json.Decoder(tuple[tuple[int, str], ...]).decode


class StoredEntry(msgspec.Struct, frozen=True):
    """The entry of a writer. `done` events of the delivery are written; `complete`: all of them."""

    generation: int
    epoch: int
    driver: str
    done: int
    complete: bool
    refused: tuple[tuple[int, str], ...] = ()

    @property
    def entry(self) -> LedgerEntry:
        return LedgerEntry(self.generation, self.epoch, self.driver)

    @property
    def sent(self) -> Sent:
        return Sent(tuple(Refusal(index, reason) for index, reason in self.refused))


def create_ledger() -> str:
    """Return the statement that creates the ledger."""
    return (
        f"CREATE TABLE IF NOT EXISTS {LEDGER} (Writer STRING(MAX) NOT NULL, Generation INT64 NOT NULL, "
        "Epoch INT64 NOT NULL, Driver STRING(MAX) NOT NULL, Done INT64 NOT NULL, Complete BOOL NOT NULL, "
        "Refused STRING(MAX) NOT NULL) PRIMARY KEY (Writer)"
    )


def read_entry(transaction: Any, writer: str) -> StoredEntry | None:
    """Return the entry of a writer, read in a transaction or a snapshot; None if there is none."""
    # One row by its key, so Spanner locks this writer only.
    rows = transaction.read(LEDGER, _COLUMNS, KeySet(keys=[(writer,)]))
    for _, generation, epoch, driver, done, complete, refused in rows:
        return StoredEntry(generation, epoch, driver, done, complete, _decode_refused(refused))
    return None


def write_entry(transaction: Any, writer: str, entry: StoredEntry) -> None:
    """Replace the entry of a writer in a transaction."""
    refused = msgspec.json.encode(entry.refused).decode()
    row = (writer, entry.generation, entry.epoch, entry.driver, entry.done, entry.complete, refused)
    transaction.insert_or_update(LEDGER, _COLUMNS, [row])


def create_complete() -> str:
    """Return the statement that creates the table of the times until which the target is complete."""
    return (
        f"CREATE TABLE IF NOT EXISTS {COMPLETE} (Job STRING(MAX) NOT NULL, Sink STRING(MAX) NOT NULL, "
        "Record INT64 NOT NULL, CompleteUntil TIMESTAMP NOT NULL) PRIMARY KEY (Job, Sink)"
    )


def write_mark(transaction: Any, mark: Mark) -> None:
    """Set the time of a sink in a transaction, unless the table has a mark of a later record.

    A driver that was paused may come with an older record, which changes nothing.
    """
    for (known,) in transaction.read(COMPLETE, ("Record",), KeySet(keys=[(mark.job, mark.sink)])):
        if known >= mark.record:
            return
    row = (mark.job, mark.sink, mark.record, mark.complete_until)
    transaction.insert_or_update(COMPLETE, _COMPLETE_COLUMNS, [row])
