"""Reads one slot in a thread and queues its steps.

- **Order**: the order of the log, which is the order of commits.
- **Memory**: over the budget the thread stops receiving, and the server waits. A transaction of any size passes through
  in parts: a position inside of a transaction is the number of its records that were claimed.
- **Errors** of the thread are raised by `take`, in the consumer. A connection that is lost is opened again from the
  last queued position, after a pause.
- **Snapshots** (`snapshots.merge`) add rows of tables: initial ones before the log is opened, others between the
  changes.

Knows neither Beam nor the client.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from penstock.errors import ChangeStreamError, PositionLostError
from penstock.io.change_streams.backoff import Backoff
from penstock.io.change_streams.flat import Advanced, Ended, FlatPosition
from penstock.io.change_streams.incremental.progress import SnapshotProgress
from penstock.io.change_streams.prefetch import Claim, ReadAhead, Traffic
from penstock.io.change_streams.status import UnreachableError
from penstock.io.postgres.log_decoder import UnknownPrepared
from penstock.io.postgres.record import LogRecord, format_lsn
from penstock.io.postgres.reopen_cost import ReopenCost
from penstock.io.postgres.transactions import Step, TransactionEnd
from penstock.timestamps import NANOS

_LOGGER = logging.getLogger(__name__)
NO_SNAPSHOTS = SnapshotProgress()
MAX_IN_BATCH = 256
"""Steps that are handed over at once."""
MAX_IN_CLAIM = 16
"""Records in one claim: few, so that a consumer that is split soon comes to an end."""
STATUS_SECONDS = 1.0
"""How often a reader that waits for its consumer tells the server that it is still there."""
_TICK_SECONDS = 0.05
"""How long the thread waits for rows of an initial snapshot before it looks whether it was stopped."""
LATE_NANOS = NANOS
"""A reader is behind if the last change that arrived was committed longer ago than this, and the end of the log was
not reached since then."""
_STEP_BYTES = 600
"""What a queued record costs in memory besides its message, about: measured with CPython 3.11 and one column."""


class ReadView(NamedTuple):
    """The snapshot of the database that an initial snapshot reads. Changes that it contains are not emitted.

    `visible`: the transactions that it contains, as `pg_current_snapshot` says it. They were committed before `lsn`,
    and up to `timestamp`, nanoseconds of the server's clock. `name`, `lock`: under which the server holds it; `name` is
    empty when no more rows are read at it.
    """

    visible: str
    lsn: int
    timestamp: int
    name: str
    lock: int


class Position(NamedTuple):
    """Where the reader of a slot continues.

    `lsn`: transactions that end at or before it were read. `claimed`: how many records of the next transaction were
    claimed. `system`: the identifier of the server's cluster, so that the log of another cluster is not taken for it.
    `previous_end`: where the last transaction ended that was read; `lsn` may be later, because the log between two
    transactions is passed too. It is a part of the records, so a repeated read must find it. `snapshots`: what
    remains to be read of tables. `recent`: transactions that were read and that other sessions may not see yet; empty
    if no snapshot can begin. `prepared`: where the oldest transaction was prepared that is neither committed nor rolled
    back, 0 if there is none. The server does not repeat a prepared transaction that was acknowledged. `initial`: while
    an initial snapshot is read, and until the log was read to its end. `published`: the published tables when they were
    last looked at, packed; see `schema_watch`.
    """

    lsn: int
    claimed: int
    system: str
    previous_end: int = 0
    snapshots: SnapshotProgress = NO_SNAPSHOTS
    recent: tuple[int, ...] = ()
    prepared: int = 0
    initial: ReadView | None = None
    published: str = ""

    @property
    def safe_lsn(self) -> int:
        """The position at which a restart begins to read. The log before it is not needed any more."""
        return min(self.lsn, self.prepared or self.lsn)


class CaughtUp(NamedTuple):
    """No transaction that was committed before `timestamp`, in nanoseconds, is unread; the log ends at `lsn`.

    `prepared`: see `TransactionEnd`.
    """

    lsn: int
    timestamp: int
    prepared: int = 0


class Call(Protocol):
    """One open connection, as the thread uses it; see `connection`."""

    def read(self, most: int) -> Sequence[tuple[Step | CaughtUp | UnknownPrepared, int]]:
        """Return what has arrived, with sizes in bytes; an empty list after a short time without anything."""

    def acknowledge(self, lsn: int) -> None:
        """Tell the server that changes before `lsn` are not needed any more."""

    def hurry(self) -> None:
        """Report soon how far the log was read: rows of a snapshot or the end of a bundle wait for it."""

    def server_time(self) -> int:
        """Return the server's clock, in nanoseconds since 1970. Valid after the first `read`."""


