"""The log of a slot as the reader's thread sees it: one logic over streaming and over pull.

Both send the same messages. Streaming holds a connection and has the lower latency. Pull asks again and again with an
ordinary query, for servers behind a connection pooler that does not know the replication protocol.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from itertools import islice

from penstock.errors import PositionLostError
from penstock.io.change_streams.backoff import Backoff
from penstock.io.postgres.binary_values import TextRows
from penstock.io.postgres.client import LOCK_TIMEOUT_MS, Arrived, Client, LogStream, Now
from penstock.io.postgres.log_decoder import LogDecoder, UnknownPrepared
from penstock.io.postgres.log_steps import CaughtUp
from penstock.io.postgres.position import Position
from penstock.io.postgres.preflight import SLOT, Slot, check_slot, renewed_slot
from penstock.io.postgres.record import format_lsn
from penstock.io.postgres.schema_watch import NEWEST, PUBLISHED, Published
from penstock.io.postgres.source import ChangeStream, Connection
from penstock.io.postgres.stream import Call
from penstock.io.postgres.transactions import Step, TransactionReader

_TICK_SECONDS = 0.05
"""How long a read waits for the first message, so that the thread notices a stop."""
_MIN_PULLED = 20_000
"""Changes of one pull. Each pull decodes the log from the confirmed position again, so small pulls cost more."""

_MESSAGES = 512
_MESSAGE_BYTES = 1 << 20
"""Limits of the messages that are received, or of the steps that are taken, at once."""
_HURRY_SECONDS = 0.02
"""How often a reader asks for the end of the log while rows of a snapshot wait for it."""

Item = tuple[Step | CaughtUp | UnknownPrepared, int]


class Server:
    """Opens the log of one slot. `heartbeat_seconds`: how often an idle reader asks for the end of the log."""

    def __init__(
        self, stream: ChangeStream, connection: Connection, heartbeat_seconds: float, backoff: Backoff
    ) -> None:
        self._stream, self._connection = stream, connection
        self._heartbeat_seconds = heartbeat_seconds
        self.backoff = backoff

    @contextmanager
    def open(self, position: Position, watermark: int) -> Iterator[Call]:
        """Open the log at a position.

        Raises:
            UnreachableError: ask again later.
            PositionLostError: the slot does not have the changes after the position any more.
            ChangeStreamError: the server refuses to send the log; the message says what to do.
        """
        with Client(self._stream, self._connection) as client:
            slot = _check_position(self._stream, client, position)
            reader = TransactionReader(
                client.describe_table,
                client.near_transaction_id(),
                watermark,
                position.previous_end,
                TextRows(client.types) if self._connection.binary else None,
            )
            with closing(LogDecoder(reader)) as decoder:
                if self._connection.protocol == "pull":
                    # A connection that copies cannot answer other questions.
                    with Client(
                        self._stream, self._connection, application=self._connection.reader_name
                    ) as copying:
                        client.take_slot()
                        yield PulledCall(client, copying, decoder, slot.two_phase, self._heartbeat_seconds)
                    return
                client.take_slot()
                # Not from the position: the server sends a prepared transaction only to a reader that starts before it.
                stream = client.open_stream(position.safe_lsn, two_phase=slot.two_phase)
                try:
                    yield StreamedCall(client, stream, decoder, self._heartbeat_seconds)
                finally:
                    stream.close()

    def published(self) -> Published:
        """Return the published tables as they are now. Raises what `Client.rows` raises.

        The thread that asks also reads the log, so it does not wait for a migration.
        """
        with Client(self._stream, self._connection, lock_timeout_ms=LOCK_TIMEOUT_MS) as client:
            ((newest,),) = client.rows(NEWEST)
            return Published.of(
                newest, client.rows(PUBLISHED, {"publications": list(self._stream.publications)})
            )

    def renew(self, position: Position) -> Position:
        """Return the position of the slot as it is now; a slot that cannot be read any more is created again.

        Raises:
            UnreachableError: ask again later.
            ChangeStreamError: the server refuses it; the message says what to do.
        """
        with Client(self._stream, self._connection) as client:
            slot = renewed_slot(self._stream, client.rows)
        return Position(slot.confirmed_lsn, 0, slot.system)


def _check_position(stream: ChangeStream, client: Client, position: Position) -> Slot:
    slot = check_slot(stream, client.rows(SLOT, (stream.slot,)))
    # First, because positions of two clusters cannot be compared.
    if slot.system != position.system:
        raise PositionLostError(
            f"{stream}: the checkpoint was made on another database cluster (system identifier {position.system}, here "
            f"{slot.system}), whose positions mean nothing here. Take a new snapshot and start with a new "
            f"checkpoint folder"
        )
    # Not `lsn`: a prepared transaction is sent again only to a reader that starts before it.
    if slot.confirmed_lsn > position.safe_lsn:
        raise PositionLostError(
            f"{stream}: the slot has moved on to {format_lsn(slot.confirmed_lsn)}, and the checkpoint needs "
            f"the log from {format_lsn(position.safe_lsn)}. The slot was dropped and created again, or "
            "another consumer uses it. The changes between are lost: take a new snapshot, and start "
            "with a slot of its own and a new checkpoint folder"
        )
    return slot


class ServerClock:
    """The server's clock, by the time that it said last and the time since then."""

    def __init__(self) -> None:
        self._lead = 0

    def heard(self, timestamp: int) -> None:
        """Take a time that the server has just said, in nanoseconds."""
        self._lead = timestamp - time.monotonic_ns()

    def time(self) -> int:
        """Return the server's time now, in nanoseconds; late by the time that its last answer needed."""
        return time.monotonic_ns() + self._lead


