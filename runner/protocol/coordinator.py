"""The driver's side of the protocol: take over, begin, commit, check for a newer driver, sweep.

The coordinator imports no Spark, no Beam and no storage. Time, nonces and pauses are arguments, and records are
behind `RecordStore`. `docs/protocol.md` lists what happens after each kind of crash.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import socket
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime

from penstock.attempt import TOKEN_DIGITS, Attempt, DriverToken
from penstock.compat import UTC
from penstock.runner.protocol.errors import CheckpointError, SupersededError
from penstock.runner.protocol.exactly_once_put import create_exactly_once, repeat_until_answered
from penstock.runner.protocol.names import run_age, side_file_age, side_file_name
from penstock.runner.protocol.record import KEPT_DRIVERS, CommitRecord, EpochState
from penstock.runner.protocol.record_codec import (
    INLINE_BYTES,
    MAX_RECORD_BYTES,
    decode_record,
    encode_record,
    encode_side_file,
    has_lists,
    inline_bytes,
    record_digest,
    side_file_of,
)
from penstock.runner.protocol.record_store import RecordStore, StoredRecord

KEEP_RECORDS = 8
"""Number of newest records that a sweep keeps. The protocol needs only the last one; the others help people."""

SWEEP_LIMIT = 1000
"""Maximum number of files that one sweep deletes."""

IDLE_CHECK_US = 2_000_000
"""Time between two checks for a newer driver, on storage where each check costs money (an object store)."""


@dataclass(frozen=True, slots=True)
class SweepResult:
    """Numbers of files that a sweep has deleted.

    `more`: files remain, because the sweep reached its limit or the storage refused. The next sweep continues.
    """

    runs: int = 0
    records: int = 0
    side_files: int = 0
    leftovers: int = 0
    more: bool = False


def wall_clock_us() -> int:
    """Return the time in microseconds since 1970."""
    return time.time_ns() // 1000


def new_nonce() -> str:
    """Return twelve fresh hexadecimal digits."""
    return uuid.uuid4().hex[:12]


def describe_writer(now_us: int, nonce: str) -> str:
    """Return a text that identifies this process in records and messages: id, host, start time, nonce."""
    return f"process {os.getpid()} on {socket.gethostname()}, started {_utc(now_us)} ({nonce})"


class Coordinator:
    """One driver's access to the records of a checkpoint.

    Until `take_over` has returned, the driver must not publish or delete anything. After `SupersededError` it must
    not use the coordinator again.
    """

    def __init__(
        self,
        store: RecordStore,
        *,
        clock: Callable[[], int] = wall_clock_us,
        nonces: Callable[[], str] = new_nonce,
        pause: Callable[[float], None] = time.sleep,
        writer: str | None = None,
        keep_records: int = KEEP_RECORDS,
        inline_bytes: int = INLINE_BYTES,
    ) -> None:
        if keep_records < 1:
            raise ValueError(f"keep_records={keep_records}: the last record must always stay")
        self._store = store
        self._clock = clock
        self._nonces = nonces
        self._pause = pause
        self._keep_records = keep_records
        self._inline_bytes = inline_bytes
        self._writer = writer or describe_writer(clock(), nonces())
        # With a nonce, because a caller may pass a `writer` that another driver has too.
        self._token = hashlib.sha256(f"{self._writer} {nonces()}".encode()).hexdigest()[:TOKEN_DIGITS]
        self._last_own: StoredRecord | None = None
        self._checked_us = 0
        self._may_have_side_files = True

    @property
    def record(self) -> CommitRecord:
        """The last record that this driver has committed itself."""
        return self._own.record

    @property
    def own_record(self) -> StoredRecord:
        """The last record that this driver has committed itself, with its digest."""
        return self._own

    def digest_of(self, number: int) -> str | None:
        """Return the digest of a record, or None if it was deleted."""
        try:
            return record_digest(self._store.read_record(number), source=f"record {number}")
        except FileNotFoundError:
            return None

    @property
    def _own(self) -> StoredRecord:
        if self._last_own is None:
            raise RuntimeError("the coordinator has no record yet: call take_over() first")
        return self._last_own

    def take_over(self) -> CommitRecord:
        """Commit a record that copies the state of the last one; its number is this driver's generation.

        If another driver creates that number first, this driver reads the last record again and tries the next
        number. So the newest take-over wins.

        Raises:
            SupersededError: an even newer driver has taken over.
            CheckpointError: the last record cannot be read.
            OSError: the record could not be created.
        """
        # This loop ends: a create fails only if another driver has just committed a higher record.
        while True:
            # A new nonce for each try: two tries may have one number, and a name of a side file must not be used twice.
            record, data = self._encode(self._take_over_record(self._store.last()), self._nonces())
            if self._create_record(record.number, data):
                # None: the record that `last` returned is not passed as the predecessor. `last` lists and then reads,
                # and in between a driver that was paused for long may have created that number again.
                return self._remember(record, data, None)

    def _take_over_record(self, last: StoredRecord | None) -> CommitRecord:
        # The generation is a record number, so it is unique and rises without a counter that must be stored elsewhere.
        number = last.record.number + 1 if last else 1
        earlier = last.record.drivers if last else ()
        return CommitRecord(
            number=number,
            generation=number,
            writer=self._writer,
            parent=last.digest if last else None,
            committed_us=self._clock(),
            kind="takeover" if last else "initial",
            epochs=last.record.epochs if last else 0,
            state=last.record.state if last else EpochState(),
            # The same side file, so that a take-over writes only the record.
            side_file=last.record.side_file if last else None,
            drivers=(*earlier, DriverToken(number, self._token))[-KEPT_DRIVERS:],
        )

    def begin(self) -> Attempt:
        """Return a new attempt of the epoch that follows the last record. Each call returns another nonce."""
        record = self.record
        return Attempt(self._store.job, record.generation, record.number + 1, self._nonces(), record.drivers)

    def commit(self, attempt: Attempt, state: EpochState) -> CommitRecord:
        """Commit the state that `attempt` computed from the last record, atomically.

        Raises:
            SupersededError: another driver has taken over; nothing of this attempt counts.
            CommitUnknownError: the storage never said whether the record exists. Stop; the next take-over reads it.
            CheckpointError: the last record is missing, and there is no later one.
            OSError: the record was not created; the epoch may be repeated.
            ValueError: `attempt` is not for the next epoch.
        """
        own = self._own
        if (attempt.generation, attempt.epoch) != (own.record.generation, own.record.number + 1):
            raise ValueError(
                f"epoch {attempt.epoch} does not follow record {own.record.number}; call begin() for it"
            )
        # Check this before the create: in a folder that was replaced by an empty one, the create would succeed. Not on
        # object stores: they are not mounted, a request takes tens of ms, and the check after the create
        # (`_remember`) finds an emptied prefix too.
        if self._store.lists_cheaply:
            self._require_own()
        record = replace(
            own.record,
            number=attempt.epoch,
            parent=own.digest,
            committed_us=self._clock(),
            kind="epoch",
            epochs=own.record.epochs + 1,
            state=state,
            side_file=None,
        )
        record, data = self._encode(record, attempt.nonce)
        # Another driver has this number, so it has taken over: no driver creates a number above another driver's
        # without doing so.
        if not self._create_record(record.number, data):
            raise self._superseded(record.number)
        committed = self._remember(record, data, own)
        # Not earlier: without a commit the record before stays the last one, and it needs its side file.
        self._delete_replaced_side_file(own.record)
        return committed

    def _encode(self, record: CommitRecord, nonce: str) -> tuple[CommitRecord, bytes]:
        """Return the record and its bytes. If its lists are long, write them to a side file, which the record names.

        `nonce` must not have been used for another record of this number and generation.
        """
        # Compare a lower bound of the size first, so that lists of 100 MB are not encoded twice.
        large = record.side_file is None and has_lists(record.state)
        if large and inline_bytes(record.state) <= self._inline_bytes:
            data = encode_record(record)
            if len(data) <= self._inline_bytes:
                return record, data
        if large:
            # Write the side file before the record: a record must never name a file that does not exist. If this
            # driver ends in between, no record names the file, and a sweep deletes it by its age.
            name = side_file_name(record.generation, record.number, nonce)
            lists = encode_side_file(record.state)
            self._may_have_side_files = True
            self._store.write_side_file(name, lists)
            record = replace(record, side_file=side_file_of(name, lists))
        data = encode_record(record)
        if len(data) > MAX_RECORD_BYTES:
            raise CheckpointError(
                f"record {record.number} would have {len(data):,} bytes, and at most {MAX_RECORD_BYTES:,} are allowed: "
                "the pipeline has too many steps with state or watermarks. Split it into several pipelines"
            )
        return record, data

    def _delete_replaced_side_file(self, before: CommitRecord) -> None:
        """Delete the side file of the record before the last one. If this fails, a sweep deletes it.

        At once, and not by the next sweep: in the epochs between two sweeps, side files may add up to gigabytes.
        """
        if before.side_file is not None:
            with contextlib.suppress(OSError):
                self._store.delete_side_files([before.side_file.name])

    def check_superseded(self) -> None:
        """Check that no driver has committed a record above this driver's last one. An idle driver checks it too.

        Raises:
            SupersededError: there is a higher record.
            CheckpointError: there is none, and this driver's record is missing.
            CommitUnknownError: the storage did not answer.
        """
        # First: if the sweeps of a newer driver have deleted this driver's record, the folder was not moved.
        self._check_nothing_above(self._own.record.number, self._own)
        if self._store.lists_cheaply:
            self._require_own()

    def check_superseded_while_idle(self) -> None:
        """As `check_superseded`, but on an object store at most once in `IDLE_CHECK_US`: each check costs money.

        An idle driver looks for work several times a second. If it notices a newer driver later, that does no harm.
        """
        now_us = self._clock()
        # The absolute difference: the wall clock may be set back.
        if self._store.lists_cheaply or abs(now_us - self._checked_us) >= IDLE_CHECK_US:
            self.check_superseded()
            self._checked_us = now_us

    def sweep(self, limit: int = SWEEP_LIMIT) -> SweepResult:
        """Delete at most `limit` files that are no longer needed, judged by this driver's last record.

        These are state runs and side files that the record does not name and whose (generation, epoch) is not above the
        record's, and records older than the newest few. A sweep may be paused here and finish long after a take-over.
        That does no harm: a file that another driver needs has a higher (generation, epoch), or this record names it.
        """
        record = self.record
        runs = self._unused_runs(record)
        unused = self._unused_side_files(record)
        side_files = unused[:limit]
        records = [n for n in self._store.record_numbers() if n <= record.number - self._keep_records]
        # Limited, because a sweep runs between two epochs and delays the next one: after a long outage it may find
        # thousands of files. The next sweep continues.
        self._store.delete_runs(runs[:limit])
        self._store.delete_side_files(side_files)
        self._may_have_side_files = record.side_file is not None or len(unused) > limit
        # One after the other, the lowest number first: `Checkpoint.record_above` relies on this order.
        for number in records[: max(0, limit - len(runs))]:
            self._store.delete_record(number)
        return SweepResult(
            runs=min(len(runs), limit),
            records=min(len(records), max(0, limit - len(runs))),
            side_files=len(side_files),
            leftovers=self._store.delete_leftovers(),
            more=len(runs) + len(records) + len(unused) > limit,
        )

    def _unused_runs(self, record: CommitRecord) -> list[str]:
        # Compare names, not entries: after a rescaling several entries may share one file.
        named = {run.name for run in record.state.state_runs}
        mine = (record.generation, record.number)
        # A name of another form has no age. Penstock did not write that file, so a sweep keeps it.
        ages = ((name, run_age(name)) for name in self._store.run_names() if name not in named)
        return [name for name, age in ages if age is not None and age <= mine]

    def _unused_side_files(self, record: CommitRecord) -> list[str]:
        # Do not list the folder if it cannot have side files: on an object store a listing costs money. The first
        # sweep finds the files of earlier drivers. If a paused driver writes one later, the first sweep of the next
        # driver finds it.
        if not self._may_have_side_files:
            return []
        named = record.side_file.name if record.side_file else None
        mine = (record.generation, record.number)
        ages = ((name, side_file_age(name)) for name in self._store.side_file_names() if name != named)
        return [name for name, age in ages if age is not None and age <= mine]

    def _create_record(self, number: int, data: bytes) -> bool:
        """Create the record; return whether it is this driver's, even if the storage had to be asked several times."""
        return create_exactly_once(
            lambda: self._store.create_record(number, data),
            lambda: self._store.read_record(number),
            data,
            f"record {number} in {self._store.folder}",
            self._pause,
        )

    def _remember(self, record: CommitRecord, data: bytes, before: StoredRecord | None) -> CommitRecord:
        """Remember a created record as this driver's last one, unless there is a higher one.

        `before` is this driver's previous record, None if it has none.

        The check is needed because a driver that was paused for long could create a record whose number was used and
        deleted before: its create succeeds, although another driver took over long ago.
        """
        self._check_nothing_above(record.number, before)
        self._last_own = StoredRecord(record, record_digest(data))
        return record

    def _check_nothing_above(self, number: int, known: StoredRecord | None) -> None:
        # Repeated until the storage answers: without an answer it is unknown whether another driver has taken over.
        above = repeat_until_answered(
            lambda: self._store.record_above(number, known), self._listing_question(), self._pause
        )
        if above is not None:
            raise self._superseded(above)

    def _require_own(self) -> None:
        """Check that this driver's last record still exists.

        If the folder was moved away, a commit would start a second folder under its name, and pipelines in both would
        publish the same data. The record is looked for twice: a listing that runs while another driver creates and
        deletes records may miss both.
        """
        number = self._own.record.number
        if self._highest_number() < number and self._highest_number() < number:
            raise CheckpointError(
                f"{self._store.folder} no longer contains record {number}, which this driver has committed: the "
                "folder was moved or emptied, or is not mounted. Put it back and start the pipeline again: it "
                "continues from there"
            )

    def _highest_number(self) -> int:
        numbers = repeat_until_answered(self._store.record_numbers, self._listing_question(), self._pause)
        return max(numbers, default=0)

    def _listing_question(self) -> str:
        return f"which records {self._store.folder} holds"

    def _superseded(self, number: int) -> SupersededError:
        return SupersededError(
            f"another driver has taken over {self._store.folder}: {self._describe_writer_of(number)}. This driver "
            "stops, and the other one continues from the last record. Only one driver at a time can use a "
            "--checkpoint_dir"
        )

    def _describe_writer_of(self, number: int) -> str:
        try:
            record = decode_record(self._store.read_record(number))
        except FileNotFoundError:
            return f"record {number} was written and deleted again by a newer one"
        return f"record {number} is by {record.writer}, at {_utc(record.committed_us)}"


def _utc(time_us: int) -> str:
    return datetime.fromtimestamp(time_us / 1e6, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
