"""The driver's side of the protocol: take over, begin, commit, look, sweep.

The coordinator knows no Spark, no Beam and no storage: time, nonces and pauses are handed in, the records are
behind `RecordStore`. `docs/protocol.md` says which crash leads where.
"""

from __future__ import annotations

import os
import socket
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from penstock.attempt import Attempt
from penstock.runner.protocol.errors import CheckpointError, SupersededError
from penstock.runner.protocol.exactly_once_put import create_for_certain, look_for_certain
from penstock.runner.protocol.names import run_age
from penstock.runner.protocol.record import (
    CommitRecord,
    EpochState,
    decode_record,
    encode_record,
    record_digest,
)
from penstock.runner.protocol.record_store import RecordStore, StoredRecord

KEEP_RECORDS = 8
"""Old records that stay for the curious; the protocol itself needs only the last one."""

SWEEP_LIMIT = 1000
"""Files that one sweep deletes at most."""


@dataclass(frozen=True, slots=True)
class Swept:
    """What a sweep has deleted; `more` says that it stopped at its limit."""

    runs: int = 0
    records: int = 0
    leftovers: int = 0
    more: bool = False


def wall_clock_us() -> int:
    """Return the time in microseconds since 1970."""
    return time.time_ns() // 1000


def new_nonce() -> str:
    """Return twelve fresh hexadecimal digits."""
    return uuid.uuid4().hex[:12]


def describe_writer(now_us: int, nonce: str) -> str:
    """Return the name of this process for records and messages: who, where, since when."""
    return f"process {os.getpid()} on {socket.gethostname()}, started {_utc(now_us)} ({nonce})"