class StreamedCall:
    """The log over the streaming replication protocol."""

    def __init__(
        self, client: Client, stream: LogStream, decoder: LogDecoder, heartbeat_seconds: float
    ) -> None:
        self._client, self._stream, self._decoder = client, stream, decoder
        self._heartbeat_seconds = heartbeat_seconds
        self._ask_at = self._asked_at = 0.0
        self._reached = 0
        self._now: Now | None = None
        self._clock = ServerClock()
        self._items = self._receive_all()

    def acknowledge(self, lsn: int) -> None:
        self._stream.acknowledge(lsn)
        self._stream.send_status()

    def hurry(self) -> None:
        """Ask for the end of the log, but not more often than every `_HURRY_SECONDS`."""
        self._ask_at = min(self._ask_at, self._asked_at + _HURRY_SECONDS)

    def server_time(self) -> int:
        return self._clock.time()

    def read(self, most: int) -> Sequence[Item]:
        """Return what has arrived; see `stream.Call`."""
        items = _until_pause(self._items, most)
        self._heartbeat(items)
        return items

    def _receive_all(self) -> Iterator[Item | None]:
        """Yield the steps of all messages, and None when nothing has arrived for a moment.

        A generator: a large transaction of a spool is handed over in parts, and the messages after it wait.
        """
        decoder = self._decoder
        while True:
            arrived = self._stream.receive(_TICK_SECONDS, _MESSAGES, _MESSAGE_BYTES)
            yield from decoder.read_all([message for message in arrived if message[1]])
            # After the steps, which come before the place that the server says it has reached.
            self._reached = max([self._reached, *(lsn for lsn, payload in arrived if not payload)])
            yield None

    def _heartbeat(self, items: list[Item]) -> None:
        # The end of the log is asked for first, and then whether the server has sent everything up to it: the server's
        # keepalive has a clock too, but says nothing about the log that it has not decoded yet.
        now = self._now
        if now is not None and self._reached >= now.lsn and not self._decoder.in_transaction:
            items.append((CaughtUp(now.lsn, now.timestamp, self._decoder.oldest_prepared), 0))
            self._now = None
        if time.monotonic() >= self._ask_at:
            self._asked_at = time.monotonic()
            self._ask_at = self._asked_at + self._heartbeat_seconds
            now = self._client.now()
            self._clock.heard(now.timestamp)
            # The older question stays until it is answered: the end of a busy log moves on, and would never be reached.
            self._now = self._now or now
            self._stream.send_status(ask=True)


def _some(messages: Iterator[Arrived]) -> list[Arrived]:
    """Return the next messages, within the limits of a receipt; empty at the end."""
    taken: list[Arrived] = []
    room = _MESSAGE_BYTES
    for message in islice(messages, _MESSAGES):
        taken.append(message)
        room -= len(message[1])
        if room <= 0:
            break
    return taken


def _until_pause(items: Iterator[Item | None], most: int) -> list[Item]:
    """Return the items before the next pause: at most `most`, and none after `_MESSAGE_BYTES`."""
    taken: list[Item] = []
    room = _MESSAGE_BYTES
    for item in islice(items, most):
        if item is None:  # nothing new: return what there is
            break
        taken.append(item)
        room -= item[1]
        if room <= 0:
            break
    return taken


class PulledCall:
    """The log by repeated queries, each from the confirmed position of the slot to the end of the log."""

    def __init__(
        self, client: Client, copying: Client, decoder: LogDecoder, two_phase: bool, poll_seconds: float
    ) -> None:
        self._client, self._copying, self._two_phase = client, copying, two_phase
        self._decoder, self._poll_seconds = decoder, poll_seconds
        self._items = self._pull_all()
        self._acknowledged = 0
        self._hurries = False
        self._clock = ServerClock()

    def server_time(self) -> int:
        return self._clock.time()

    def hurry(self) -> None:
        """Make the next pause short."""
        self._hurries = True

    def acknowledge(self, lsn: int) -> None:
        self._acknowledged = max(self._acknowledged, lsn)

    def read(self, most: int) -> Sequence[Item]:
        """Return what has arrived; see `stream.Call`."""
        return _until_pause(self._items, most)

    def _pull_all(self) -> Iterator[Item | None]:
        # No position is -1, so the first round pulls.
        most, end, advanced, prepared = _MIN_PULLED, -1, 0, 0
        while True:
            now = self._client.now()
            self._clock.heard(now.timestamp)
            if now.lsn == end:
                yield CaughtUp(now.lsn, now.timestamp, prepared), 0
                yield None
                time.sleep(min(self._poll_seconds, _HURRY_SECONDS) if self._hurries else self._poll_seconds)
                self._hurries = False
                continue
            if advanced < self._acknowledged:
                advanced = self._acknowledged
                self._client.advance(advanced)
            count = 0  # pulled messages
            # Each pull begins at the confirmed position again, and so do prepared transactions.
            self._decoder.restart()
            with self._copying.pull(most, two_phase=self._two_phase) as messages:
                while some := _some(messages):
                    count += len(some)
                    yield from self._decoder.read_all(some)
            # Fewer than asked for: everything up to `now` has come, because its position was asked for before the pull.
            if count < most:
                end, most, prepared = now.lsn, _MIN_PULLED, self._decoder.oldest_prepared
                yield CaughtUp(now.lsn, now.timestamp, prepared), 0
            else:
                # The next pull starts where the slot is confirmed, which may be here still: it must reach beyond.
                most = count + _MIN_PULLED
            yield None
