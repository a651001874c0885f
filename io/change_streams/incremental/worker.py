"""Threads that read chunks and poll channels while another thread reads the log.

Answers wait in `answers` until the thread of the log takes them. Requests that the server does not answer are
repeated with a pause. A request that the server refuses is repeated a few times, and then reported as failed.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

from penstock.errors import ChangeStreamError
from penstock.io.change_streams.backoff import Backoff
from penstock.io.change_streams.incremental.channels import Channel, Polled
from penstock.io.change_streams.incremental.engine import Chunk, ChunkRequest, FailedChunk, TableGoneError
from penstock.io.change_streams.incremental.notifications import ScanStatus
from penstock.io.change_streams.incremental.progress import Snapshot, Tables
from penstock.io.change_streams.status import UnreachableError

_LOGGER = logging.getLogger(__name__)
MAX_ATTEMPTS = 3
"""How often a chunk that the service refuses is requested before it counts as failed."""
_PAUSE_SECONDS = 0.2


Problems = dict[str, tuple[ScanStatus, str]]
"""Names of a request that cannot be read: how their scan ends, and what to do."""


class ChunkReader(Protocol):
    """Reads the tables of one source. One thread uses it.

    Both methods raise `UnreachableError` (ask again later) or another `ChangeStreamError` (the service refused it).
    """

    def tables(self, snapshot: Snapshot) -> tuple[Tables, Problems]:
        """Return the tables that a request means, and the names that cannot be read."""

    def read(self, request: ChunkRequest) -> Chunk:
        """Return a chunk."""

    def close(self) -> None: ...


class Resolved(NamedTuple):
    """The tables of a snapshot."""

    snapshot_id: str
    tables: Tables
    problems: Problems


Answer = Chunk | FailedChunk | Resolved | Polled | BaseException


class SnapshotWorker:
    """Reads chunks in `threads` threads, and channels in one more."""

    def __init__(
        self,
        make_reader: Callable[[Callable[[], bool]], ChunkReader],
        channels: Callable[[], Sequence[Channel]],
        backoff: Backoff,
        *,
        threads: int,
        poll_seconds: float,
        unavailable_seconds: float,
    ) -> None:
        """`make_reader` and `channels` are called in the threads that use them."""
        self._make_reader, self._channels = make_reader, channels
        self._backoff, self._unavailable_seconds = backoff, unavailable_seconds
        self._poll_seconds, self._threads_wanted = poll_seconds, threads
        self._jobs: queue.SimpleQueue[ChunkRequest | Snapshot | None] = queue.SimpleQueue()
        self.answers: queue.SimpleQueue[Answer] = queue.SimpleQueue()
        self._stopped = threading.Event()
        self._threads: list[threading.Thread] = []
        self._lock = threading.Lock()
        self._parked_until: float | None = None
        self._expired = False

    def ask(self, job: ChunkRequest | Snapshot) -> None:
        """Read a chunk, or the tables of a snapshot."""
        if not self._threads_wanted:
            self._jobs.put(job)
            return
        # The threads start with the first job: a pipeline that gets no signal never needs them.
        for _ in range(self._threads_wanted):
            self._start(self._serve)
        self._threads_wanted = 0
        self._jobs.put(job)

    def poll_channels(self, positions: dict[str, Any]) -> None:
        """Begin to poll the channels, from these positions."""
        self._start(lambda: self._poll(positions))

    def park(self, seconds: float) -> None:
        """Stop polling the channels after `seconds`, unless `resume` is called before."""
        with self._lock:
            self._parked_until = time.monotonic() + seconds

    def resume(self) -> bool:
        """Poll channels again. False: it is too late."""
        with self._lock:
            self._parked_until = None
            return not self._expired

    def _has_expired(self) -> bool:
        with self._lock:
            late = self._parked_until is not None and time.monotonic() >= self._parked_until
            # Once expired, always: the polling thread has ended, so a later `resume` must not count on it.
            self._expired = self._expired or late
            return self._expired

    def stop(self) -> None:
        """End all threads and wait for them."""
        # The event first: a thread that repeats a refused request sees it and ends early.
        self._stopped.set()
        # A thread that waits for a job does not see the event. Each one takes one None and ends.
        for _ in self._threads:
            self._jobs.put(None)
        for thread in self._threads:
            thread.join()

    def _start(self, run: Callable[[], None]) -> None:
        def guarded() -> None:
            try:
                run()
            except BaseException as error:  # the thread of the log raises it
                self.answers.put(error)

        thread = threading.Thread(target=guarded, name="penstock-snapshot", daemon=True)
        self._threads.append(thread)
        thread.start()

    def _serve(self) -> None:
        reader = self._make_reader(self._stopped.is_set)
        try:
            while (job := self._jobs.get()) is not None and not self._stopped.is_set():
                answer = self._answer(reader, job)
                if answer is not None:
                    self.answers.put(answer)
        finally:
            reader.close()

    def _answer(self, reader: ChunkReader, job: ChunkRequest | Snapshot) -> Answer | None:
        refused = 0
        while not self._stopped.is_set():
            try:
                if isinstance(job, Snapshot):
                    return Resolved(job.id, *reader.tables(job))
                return reader.read(job)
            except UnreachableError as error:
                # The connection may be broken. The next attempt opens a new one.
                reader.close()
                self._backoff.failed(str(error), self._unavailable_seconds)
                self._stopped.wait(self._backoff.remaining_pause())
            except TableGoneError as error:
                if isinstance(job, Snapshot):
                    raise
                return FailedChunk(job, ScanStatus.UNKNOWN_SCHEMA, str(error))
            except ChangeStreamError as error:
                if self._stopped.is_set():
                    return None
                refused += 1
                # Without the list of its tables a snapshot cannot begin, so the pipeline fails.
                if isinstance(job, Snapshot):
                    raise
                _LOGGER.warning("a chunk of %s cannot be read: %s", job.table, error)
                if refused == MAX_ATTEMPTS:
                    return FailedChunk(job, ScanStatus.SQL_EXCEPTION, str(error))
                self._stopped.wait(_PAUSE_SECONDS)
        return None

    def _poll(self, positions: dict[str, Any]) -> None:
        channels = self._channels()
        try:
            while not self._stopped.is_set() and not self._has_expired():
                for channel in channels:
                    if (polled := self._poll_one(channel, positions.get(channel.name))) is not None:
                        positions[channel.name] = polled.position
                        self.answers.put(polled)
                self._stopped.wait(self._poll_seconds)
        finally:
            for channel in channels:
                channel.close()

    def _poll_one(self, channel: Channel, position: Any) -> Polled | None:
        try:
            return channel.poll(position)
        except (UnreachableError, ChangeStreamError, OSError) as error:
            # The reader of the log decides whether the server is lost; signals only come later.
            _LOGGER.warning("signals of the channel %s cannot be read: %s", channel.name, error)
            return None
