"""Readers that outlive a bundle: opened once, resumed by one bundle after another, closed when none continues them.

A reader is parked in the pool of its process when a bundle ends without an error, and is resumed only by a bundle that
asks for *exactly* its position. If an epoch was repeated or the partition was read elsewhere, the position differs and
a new reader is made. A reader that no bundle asks for within `idle_stream_seconds` is stopped.

One thread per pool does the periodic work while there are readers: it asks the server about idle partitions, commits
the offsets of the consumer, looks for new columns, and stops parked readers.

An error of this work that is not expected fails the next bundle, and the thread starts again with the bundle after it.

**Commits**: a position that a bundle begins at is in the checkpoint, so its offset may be committed. A commit never
runs ahead of the checkpoint, and is repeated after a crash. A commit that fails is tried again with the next one.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Protocol

from penstock.errors import PenstockError
from penstock.io.change_streams.prefetch import ReadAhead
from penstock.io.change_streams.settings import Limits
from penstock.io.change_streams.status import UnreachableError
from penstock.io.change_streams.stream_thread import stop_all
from penstock.io.ydb.frontier import Frontier, Position
from penstock.io.ydb.prefetch import Prefetcher
from penstock.io.ydb.reader import Opener, StreamReader
from penstock.io.ydb.steps import Rules

_LOGGER = logging.getLogger(__name__)
_REFRESH_SECONDS = 60.0
"""How often the table is described again, to learn of new columns."""
_TOKEN_SECONDS = 1800.0
"""How often the token of a stream is sent again. The SDK's reader does it every hour; tokens of IAM live 12 hours."""
_MIN_SHARE = 64 << 10
"""Bytes that a partition may be read ahead, however many there are."""


class CommittingOpener(Opener, Protocol):
    """YDB, as the pool uses it."""

    def commit(self, consumer: str, partition: int, offset: int) -> None:
        """Commit an offset; raises `UnreachableError` or a PenstockError."""