class Coordinator:
    """One driver's hold on a checkpoint.

    Until `take_over` has returned, nothing may be published or deleted. After `SupersededError` the coordinator is
    of no use any more.
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
    ) -> None:
        if keep_records < 1:
            raise ValueError(f"keep_records={keep_records}: the last record must always stay")
        self._store = store
        self._clock = clock
        self._nonces = nonces
        self._pause = pause
        self._keep_records = keep_records
        self._writer = writer or describe_writer(clock(), nonces())
        self._own: StoredRecord | None = None

    @property
    def record(self) -> CommitRecord:
        """The last record that this driver has committed itself."""
        return self._held.record

    @property
    def _held(self) -> StoredRecord:
        if self._own is None:
            raise RuntimeError("the coordinator holds no record: call take_over() first")
        return self._own

    def take_over(self) -> CommitRecord:
        """Commit a record that carries the last one over unchanged; its number is this driver's generation.

        A driver that loses the number to another one reads again: whoever was faster, the newest take-over
        wins.

        Raises:
            SupersededError: a still newer driver has taken over meanwhile.
            CheckpointError: the last record cannot be read.
            OSError: the record could not be created.
        """
        while True:
            record = self._carried_over(self._store.last())
            data = encode_record(record)
            if self._put(record.number, data):
                return self._hold(record, data)

    def _carried_over(self, last: StoredRecord | None) -> CommitRecord:
        number = last.record.number + 1 if last else 1
        return CommitRecord(
            number=number,
            generation=number,
            writer=self._writer,
            parent=last.digest if last else None,
            committed_us=self._clock(),
            kind="takeover" if last else "initial",
            epochs=last.record.epochs if last else 0,
            state=last.record.state if last else EpochState(),
        )

    def begin(self) -> Attempt:
        """Name a new try of the epoch that follows the last record."""
        record = self.record
        return Attempt(self._store.job, record.generation, record.number + 1, self._nonces())

    def commit(self, attempt: Attempt, state: EpochState) -> CommitRecord:
        """Commit what `attempt` made of the last record, as one atomic step.

        Raises:
            SupersededError: another driver has taken over; nothing of this attempt counts.
            CommitUnknownError: storage never said what became of the record. Stop; the next take-over finds out.
            CheckpointError: the last record is gone, and nobody has committed a later one.
            OSError: the record was not created; the epoch may be repeated.
            ValueError: `attempt` is not a try of the next epoch.
        """
        held = self._held
        if (attempt.generation, attempt.epoch) != (held.record.generation, held.record.number + 1):
            raise ValueError(
                f"epoch {attempt.epoch} does not follow record {held.record.number}; call begin() for it"
            )
        self._require_own()
        record = replace(
            held.record,
            number=attempt.epoch,
            parent=held.digest,
            committed_us=self._clock(),
            kind="epoch",
            epochs=held.record.epochs + 1,
            state=state,
        )
        data = encode_record(record)
        if not self._put(record.number, data):
            raise self._superseded(record.number)
        return self._hold(record, data)

    def check_superseded(self) -> None:
        """Look for a record above the own one (an idle driver does so too).

        Raises:
            SupersededError: there is one.
            CheckpointError: there is none, and the own one is gone.
            CommitUnknownError: storage never said so.
        """
        self._look_above(self._held.record.number)
        self._require_own()

    def sweep(self, limit: int = SWEEP_LIMIT) -> Swept:
        """Delete at most `limit` files that the own last record shows to be of no more use.

        Those are state runs with (generation, epoch) at or below the record's own that it does not name, and
        records older than the newest few. What another driver may still need has a higher age or is named
        by the own record too, so it does no harm to be paused in here and to finish long after a take-over.
        """
        record = self.record
        runs = self._dead_runs(record)
        records = [n for n in self._store.record_numbers() if n <= record.number - self._keep_records]
        for name in runs[:limit]:
            self._store.delete_run(name)
        for number in records[: max(0, limit - len(runs))]:
            self._store.delete_record(number)
        return Swept(
            runs=min(len(runs), limit),
            records=min(len(records), max(0, limit - len(runs))),
            leftovers=self._store.delete_leftovers(),
            more=len(runs) + len(records) > limit,
        )

    def _dead_runs(self, record: CommitRecord) -> list[str]:
        named = {run.name for run in record.state.state_runs}
        mine = (record.generation, record.number)
        ages = ((name, run_age(name)) for name in self._store.run_names() if name not in named)
        return [name for name, age in ages if age is not None and age <= mine]

    def _put(self, number: int, data: bytes) -> bool:
        """Create the record; True when it is this driver's, however often it took to learn that."""
        return create_for_certain(
            lambda: self._store.create_record(number, data),
            lambda: self._store.read_record(number),
            data,
            f"record {number} in {self._store.folder}",
            self._pause,
        )

    def _hold(self, record: CommitRecord, data: bytes) -> CommitRecord:
        """Take a record that was created as the own last one, unless there is a higher one.

        Old records may be deleted under a paused driver; its create then succeeds although it lost long ago.
        """
        self._look_above(record.number)
        self._own = StoredRecord(record, record_digest(data))
        return record

    def _look_above(self, number: int) -> None:
        if (highest := self._highest()) > number:
            raise self._superseded(highest)

    def _require_own(self) -> None:
        """Refuse to begin a second folder where the first one was: both would go on from what the record says.

        Asked twice, since a listing that another driver overtakes may miss what it made and what it deleted.
        """
        number = self._held.record.number
        if self._highest() < number and self._highest() < number:
            raise CheckpointError(
                f"{self._store.folder} does not hold record {number} any more, which this driver has "
                "committed: the folder was moved or emptied, or is not mounted. Put it back and start the "
                "pipeline again: it goes on from there"
            )

    def _highest(self) -> int:
        """Only this tells whether the driver is still the last one, so a listing that fails is not the end of it."""
        what = f"which records {self._store.folder} holds"
        return max(look_for_certain(self._store.record_numbers, what, self._pause), default=0)

    def _superseded(self, number: int) -> SupersededError:
        return SupersededError(
            f"another driver has taken over {self._store.folder}: {self._who(number)}. This driver "
            "stops; what it did since its last record does not count. Let one driver at a time use a "
            "--checkpoint_dir"
        )

    def _who(self, number: int) -> str:
        try:
            record = decode_record(self._store.read_record(number))
        except FileNotFoundError:
            return f"record {number} was written and deleted again by a newer one"
        return f"record {number} is by {record.writer}, at {_utc(record.committed_us)}"


def _utc(time_us: int) -> str:
    return datetime.fromtimestamp(time_us / 1e6, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
