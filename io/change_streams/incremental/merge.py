"""Merges the rows of snapshots into the claims of one reader of a partitioned change stream.

The visibility rule of `engine`, for services whose changes have commit timestamps and whose reads have read times:
a chunk that was read at T sees exactly the changes with a commit timestamp up to T. So

- a chunk is read at a T that is not below the position of any partition: it sees every change that was claimed;
- its rows are emitted when the watermark of the *whole* frontier is above T: each change that it sees was emitted;
- a change above T of a row that waits, if it has all columns, replaces the row; if not, the row is emitted before it.
  All changes of this key up to T were emitted by then, because a partition sends the changes of a key in order.

All methods are called by the thread of the bundle. Changes are noted when they are claimed, and not when they are
read ahead. If a claim is refused (the bundle was split), its changes come again. `_noted` then says which rows belong
before them. Until then no chunk is emitted: a checkpoint would have its cursor without those rows.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, Protocol
from uuid import uuid4

from penstock.io.change_streams.incremental.answers import WorkerAnswers
from penstock.io.change_streams.incremental.engine import Key, SnapshotEngine
from penstock.io.change_streams.incremental.frontier import IncrementalFrontier, Merged
from penstock.io.change_streams.incremental.options import SnapshotOptions
from penstock.io.change_streams.incremental.progress import SnapshotProgress
from penstock.io.change_streams.incremental.worker import SnapshotWorker

_END_OF_TIME = 1 << 80
"""A position above every timestamp in nanoseconds: the stream has ended."""
_NONE = SnapshotProgress()


class _Queued(NamedTuple):
    records: Sequence[Any]
    progress: SnapshotProgress
    hold: int | None


class RowChange(NamedTuple):
    """The change of one row, in the terms of `SnapshotEngine.change`."""

    table: str
    key: Key
    name: str
    whole: bool


class SnapshotSource(Protocol):
    """The rules of one source about its records."""

    def identity(self, record: Any) -> Any:
        """Return a value that identifies the record, also if it is read again; None if it has no changes of rows."""

    def time(self, record: Any) -> int:
        """Return the commit timestamp of a record's changes."""

    def changes(self, record: Any) -> Iterable[RowChange]:
        """Return the changes of rows in a record."""

    def records(self, rows: Sequence[Any]) -> list[Any]:
        """Return the records that are emitted for the values of rows, in their order."""

    def latest(self, stream: Any) -> int:
        """Return an upper bound of the timestamps of claimed changes; `stream` is the frontier of the change stream."""


