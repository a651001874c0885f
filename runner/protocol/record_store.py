"""The operations that the protocol needs of a checkpoint folder. `penstock.runner.store.Checkpoint` implements it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from penstock.runner.protocol.record import CommitRecord


@dataclass(frozen=True, slots=True)
class StoredRecord:
    """A record with all of its state, and the digest of the record's own bytes."""

    record: CommitRecord
    digest: str


class RecordStore(Protocol):
    """The commit records with their side files, and the names of the state runs of one job."""

    @property
    def job(self) -> str:
        """The job's name, drawn when the checkpoint was created."""

    @property
    def folder(self) -> str:
        """The folder, for messages."""

    def last(self) -> StoredRecord | None:
        """Return the record with the highest number, None in a new checkpoint."""

    @property
    def lists_cheaply(self) -> bool:
        """Whether a listing costs no more than a look at one file. On object stores it costs time and money."""

    def record_numbers(self) -> list[int]:
        """Return the numbers of all records, ascending. Old ones may be missing."""

    def record_above(self, number: int, known: StoredRecord | None) -> int | None:
        """Return the number of a record above `number`; None if there was none at some moment during the call.

        `known` is None, or a record at or below `number` that the caller has created and that was the highest one at
        that time.

        Raises:
            CheckpointError: there is no higher record, and `known` is missing too: the checkpoint was emptied. (Only a
                store without cheap listings detects this here.)
        """

    def create_record(self, number: int, data: bytes) -> bool:
        """Create record `number` if it is absent; see `FileSystem.create_if_absent`."""

    def read_record(self, number: int) -> bytes:
        """Return a record's own bytes, or raise FileNotFoundError."""

    def delete_record(self, number: int) -> None:
        """Delete a record. A missing record is not an error."""

    def run_names(self) -> list[str]:
        """Return the names of all state runs, of any writer."""

    def delete_runs(self, names: Sequence[str]) -> None:
        """Delete state runs, in any order. Missing files are not an error."""

    def write_side_file(self, name: str, data: bytes) -> None:
        """Write a side file, durably. Its name was never used. Raises OSError: a part of it may exist."""

    def side_file_names(self) -> list[str]:
        """Return the names of all side files, of any writer."""

    def delete_side_files(self, names: Sequence[str]) -> None:
        """Delete side files, in any order. Missing files are not an error."""

    def delete_leftovers(self) -> int:
        """Delete partly written files of writers that were killed long ago; return their number."""