class StreamPool:
    """The readers of one changefeed in one process. Thread-safe; several bundles may use it at once.

    `check` is called once, with the frontier of the first bundle, before anything is read. `refresh` describes the
    table again.
    """

    def __init__(
        self,
        opener: CommittingOpener,
        rules: Rules,
        limits: Limits,
        heartbeat_seconds: float,
        *,
        consumer: str = "",
        check: Callable[[Frontier], None] = lambda frontier: None,
        refresh: Callable[[], None] | None = None,
    ) -> None:
        self.limits, self.ahead = limits, ReadAhead(limits.buffer_bytes)
        self._opener, self._rules, self._heartbeat_seconds = opener, rules, heartbeat_seconds
        self._consumer, self._check, self._refresh = consumer, check, refresh
        self._refresh_at = time.monotonic() + _REFRESH_SECONDS
        self._token_at = time.monotonic() + _TOKEN_SECONDS
        self._checked = False
        self._running: set[StreamReader] = set()
        self._parked: list[tuple[float, StreamReader]] = []
        self._to_commit: dict[int, int] = {}
        self._committed: dict[int, int] = {}
        self._worker: threading.Thread | None = None
        self._error: BaseException | None = None
        # A separate lock: the condition of the readers is notified for each batch.
        self._work_to_do = threading.Event()

    @contextmanager
    def prefetching(self, frontier: Frontier) -> Iterator[Prefetcher]:
        """Yield a prefetcher, which resumes readers as `serve` asks for them. After an error they are stopped."""
        if not self._checked:
            self._check(frontier)
            self._checked = True
        with Prefetcher(self) as prefetcher:
            yield prefetcher

    def begin(self, positions: Mapping[int, Position]) -> None:
        """Start a bundle: note the offsets to commit. If it continues no parked reader, stop all of them.

        Raises what the periodic work raised.
        """
        with self.ahead.changed:
            error, self._error = self._error, None
        if error is not None:
            raise error
        if self._consumer:
            with self.ahead.changed:
                for partition, position in positions.items():
                    ends = [*position.parents, *([] if position.sought else [(partition, position.offset)])]
                    self._to_commit.update({n: end for n, end in ends if end > self._committed.get(n, 0)})
            self._work_to_do.set()
        with self.ahead.changed:
            # If the bundle continues none, another worker reads these partitions now.
            if any(positions.get(reader.partition) == reader.position for _, reader in self._parked):
                return
            # Stopped outside of the lock, which their threads need to end.
            parked, self._parked = self._parked, []
        stop_all([reader for _, reader in parked])

    def resume(self, partition: int, position: Position, streams: int) -> StreamReader:
        """Return a reader that stands at this position: a parked one, or a new one.

        `streams`: how many partitions share the budget. A parked reader whose thread has failed is resumed too, so that
        the bundle raises the error.
        """
        with self.ahead.changed:
            for number, (_, reader) in enumerate(self._parked):
                if reader.partition == partition and reader.position == position:
                    del self._parked[number]
                    break
            else:
                share = max(_MIN_SHARE, self.limits.buffer_bytes // max(1, streams))
                reader = StreamReader(
                    partition,
                    position,
                    self._rules,
                    self._opener,
                    self.limits.unavailable_seconds,
                    self.ahead,
                    share,
                )
            self._running.add(reader)
            self._ensure_worker()
            return reader

    def park(self, reader: StreamReader) -> None:
        """Park a reader for the next bundle; the oldest one is stopped when there are too many."""
        with self.ahead.changed:
            self._running.discard(reader)
            self._parked.append((time.monotonic() + self.limits.idle_stream_seconds, reader))
            most = self.limits.max_concurrent_partitions if self.limits.idle_stream_seconds > 0 else 0
            keep = len(self._parked) - most
            surplus = [parked for _, parked in self._parked[: max(0, keep)]]
            del self._parked[: max(0, keep)]
            self._ensure_worker()
        self._work_to_do.set()
        for parked in surplus:
            parked.stop()

    def drop(self, reader: StreamReader) -> None:
        """Forget a reader that its bundle stops."""
        with self.ahead.changed:
            self._running.discard(reader)
        self._work_to_do.set()

    def _ensure_worker(self) -> None:
        if self._worker is None:
            self._worker = threading.Thread(target=self._run, name="penstock-ydb-reader-worker", daemon=True)
            self._worker.start()

    def _run(self) -> None:
        try:
            self._work()
        except BaseException as error:  # whatever it is, the next bundle raises it
            with self.ahead.changed:
                self._worker, self._error = None, error

    def _work(self) -> None:
        """Do the periodic work. The thread ends when there are no readers; `resume` or `park` starts one."""
        ask_at = 0.0
        while True:
            # First in the round: it must also happen in the last one, before the thread ends.
            self._commit()
            now = time.monotonic()
            found = self._readers(now)
            if found is None:
                return
            readers, expired = found
            stop_all(expired)
            if not readers:  # look again at once: another bundle may have resumed a reader
                continue
            if now >= ask_at:
                ask_at = now + self._heartbeat_seconds
                for reader in readers:
                    reader.ask_status()
            self._describe_again(now)
            self._send_tokens(now, readers)
            with self.ahead.changed:
                until = min([ask_at, *(until for until, _ in self._parked)])
            self._work_to_do.wait(max(0.0, until - time.monotonic()))
            self._work_to_do.clear()

    def _readers(self, now: float) -> tuple[list[StreamReader], list[StreamReader]] | None:
        """Return the readers that run or are parked, and those that expired; None: there are none, the worker ends."""
        with self.ahead.changed:
            expired = [reader for until, reader in self._parked if until <= now]
            self._parked = [parked for parked in self._parked if parked[0] > now]
            readers = [*self._running, *(reader for _, reader in self._parked)]
            # Under the lock, so that `resume` either finds this thread or starts another.
            if not readers and not expired:
                self._worker = None
                return None
            return readers, expired

    def _commit(self) -> None:
        with self.ahead.changed:
            due, self._to_commit = self._to_commit, {}
        # Outside of the lock: a commit is a request, and readers need the lock for each batch.
        for partition, offset in due.items():
            try:
                self._opener.commit(self._consumer, partition, offset)
            except (PenstockError, UnreachableError) as error:
                # A failed offset commit does not fail the pipeline: a later commit includes this one.
                _LOGGER.warning("offset %d of partition %d was not committed: %s", offset, partition, error)
            else:
                self._committed[partition] = offset

    def _send_tokens(self, now: float, readers: list[StreamReader]) -> None:
        if now < self._token_at:
            return
        self._token_at = now + _TOKEN_SECONDS
        try:
            for reader in readers:
                reader.refresh_token()
        except Exception as error:  # the SDK's credentials raise what their library raises
            _LOGGER.warning("no new token: %s", type(error).__name__)

    def _describe_again(self, now: float) -> None:
        if self._refresh is None or now < self._refresh_at:
            return
        self._refresh_at = now + _REFRESH_SECONDS
        try:
            self._refresh()
        except (PenstockError, UnreachableError) as error:
            _LOGGER.warning("the table was not described again: %s", error)
