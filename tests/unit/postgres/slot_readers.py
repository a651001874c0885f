"""Readers of slots whose server is a log in memory, and what a bundle claims of them."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from contextlib import contextmanager

from penstock.errors import UnavailableError
from penstock.io.change_streams.backoff import Backoff
from penstock.io.change_streams.flat import Ended, FlatPosition
from penstock.io.change_streams.options import LimitOptions
from penstock.io.change_streams.settings import Limits
from penstock.io.change_streams.status import UnreachableError
from penstock.io.postgres.log_decoder import UnknownPrepared
from penstock.io.postgres.pool import StreamPool
from penstock.io.postgres.position import Position
from penstock.io.postgres.record import ChangeKind, LogRecord, LogTransaction
from penstock.io.postgres.stream import SlotStream
from penstock.io.postgres.transactions import TransactionEnd

START = Position(0, 0, "system")
SLOT = "penstock"


def records(number, size):
    """Return transaction `number` as the server sends it: its records, then its end."""
    commit = 100 * number
    transaction = LogTransaction(number, commit, commit)
    found = [
        LogRecord(ChangeKind.INSERT, commit, transaction, n, commit - 10 + n, n == size)
        for n in range(1, size + 1)
    ]
    return [*found, TransactionEnd(commit + 8, commit)]


def ends_after(item, lsn):
    if isinstance(item, LogRecord):
        return item.transaction is None or item.transaction.commit_lsn + 8 > lsn
    return item.lsn > lsn or isinstance(item, UnknownPrepared)


class Server:
    """A log in memory. It sends the whole of each transaction that ends after the position, as a real one does."""

    def __init__(self, log, draw=None):
        self.log, self.draw = log, draw
        self.backoff = Backoff("PostgreSQL", UnavailableError)
        self.acknowledged = []
        self.opened = []
        self.now = 0
        self.hurried = []
        """What the server sends when it is asked for the end of its log."""
        self.released = threading.Event()
        self.decoded = threading.Event()
        self.decoded.set()

    @contextmanager
    def open(self, position, watermark):
        self.opened.append(position)
        pending = [item for item in self.log if ends_after(item, position.lsn)]
        server = self

        class Log:
            def acknowledge(self, lsn):
                server.acknowledged.append(lsn)

            def read(self, most):
                if server.draw is not None and server.draw.random() < 0.05:
                    raise UnreachableError("lost")
                if not server.decoded.is_set():
                    server.decoded.wait(0.01)
                    return []
                count = server.draw.randrange(1, 30) if server.draw else most
                taken, pending[:] = pending[:count], pending[count:]
                if not taken:
                    server.released.wait(0.01)
                return [(item, 1) for item in taken]

            def server_time(self):
                return server.now

            def hurry(self):
                pending.extend(server.hurried)

        yield Log()


class OneSlot:
    """The reader of one slot, outside of a bundle."""

    def __init__(self, server, position, end, buffer_bytes, watch):
        self.pool = pool_of({SLOT: server}, end, watch=watch)
        self.pool.ahead.buffer_bytes = buffer_bytes
        self._reader = self.pool.resume(SLOT, FlatPosition(position, 0), 1)
        self.acknowledge, self.uncounted = self._reader.stream.acknowledge, self._reader.uncounted

    def take(self, timeout):
        with self.pool.ahead.changed:
            waiting = self.pool.ahead.changed.wait_for(lambda: self._reader.waiting, timeout)
            return self._reader.take() if waiting else None

    def settle(self, batch):
        with self.pool.ahead.lock:
            self._reader.settle(batch)

    @property
    def position(self):
        return self._reader.position.position

    @property
    def watermark(self):
        return self._reader.position.watermark

    def stop(self):
        self._reader.stop()
        self._reader.join()


def reader(server, position=START, end=None, buffer_bytes=1 << 20, watch=None):
    return OneSlot(server, position, end, buffer_bytes, watch)


def pool_of(servers, end, clock=time.monotonic, make_merge=None, watch=None):
    """Return a pool of readers, one for each server."""

    def make(slot, at, buffer_bytes):
        return SlotStream(
            servers[slot],
            slot,
            at,
            wanted=lambda *_: True,
            end=end,
            buffer_bytes=buffer_bytes,
            clock=clock,
            make_merge=make_merge,
            watch=watch,
        )

    backoff = next(iter(servers.values())).backoff
    return StreamPool(make, backoff, Limits.checked(LimitOptions(idle_stream_seconds=60)))


def claim(reading, batch, most=None):
    """Claim up to `most` runs of a batch; return their records and the last claimed step."""
    found, last = [], None
    for number, (count, emitted, step) in enumerate(batch.claims()):
        if most is not None and number >= most:
            break
        batch.claimed += count
        found += emitted
        last = step
    reading.settle(batch)
    return found, last


def read_bundle(pool, frontier, most):
    """Run a bundle that claims up to `most` batches; return the frontier after it, and the records of each slot."""
    found = defaultdict(list)
    with pool.prefetching(frontier) as prefetcher:
        for _ in range(most):
            if frontier.done:
                break
            prefetcher.serve(frontier)
            batch = prefetcher.take(10)
            assert batch is not None, "no slot has anything"
            for count, emitted, step in batch.claims():
                batch.claimed += count
                found[step.partition] += emitted
                frontier = (
                    frontier.apply(step)
                    if isinstance(step, Ended)
                    else frontier.advanced({step.partition: step.position})
                )
    return frontier, found
