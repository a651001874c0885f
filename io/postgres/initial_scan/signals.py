"""Signals while an initial snapshot is read: the part of the scan that has the log polls the channels.

A signal changes the progress of the snapshots, which is a part of the log's position. Its effect on the ranges is
decided between two bundles, when all parts are joined; see `ScanFrontier.followed`. Signals that the log itself
has come after the rows.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from penstock.errors import ChangeStreamError
from penstock.io.change_streams.incremental.answers import report_records
from penstock.io.change_streams.incremental.channels import Channel, Polled
from penstock.io.change_streams.incremental.progress import SnapshotProgress
from penstock.io.change_streams.partition_stream import PartitionStream, PendingStep, Reading
from penstock.io.change_streams.status import UnreachableError
from penstock.io.postgres.initial_scan.frontier import SignalsTaken

_LOGGER = logging.getLogger(__name__)
_TICK_SECONDS = 0.05
"""How long the thread waits before it looks whether it was stopped."""


class SignalPosition(NamedTuple):
    """The progress of a slot's snapshots. `watermark`: event time of reports, nanoseconds."""

    slot: str
    progress: SnapshotProgress
    watermark: int


class SignalSource(NamedTuple):
    """The channels of a slot. `name`: of the stream, for reports. `notifications`: whether reports are emitted."""

    name: str
    channels: Callable[[], Sequence[Channel]]
    poll_seconds: float
    notifications: bool


class SignalStream(PartitionStream):
    """Polls the channels of one slot. A mark is the step."""

    lineage = frozenset()
    max_in_batch = max_in_claim = 1

    def __init__(self, at: SignalPosition, source: SignalSource) -> None:
        self.name = f"signals of {source.name}"
        self._at, self._source = at, source
        self._progress = at.progress
        self._channels: Sequence[Channel] | None = None
        self._due = 0.0

    def read(self, reading: Reading) -> Iterator[Sequence[PendingStep]]:
        if self._channels is None:
            self._channels = self._source.channels()
        reading.opened(self)
        while not reading.stopped:
            if time.monotonic() < self._due:
                time.sleep(_TICK_SECONDS)
                continue
            self._due = time.monotonic() + self._source.poll_seconds
            for channel in self._channels:
                if (polled := self._poll(channel)) is not None:
                    yield [self._taken(polled)]

    def _poll(self, channel: Channel) -> Polled | None:
        try:
            return channel.poll(self._progress.channel(channel.name))
        except (UnreachableError, ChangeStreamError, OSError) as error:
            # The readers of rows decide whether the server is lost; signals only come later.
            _LOGGER.warning("signals of the channel %s cannot be read: %s", channel.name, error)
            return None

    def _taken(self, polled: Polled) -> PendingStep:
        progress, reports = self._progress.with_channel(polled.channel, polled.position), []
        for signal in polled.signals:
            progress, more = progress.receive(signal)
            # Only the whole scan knows how many rows were emitted.
            reports += [replace(report, rows=None) for report in more]
        if progress.paused and not self._progress.paused:
            _LOGGER.warning(
                "%s: the initial snapshot is paused. After a resume its other rows are read as they are then, between "
                "the changes, and may follow changes of the same row",
                self._source.name,
            )
        self._progress = progress
        records = report_records(reports, self._source.name, self._at.watermark, self._source.notifications)
        return 0, records, SignalsTaken(self._at.slot, progress)

    def cancel(self) -> None:
        """Do nothing: a poll takes a moment, and `reading` says when to end."""

    def step(self, mark: Any) -> Any:
        return mark

    def position(self, mark: SignalsTaken) -> SignalPosition:
        return self._at._replace(progress=mark.progress)

    def records(self, steps: Sequence[PendingStep]) -> list[Any]:
        return [record for _, records, _ in steps for record in records]

    def close(self) -> None:
        for channel in self._channels or ():
            channel.close()