class Opener(Protocol):
    """The server, as the thread uses it."""

    @property
    def backoff(self) -> Backoff:
        """When to ask again, for all threads of the process."""

    def open(self, position: Position, watermark: int) -> AbstractContextManager[Call]:
        """Read the log from a position on; transactions before it may come again."""

    def renew(self, position: Position) -> Position:
        """Return the place where the log can be read from now on, after `position` was lost."""


class Watch(Protocol):
    """Looks for changes of the published tables; see `schema_watch`."""

    @property
    def is_due(self) -> bool: ...
    def look(self, known: str) -> tuple[str, list[str]]: ...


class Merge(Protocol):
    """The snapshots of a reader; see `snapshots.merge`."""

    @property
    def progress(self) -> SnapshotProgress: ...
    @property
    def recent(self) -> tuple[int, ...]: ...
    @property
    def waits_for_log(self) -> bool: ...
    @property
    def initial(self) -> ReadView | None: ...
    def begin_scan(self, stopped: Callable[[], bool]) -> bool: ...
    @property
    def is_scanning(self) -> bool: ...
    def wait(self, seconds: float) -> None: ...
    def acknowledged(self, lsn: int) -> None: ...
    def reopened(self) -> None: ...
    def begin_again(self) -> None: ...
    def note(self, record: LogRecord, timestamp: int, lsn: int) -> list[Any] | None: ...
    @property
    def is_unfinished(self) -> bool: ...
    def advance(self, lsn: int, timestamp: int, *, at_end: bool) -> Sequence[Any]: ...
    def stop(self) -> None: ...


@dataclass(slots=True)
class QueuedStep:
    """A position, the watermark there, and the records that were read on the way to it.

    `warnings`: texts for the user, which are logged when the step is claimed.
    """

    position: Position
    watermark: int
    records: Sequence[Any]
    size: int
    ended: bool = False
    warnings: tuple[str, ...] = ()


class Batch:
    """Steps of a slot in the order of its log. The consumer counts in `claimed` how many it has claimed."""

    def __init__(self, slot: str, steps: list[QueuedStep]) -> None:
        self._slot, self.steps = slot, steps
        self.claimed = 0

    @property
    def ends_with_lineage(self) -> bool:
        """Whether the last step ends the read."""
        return self.steps[-1].ended

    def claims(self) -> Iterator[Claim]:
        """Yield runs of records with the position after each run, then the end of the read."""
        steps = self.steps[:-1] if self.ends_with_lineage else self.steps
        for start in range(0, len(steps), MAX_IN_CLAIM):
            run = steps[start : start + MAX_IN_CLAIM]
            records = [record for step in run for record in step.records]
            yield (
                len(run),
                records,
                Advanced(self._slot, FlatPosition(list(run[-1].position), run[-1].watermark)),
            )
        if self.ends_with_lineage:
            yield 1, (), Ended(self._slot)


