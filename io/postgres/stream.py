"""The log of one slot: connections one after another, and snapshots between the changes.

- **Memory**: over the budget the reader stops receiving, and the server waits. It is told now and then that the reader
  is still there.
- A connection that is lost is opened again from the last step, after a pause.

Knows neither Beam nor the client.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol

from penstock.errors import ChangeStreamError, PositionLostError
from penstock.io.change_streams.backoff import Backoff
from penstock.io.change_streams.flat import Advanced, Ended, FlatPosition
from penstock.io.change_streams.partition_stream import PartitionStream, PendingStep, Reading
from penstock.io.change_streams.status import UnreachableError
from penstock.io.postgres.log_decoder import UnknownPrepared
from penstock.io.postgres.log_steps import CaughtUp, LogSteps, Merge, Wanted, row_bytes
from penstock.io.postgres.position import Position
from penstock.io.postgres.reopen_cost import ReopenCost
from penstock.io.postgres.schema_watch import Look
from penstock.io.postgres.transactions import Step
from penstock.timestamps import NANOS

_LOGGER = logging.getLogger(__name__)
_MAX_READ = 256
"""Items that are taken from a connection at once."""
_TICK_SECONDS = 0.05
"""How long the thread waits for the tables of an initial snapshot before it looks whether it was stopped."""
LATE_NANOS = NANOS
"""A reader is behind if the last change that arrived was committed longer ago than this, and the end of the log was
not reached since then."""


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
    def look(self, known: str) -> Look: ...


class SlotStream(PartitionStream):
    """Reads one slot. A mark is the `FlatPosition` after a step, or `Ended`."""

    lineage = frozenset({Ended})
    is_exclusive = True
    keep_alive_seconds = 1.0

    def __init__(
        self,
        opener: Opener,
        slot: str,
        at: FlatPosition,
        *,
        wanted: Wanted,
        end: int | None,
        buffer_bytes: int,
        make_merge: Callable[[Position], Merge] | None = None,
        renews: bool = False,
        watch: Watch | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`wanted`, `end`: see `LogSteps`.

        Args:
            at: where to continue; its position is a `Position`.
            make_merge: makes what adds snapshots, in the reader's thread; None: no snapshot is read.
            renews: a lost position is replaced, and all tables are read again.
            watch: looks for changes of the published tables; None: nothing does.
        """
        self.name = f"slot {slot}"
        self._opener, self._slot = opener, slot
        self._log = LogSteps(slot, at, wanted, end)
        self._make_merge, self._renews, self._watch = make_merge, renews, watch
        # A bundle begins at this position, so it is in the checkpoint; see `StreamPool.resume`.
        self._acknowledged = at.position.safe_lsn
        self._cost = ReopenCost(at.position.claimed, buffer_bytes)
        self._clock = clock
        self._call: Call | None = None
        self.has_answered = False
        """Whether a first step has arrived."""
        self._is_at_end = self._is_late = False
        self._warnings: list[tuple[Any, Sequence[str]]] = []
        """Texts for the user, with the mark of the step at whose claim they are logged."""
        self._new_warnings: list[str] = []

    # The reader's thread.

    def read(self, reading: Reading) -> Iterator[Sequence[PendingStep]]:
        log = self._log
        if log.merge is None and self._make_merge is not None:
            log.merge = self._make_merge(log.position)
        try:
            self._look()
            if log.merge is not None:
                # Rows of an initial scan first: `begin_scan` is false once they are complete.
                yield from self._scan(reading, log.merge)
            yield from self._changes(reading)
        except PositionLostError as error:
            if not self._renews or log.merge is None:
                raise
            _LOGGER.warning("changes are lost, so a new snapshot of all tables begins: %s", error)
            renewed = self._opener.renew(log.position)
            log.merge.begin_again()
            # The reader calls `read` again, and the log is opened at the new position.
            log.position = renewed._replace(snapshots=log.merge.progress, published=log.position.published)

    def _scan(self, reading: Reading, merge: Merge) -> Iterator[Sequence[PendingStep]]:
        """Yield the plan of an initial snapshot. All its rows come before the first change, so the log waits."""
        if not merge.begin_scan(lambda: reading.stopped) or merge.initial is None:
            return
        self._log.begin_scan(merge.initial)
        while merge.is_scanning and not reading.stopped:
            steps = self._log.added(merge, at_end=True)
            blocks = merge.plan()
            if blocks:
                steps.append(self._log.planned(blocks))
            if steps:
                yield self._with_warnings(steps)
                self.has_answered = True
            if blocks:
                # The plan is the last step of this reader: others read the rows.
                while not reading.stopped:
                    merge.wait(_TICK_SECONDS)
            elif not steps and merge.is_scanning:
                merge.wait(_TICK_SECONDS)

    def _changes(self, reading: Reading) -> Iterator[Sequence[PendingStep]]:
        """Yield the changes of one connection, and the rows of snapshots between them."""
        log, merge = self._log, self._log.merge
        self._cost.opening(self._clock())
        self._is_at_end = self._is_late = False
        with self._opener.open(log.position, log.watermark) as call, self._using(call):
            reading.opened(self)
            if merge is not None:
                merge.reopened()
            acknowledged = -1
            # Invariant: every step up to `log.position` was yielded, so a new connection begins there.
            while not reading.stopped:
                # Acknowledged here and not in `acknowledge`: only this thread may use the connection.
                if acknowledged < self._acknowledged:
                    acknowledged = self._acknowledged
                    call.acknowledge(acknowledged)
                    if merge is not None:
                        merge.acknowledged(acknowledged)
                self._look()
                arrived = call.read(_MAX_READ)
                self.received_bytes += sum([size for _, size in arrived])
                steps = log.steps(arrived)
                if steps:
                    self._is_at_end = isinstance(arrived[-1][0], CaughtUp)
                    self._is_late = call.server_time() - log.watermark > LATE_NANOS
                    self._cost.answered(self._clock())
                elif self._is_late and not self._is_at_end:
                    call.hurry()
                # No row of a snapshot may follow the end of the read.
                if merge is not None and not (steps and type(steps[-1][2]) is Ended):
                    added = log.added(merge)
                    self.received_bytes += row_bytes(added)
                    steps += added
                    if merge.waits_for_log:
                        call.hurry()
                yield self._with_warnings(steps)
                self.has_answered = self.has_answered or bool(steps)

    @contextmanager
    def _using(self, call: Call) -> Iterator[None]:
        self._call = call
        try:
            yield
        finally:
            self._call = None

    def _look(self) -> None:
        """Compare the published tables with the known ones, if it is time to."""
        if self._watch is None or not self._watch.is_due:
            return
        position = self._log.position
        try:
            look = self._watch.look(position.published)
        except (UnreachableError, ChangeStreamError) as error:
            # Reading matters more: if the server cannot be asked at all, the log cannot be read either.
            _LOGGER.debug("the published tables were not looked at: %s", error)
            return
        self._log.looked(look)
        self._new_warnings += look.warnings

    def _with_warnings(self, steps: list[PendingStep]) -> list[PendingStep]:
        # If the step is not claimed, the checkpoint keeps the old tables, and the next reader has the same warnings.
        if steps and self._new_warnings:
            self._warnings.append((steps[0][2], self._new_warnings))
            self._new_warnings = []
        return steps

    def cancel(self) -> None:
        """Do nothing: a connection is asked again and again for a short time, and `reading` says when to end."""

    def keep_alive(self) -> None:
        # A server that gets no status for `wal_sender_timeout` ends the connection and decodes the log again.
        if self._call is not None:
            self._call.acknowledge(self._acknowledged)

    def close(self) -> None:
        if self._log.merge is not None:
            self._log.merge.stop()

    # The consumer.

    def step(self, mark: Any) -> Advanced | Ended:
        if type(mark) is Ended:
            return mark
        return Advanced(self._slot, FlatPosition(list(mark.position), mark.watermark))

    def position(self, mark: Any) -> FlatPosition:
        position: FlatPosition = mark
        return position

    def records(self, steps: Sequence[PendingStep]) -> list[Any]:
        return [record for _, records, _ in steps for record in records]

    def claimed(self, steps: Sequence[PendingStep], *, more: bool) -> None:
        # A position between two transactions has no claimed records.
        is_whole = any(type(mark) is Ended or not mark.position.claimed for _, _, mark in steps)
        # Records that are left out count too: the server would send them again all the same.
        count = sum(max(1, len(records)) for _, records, _ in steps)
        self._cost.claimed(count, sum(size for size, _, _ in steps), transaction_ended=is_whole)
        while self._warnings and any(mark is self._warnings[0][0] for _, _, mark in steps):
            for text in self._warnings.pop(0)[1]:
                _LOGGER.warning("%s", text)

    def acknowledge(self, lsn: int) -> None:
        """Let the server drop its log before `lsn`. The caller's checkpoint must hold a position at or after it."""
        self._acknowledged = max(self._acknowledged, lsn)

    @property
    def is_open(self) -> bool:
        """Whether there is a connection. If it has not answered, the server decodes a large transaction."""
        return self._call is not None

    def holds_connection(self, *, more: bool) -> bool:
        """Whether a split now would repeat more of the log than this bundle has read; see `reopen_cost`.

        `more`: steps are queued.
        """
        if self._cost.min_claims or not self.has_answered:
            return True
        # A reader at the end of the log may end at once: a longer bundle would only delay its changes.
        return self._cost.is_paying(self._clock()) and (more or not self._is_at_end)

    def is_behind(self, position: FlatPosition) -> bool:
        """Whether more of the log is waiting at the server, although the queue may be empty for a moment.

        The commit time of a change is compared with the time of its arrival, not with the time of its claim: a change
        that waited in the queue for the previous epoch says nothing about the server. Both are times of the server's
        clock. A reader that is not late answers at once. One that is late asks for the end of the log when nothing
        arrives, and is no longer behind when it has reached it.
        """
        return self._is_late and not self._is_at_end

    def lost(self) -> None:
        # Nothing comes before the next connection is open, so the bundle need not stay for it.
        self._is_late = False