class StreamMerge(WorkerAnswers):
    """Adds the rows of snapshots to the claims of one bundle after another."""

    def __init__(
        self,
        source: SnapshotSource,
        worker: SnapshotWorker,
        options: SnapshotOptions,
        name: str,
        frontier: IncrementalFrontier,
        *,
        notifications: bool,
        dead_letters: bool,
    ) -> None:
        progress = frontier.progress or _NONE
        engine = SnapshotEngine(
            progress, parallel_tables=options.parallel_tables, chunk_rows=options.chunk_rows
        )
        super().__init__(engine, worker, name, notifications=notifications, dead_letters=dead_letters)
        self._source = source
        self._claimed = progress
        self._name_of_reader, self._bundle = uuid4().hex[:12], 0
        self._last_reader = frontier.reader
        self._reading = False
        self._noted: dict[Any, list[Any]] = {}
        self._queue: deque[_Queued] = deque()
        self._asked_at: dict[int, int] = {}
        self._hold: int | None = None
        if options.takes_signals or options.reads_new_tables:
            worker.poll_channels({channel: _thawed(at) for channel, at in progress.channels})

    # Bundles.

    def park(self, seconds: float) -> None:
        """Wait this long for the next bundle. After that time, stop polling for signals."""
        self._worker.park(seconds)

    def resume(self, frontier: IncrementalFrontier) -> bool:
        """Serve another bundle. False: it does not continue where this reader stands."""
        if not self._worker.resume() or frontier.progress != self._claimed:
            return False
        # The progress alone does not show whether another reader has claimed changes since then.
        if (self._reading or self._queue) and frontier.reader != self._last_reader:
            return False
        # A number for each bundle: two bundles of one reader must not pass for one, if the first was repeated.
        self._bundle += 1
        return True

    def begin_again(self, progress: SnapshotProgress) -> None:
        """Drop all rows, and continue with other snapshots: changes were lost."""
        self._engine.progress, self._engine.recent, self._asked = progress, [], ""
        # Chunks of the old stream say nothing about the new one.
        self._engine.restart()
        self._claimed, self._last_reader, self._reading = progress, "", False
        self._noted, self._asked_at, self._hold = {}, {}, None
        self._queue.clear()

    def stop(self) -> None:
        """End the threads."""
        self._worker.stop()

    # The claims of a bundle.

    @property
    def notes_changes(self) -> bool:
        """Whether changes must pass `note`."""
        return self._reading

    @property
    def has_rows(self) -> bool:
        """Whether `next_claim` has something to claim. It comes before changes."""
        return bool(self._queue)

    def look(self, frontier: IncrementalFrontier) -> None:
        """Take the answers of the worker, queue what is to be emitted, and request chunks.

        `frontier` is the one after the last claim.
        """
        if self._queue:
            return  # what follows depends on claims that were refused
        # Reports and failures have no commit time of their own. The watermark is never late.
        timestamp = frontier.watermark or frontier.end or 0
        # Answers first: they may finish or begin a table, which decides what is reached below.
        reports = self._take_answers()
        records = self._reports(reports, timestamp) + self._failures(timestamp)
        if records or self.progress != self._claimed:
            self._queue.append(_Queued(records, self.progress, frontier.hold))
        self._reading = self._is_active and not frontier.dealt
        if not self._reading:
            # From here on changes are not passed to the engine, so chunks that were already read cannot be used.
            self._engine.restart()
        # Rows that were noted for a refused change belong before it. A chunk that is emitted first would save a cursor
        # behind them.
        elif not any(self._noted.values()):
            at = _END_OF_TIME if frontier.stream.done else frontier.stream.watermark
            for rows, progress, notifications in self._engine.reached(at):
                emitted = self._source.records(rows) + self._reports(notifications, timestamp)
                self._queue.append(_Queued(emitted, progress, frontier.hold))
            self._reading = self._is_active
        if self._reading:
            # One version is enough: visibility is ordered by time, so a chunk that sees the latest sees all.
            self._engine.recent = [self._source.latest(frontier.stream)]
            self._ask()
        # Last, because it depends on the requests that `_ask` has just made.
        self._set_hold(frontier)

    @property
    def progress(self) -> SnapshotProgress:
        return self._engine.progress

    @property
    def _is_active(self) -> bool:
        return bool(self.progress.snapshots) and not self.progress.paused

    def _set_hold(self, frontier: IncrementalFrontier) -> None:
        now = frontier.watermark if frontier.watermark is not None else frontier.end
        self._asked_at = {
            number: at
            for number in self._engine.waiting_requests()
            if (at := self._asked_at.get(number, now)) is not None
        }
        self._hold = min(self._asked_at.values(), default=None)
        if self._hold != frontier.hold:
            # The new hold comes after the queued rows, whose timestamps may be below it.
            self._queue.append(_Queued((), self.progress, self._hold))

    def next_claim(self) -> tuple[Sequence[Any], Merged]:
        """Return the first entry of the queue. It stays in the queue until `row_claimed`."""
        records, progress, hold = self._queue[0]
        return records, self._merged(None, progress, hold)

    def row_claimed(self) -> None:
        """Record that the entry which `next_claim` returned was claimed."""
        self._accept(self._queue.popleft().progress)

    def note(self, records: Sequence[Any], step: Any) -> tuple[Sequence[Any], Merged]:
        """Return a claim of changes with the rows that must precede them."""
        emitted: list[Any] = []
        for record in records:
            identity = self._source.identity(record)
            if identity is not None:
                # Tell the engine again even if the record came before: a chunk may have been requested since then.
                rows = self._source.records(self._rows_before(record))
                self._noted[identity] = [*self._noted.get(identity, ()), *rows]
                emitted += self._noted[identity]
            emitted.append(record)
        return emitted, self._merged(step, self.progress, self._hold)

    def _rows_before(self, record: Any) -> list[Any]:
        first: list[Any] = []
        version = self._source.time(record)
        for table, key, name, whole in self._source.changes(record):
            first += self._engine.change(version, table, (key,), whole=whole, name=name)
        return first

    def changes_claimed(self, records: Iterable[Any]) -> None:
        """Record that a claim of these changes was granted."""
        for record in records:
            self._noted.pop(self._source.identity(record), None)
        self._accept(self.progress)

    def _merged(self, step: Any, progress: SnapshotProgress, hold: int | None) -> Merged:
        return Merged(step, progress, hold, f"{self._name_of_reader}-{self._bundle}")

    def _accept(self, progress: SnapshotProgress) -> None:
        self._claimed = progress
        self._last_reader = f"{self._name_of_reader}-{self._bundle}"


def _thawed(value: Any) -> Any:
    return [_thawed(each) for each in value] if isinstance(value, tuple) else value