class StreamReader:
    """The thread that reads a slot, and its queue. One consumer."""

    def __init__(
        self,
        opener: Opener,
        slot: str,
        position: Position,
        watermark: int,
        *,
        wanted: Callable[[LogRecord], bool],
        end: int | None,
        unavailable_seconds: float,
        ahead: ReadAhead,
        make_merge: Callable[[Position], Merge] | None = None,
        renews: bool = False,
        watch: Watch | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`wanted`: whether a record is emitted; the position passes the others. `end`: nanoseconds, inclusive.

        `make_merge`: makes what adds snapshots; None: no snapshot is read. `renews`: a lost position is replaced, and
        all tables are read again. `watch`: looks for changes of the published tables; None: nothing does.
        """
        self._opener, self.slot, self._wanted, self._end = opener, slot, wanted, end
        self._unavailable_seconds = unavailable_seconds
        self._ahead, self._changed = ahead, ahead.changed
        self._queue: deque[QueuedStep] = deque()
        self._claimed = self._read = (position, watermark)
        self._acknowledged = position.safe_lsn
        self._cost = ReopenCost(position.claimed, ahead.buffer_bytes)
        self._error: BaseException | None = None
        self._stopped = self._ended = False
        self.has_answered = False
        """Whether a first step has arrived."""
        self.is_open = False
        """Whether there is a connection. If it has not answered, the server decodes a large transaction."""
        self._clock = clock
        self._is_at_end = self._is_late = False
        self.is_exhausted = False
        """Whether the end of the read was claimed: the thread has ended, and no step follows."""
        self._requests = self._retries = self._received_bytes = 0
        self._make_merge, self._renews, self._watch = make_merge, renews, watch
        self._warnings: tuple[str, ...] = ()
        """Texts for the next step."""
        self._merge: Merge | None = None
        self._parked = self._gone = False
        self._thread = threading.Thread(target=self._run, name="penstock-postgres-reader", daemon=True)
        self._thread.start()

    # The consumer.

    @property
    def position(self) -> Position:
        """The position after the last claimed step."""
        return self._claimed[0]

    def acknowledge(self, lsn: int) -> None:
        """Let the server drop its log before `lsn`. The caller's checkpoint must hold a position at or after it."""
        self._acknowledged = max(self._acknowledged, lsn)

    def take(self, timeout: float) -> Batch | None:
        """Return a batch, or None after `timeout` seconds. Raises what the thread raised."""
        deadline = time.monotonic() + timeout
        with self._changed:
            while not self._queue and self._error is None:
                remaining = deadline - time.monotonic()
                if remaining <= 0:
                    return None
                self._changed.wait(remaining)
            # An error waits for the steps that were queued before it: they are complete, so they are not read again.
            if not self._queue and self._error is not None:
                raise self._error
            count = min(len(self._queue), MAX_IN_BATCH)
            return Batch(self.slot, [self._queue.popleft() for _ in range(count)])

    def settle(self, batch: Batch) -> None:
        """Take a batch back: steps that were not claimed come again."""
        with self._changed:
            # `extendleft` adds one after the other to the front, so the last step must come first.
            self._queue.extendleft(reversed(batch.steps[batch.claimed :]))
            if batch.claimed:
                for step in batch.steps[: batch.claimed]:
                    for warning in step.warnings:
                        _LOGGER.warning("%s", warning)
                last = batch.steps[batch.claimed - 1]
                # Invariant: `_claimed` is the position before the first step in the queue, and `_read` the one after
                # the last.
                self._claimed = last.position, last.watermark
                # A position between two transactions has no claimed records.
                is_whole = any(not step.position.claimed for step in batch.steps[: batch.claimed])
                self.is_exhausted = last.ended
                size = sum(step.size for step in batch.steps[: batch.claimed])
                self._ahead.queued_bytes -= size
                self._cost.claimed(batch.claimed, size, transaction_ended=is_whole)
                self._changed.notify_all()

    @property
    def watermark(self) -> int:
        """The watermark after the last claimed step."""
        return self._claimed[1]

    @property
    def holds_connection(self) -> bool:
        """Whether a split now would repeat more of the log than this bundle has read; see `reopen_cost`."""
        if self._cost.min_claims or not self.has_answered:
            return True
        # A reader at the end of the log may end at once: a longer bundle would only delay its changes.
        return self._cost.is_paying(self._clock()) and (bool(self._queue) or not self._is_at_end)

    @property
    def is_behind(self) -> bool:
        """Whether more of the log is waiting at the server, although the queue may be empty for a moment.

        The commit time of a change is compared with the time of its arrival, not with the time of its claim: a change
        that waited in the queue for the previous epoch says nothing about the server. Both are times of the server's
        clock. A reader that is not late answers at once. One that is late asks for the end of the log when nothing
        arrives, and is no longer behind when it has reached it. Rows of an initial snapshot are always behind.
        """
        return self._is_late and not self._is_at_end

    @property
    def is_ready(self) -> bool:
        """Whether `take` returns, or raises, at once. The caller holds the lock of the budget."""
        return bool(self._queue) or self._error is not None

    def uncounted(self) -> Traffic:
        """Return the connections that were opened and lost since the last call, and the bytes that were received."""
        with self._changed:
            counts = Traffic(self._requests, self._retries, self._received_bytes)
            self._requests = self._retries = self._received_bytes = 0
            return counts

    def park(self) -> None:
        """Read on until a bundle continues here. A connection that is lost is not opened again."""
        with self._changed:
            self._parked = True

    def resume(self) -> bool:
        """Return whether the reader still reads."""
        with self._changed:
            self._parked = False
            return not self._gone

    def _ends_while_parked(self) -> bool:
        # Another worker of the pipeline has taken the slot. To take it back would end the other reader.
        with self._changed:
            # Decided under the lock: `resume` either finds a reader that still reads, or learns that it has gone.
            self._gone = self._parked
            return self._gone

    def stop(self) -> None:
        """End the thread, wait for it, and drop what it has read. The slot is then free for another reader."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()
        # Only after the thread has ended: it uses the merge, and it may still add steps to the queue.
        self._thread.join()
        if self._merge is not None:
            self._merge.stop()
        with self._changed:
            self._ahead.queued_bytes -= sum(step.size for step in self._queue)
            self._queue.clear()
            self._changed.notify_all()

    # The thread.

    def _run(self) -> None:
        try:
            if self._make_merge is not None:
                self._merge = self._make_merge(self._read[0])
            while not self._stopped:
                try:
                    self._look()
                    if self._merge is not None:
                        # Rows of an initial scan first: `begin_scan` is false once they are complete, also after a lost
                        # connection.
                        self._scan(self._merge)
                    self._read_until_lost()
                except PositionLostError as error:
                    if not self._renews or self._merge is None:
                        raise
                    self._begin_again(self._merge, error)
                except UnreachableError as error:
                    if self._ends_while_parked():
                        return
                    self._retries += 1
                    self._is_late = False
                    self._opener.backoff.failed(str(error), self._unavailable_seconds)
                    with self._changed:
                        self._changed.wait_for(lambda: self._stopped, self._opener.backoff.remaining_pause())
                else:
                    return
        except BaseException as error:  # whatever it is, the consumer raises it
            with self._changed:
                self._error = error
                self._changed.notify_all()

    def _begin_again(self, merge: Merge, lost: PositionLostError) -> None:
        position, watermark = self._read
        _LOGGER.warning("changes are lost, so a new snapshot of all tables begins: %s", lost)
        renewed = self._opener.renew(position)
        merge.begin_again()
        self._read = renewed._replace(snapshots=merge.progress, published=position.published), watermark

    def _scan(self, merge: Merge) -> None:
        """Queue the rows of an initial snapshot. All of them come before the first change, so the log waits."""
        position, watermark = self._read
        if not merge.begin_scan(lambda: self._stopped) or merge.initial is None:
            return
        # A transaction that the snapshot does not contain may have an earlier commit timestamp. Its event timestamp is
        # the watermark then. With an `end` in the past, the rows must not end the read before such a transaction.
        now = merge.initial.timestamp if self._end is None else min(merge.initial.timestamp, self._end)
        self._read = position._replace(initial=merge.initial), max(watermark, now)
        self._is_late = True
        while merge.is_scanning and not self._stopped:
            steps = self._added(merge, at_end=True)
            if steps:
                self._put(steps)
            elif merge.is_scanning:
                merge.wait(_TICK_SECONDS)

    def _read_until_lost(self) -> None:
        position, watermark = self._read
        self._requests += 1
        self._cost.opening(self._clock())
        self._is_at_end = self._is_late = False
        with self._opener.open(position, watermark) as call, self._opened():
            if self._merge is not None:
                self._merge.reopened()
            acknowledged = -1
            while not self._stopped:
                # Acknowledged here and not in `acknowledge`: only this thread may use the connection.
                if acknowledged < self._acknowledged:
                    acknowledged = self._acknowledged
                    call.acknowledge(acknowledged)
                    if self._merge is not None:
                        self._merge.acknowledged(acknowledged)
                self._look()
                arrived = call.read(MAX_IN_BATCH)
                self._received_bytes += sum(size for _, size in arrived)
                self._opener.backoff.answered()
                steps = [step for item, size in arrived if (step := self._step(item, size)) is not None]
                if steps:
                    self._note_arrival(call.server_time(), is_at_end=isinstance(arrived[-1][0], CaughtUp))
                elif self.is_behind:
                    call.hurry()
                if self._merge is not None and not (steps and steps[-1].ended):
                    steps += self._added(self._merge)
                    if self._merge.waits_for_log:
                        call.hurry()
                if steps and not self._put(steps, call):
                    return

    def _look(self) -> None:
        """Compare the published tables with the known ones, if it is time to."""
        if self._watch is None or not self._watch.is_due:
            return
        position, watermark = self._read
        try:
            published, warnings = self._watch.look(position.published)
        except (UnreachableError, ChangeStreamError) as error:
            # Reading matters more: if the server cannot be asked at all, the log cannot be read either.
            _LOGGER.debug("the published tables were not looked at: %s", error)
            return
        self._read = position._replace(published=published), watermark
        self._warnings += tuple(warnings)

    @contextmanager
    def _opened(self) -> Iterator[None]:
        self.is_open = True
        try:
            yield
        finally:
            self.is_open = False

    def _note_arrival(self, server_time: int, *, is_at_end: bool) -> None:
        self._is_at_end, self._is_late = is_at_end, server_time - self._read[1] > LATE_NANOS
        self._cost.answered(self._clock())

    def _step(self, item: Step | CaughtUp | UnknownPrepared, size: int) -> QueuedStep | None:
        """Return the step to queue for an item, and remember its position; None if it was read before."""
        position, watermark = self._read
        records: Sequence[Any] = ()
        if self._ended:
            return None
        if isinstance(item, LogRecord):
            if self._is_past(item):
                return None
            if self._end is not None and max(watermark, item.event_timestamp) > self._end:
                return self._end_here()
            # Noted before the position moves: the rows that precede the record belong to the position before it.
            records = self._noted(item)
            if item.transaction is not None:
                position = position._replace(claimed=item.sequence)
            else:  # a message between two transactions; the `TransactionEnd` that follows it adds nothing
                position = position._replace(lsn=item.lsn + 1, claimed=0, previous_end=item.lsn)
            # The log is not in the order of commit timestamps, and the watermark must not go back.
            watermark = max(watermark, item.event_timestamp)
        elif isinstance(item, TransactionEnd):
            # The server repeats whole transactions after a new connection. Their ends were passed before.
            if item.lsn <= position.lsn:
                return None
            position, watermark = (
                position._replace(lsn=item.lsn, claimed=0, previous_end=item.lsn, prepared=item.prepared),
                max(watermark, item.event_timestamp),
            )
        elif isinstance(item, UnknownPrepared):
            # A commit before the position was read on an earlier connection.
            if item.lsn >= position.lsn:
                raise PositionLostError(_unknown_prepared(item))
            return None
        else:
            if item.lsn < position.lsn:
                return None
            # `claimed` stays: after a new connection the rest of a transaction, which ends later, is still to come.
            position, watermark = (
                position._replace(lsn=item.lsn, prepared=item.prepared),
                max(watermark, item.timestamp),
            )
        if self._end is not None and watermark > self._end:
            return self._end_here()
        if self._merge is not None:
            position = self._with_snapshots(position, self._merge)
        # Only here: a step that was refused above leaves the position as it was.
        self._read = position, watermark
        return QueuedStep(position, watermark, records, size + _STEP_BYTES)

    @staticmethod
    def _with_snapshots(position: Position, merge: Merge) -> Position:
        return position._replace(snapshots=merge.progress, recent=merge.recent, initial=merge.initial)

    def _end_here(self) -> QueuedStep | None:
        """End the read, unless rows of a snapshot are still to come: `_added` ends it after them."""
        self._ended = True
        if self._merge is not None and self._merge.is_unfinished:
            return None
        return QueuedStep(*self._read, (), 0, ended=True)

    def _noted(self, record: LogRecord) -> Sequence[Any]:
        """Return what is emitted for a record: rows of a snapshot that must precede it, and the record, if wanted."""
        if self._merge is None:
            return (record,) if self._wanted(record) else ()
        (lsn, *_), watermark = self._read
        before = self._merge.note(record, watermark, lsn)
        if before is None:
            return ()
        return (*before, record) if self._wanted(record) else before

    def _added(self, merge: Merge, *, at_end: bool = False) -> list[QueuedStep]:
        """Return the steps that snapshots add at the end of what was read. `at_end`: rows wait for no change."""
        steps = []
        # After the end no change is emitted, so the rows of a snapshot need not wait for the changes that they contain.
        for records, progress, recent in merge.advance(
            self._read[0].lsn, self._read[1], at_end=at_end or self._ended
        ):
            position, watermark = self._read
            self._read = (
                position._replace(snapshots=progress, recent=recent, initial=merge.initial),
                watermark,
            )
            self._received_bytes += _row_bytes(records)
            steps.append(QueuedStep(*self._read, records, len(records) * _STEP_BYTES))
        if self._ended and not merge.is_unfinished:
            steps.append(QueuedStep(*self._read, (), 0, ended=True))
        return steps

    def _is_past(self, record: LogRecord) -> bool:
        """Whether a record was read before the connection was opened: the server repeats whole transactions."""
        position, _ = self._read
        if record.transaction is None:
            return record.lsn < position.lsn
        start = record.transaction.commit_lsn
        return start < position.lsn or record.sequence <= position.claimed

    def _put(self, steps: list[QueuedStep], call: Call | None = None) -> bool:
        """Queue steps; wait while the budget is used up. False: the read has ended or the reader was stopped.

        `call`: the open connection, which is kept alive while this waits.
        """
        if self._warnings:
            steps[0].warnings, self._warnings = self._warnings, ()
        with self._changed:
            # Queue first and wait afterwards: so a step that is larger than the budget passes too.
            self._queue.extend(steps)
            self.has_answered = True
            size = sum(step.size for step in steps)
            # Always notified: the consumer may wait for a reader that stood still, with an empty queue.
            self._ahead.queued_bytes += size
            self._changed.notify_all()
        while not self._has_room(STATUS_SECONDS):
            # A server that gets no status for `wal_sender_timeout` ends the connection and decodes the log again.
            if call is not None:
                call.acknowledge(self._acknowledged)
        return not (self._stopped or steps[-1].ended)

    def _has_room(self, timeout: float) -> bool:
        """Wait until the budget is not used up, for `timeout` seconds. True also when the reader was stopped."""
        with self._changed:
            return self._changed.wait_for(
                lambda: (
                    self._stopped or not self._queue or self._ahead.queued_bytes < self._ahead.buffer_bytes
                ),
                timeout,
            )


def _row_bytes(records: Iterable[Any]) -> int:
    """Return the size of the values of the rows of a snapshot among records, as the server sent them."""
    rows = (each.new for each in records if isinstance(each, LogRecord) and each.new is not None)
    return sum(len(value) for row in rows for value in row if isinstance(value, (str, bytes)))


def _unknown_prepared(item: UnknownPrepared) -> str:
    return (
        f"the prepared transaction {item.gid!r} was committed at {format_lsn(item.lsn)}, and the server does not send "
        "its changes any more, because another consumer of the slot acknowledged them. They are lost: take a new "
        "snapshot, and start with a slot of its own and a new checkpoint folder"
    )
