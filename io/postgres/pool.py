"""The readers of the slots of one change stream in one process.

A server lets one reader use a slot. A parked reader therefore gives the slot up when `idle_stream_seconds` have passed,
and at once when a bundle begins at another position. A bundle in another worker does not wait for that: it ends the
connection of the parked reader (`Client.take_slot`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Mapping
from typing import Any

from penstock.io.change_streams.backoff import Backoff
from penstock.io.change_streams.flat import FlatFrontier, FlatPosition
from penstock.io.change_streams.partition_pool import PartitionPool
from penstock.io.change_streams.partition_prefetch import PartitionPrefetcher
from penstock.io.change_streams.refusals import Refusals
from penstock.io.change_streams.settings import Limits
from penstock.io.change_streams.stream_reader import StreamReader
from penstock.io.postgres.position import Position
from penstock.io.postgres.stream import SlotStream

_REFUSALS = Refusals("PostgreSQL")
_CONNECTING_SECONDS = 5.0
"""How long a split waits for a new connection."""
_DECODING_SECONDS = 600.0
"""How long a split waits for the server, which sends nothing while it decodes a large transaction.

A new connection gets the transaction that it begins in from its first record again. The server needs seconds for a
million rows and minutes for a hundred million."""

MakeStream = Callable[[str, FlatPosition, int], SlotStream]
"""Makes the stream of a slot at a position, with the size of the budget."""


class Prefetcher(PartitionPrefetcher):
    """The readers of one `process` call: one for each slot of its frontier."""

    # A connection already hands over all that has arrived.
    gather_seconds = 0.0

    def is_awaited(self, reader: StreamReader) -> bool:
        """Return whether a split may wait for this reader: for a connection, only for a short time."""
        stream: Any = reader.stream
        age = 0.0 if self.began is None else time.monotonic() - self.began
        limit = _DECODING_SECONDS if stream.is_open else _CONNECTING_SECONDS
        held: bool = age < limit and stream.holds_connection(more=reader.queued > 0)
        return held


class StreamPool(PartitionPool):
    """The readers of the slots of one change stream in one process; one bundle uses a slot at a time."""

    prefetcher_type = Prefetcher

    def __init__(self, make: MakeStream, backoff: Backoff, limits: Limits) -> None:
        super().__init__(_REFUSALS, backoff, limits)
        self._make = make

    def positions(self, frontier: FlatFrontier) -> Mapping[str, FlatPosition]:
        return {
            slot: FlatPosition(Position(*at.position), at.watermark)
            for slot, at in frontier.positions.items()
        }

    def make_stream(self, partition: str, position: FlatPosition, share_bytes: int) -> SlotStream:
        return self._make(partition, position, self.ahead.buffer_bytes)

    def resume(self, partition: Hashable, position: FlatPosition, streams: int) -> StreamReader:
        """Return a reader, and acknowledge the position.

        A position that a bundle begins at is in the checkpoint, so the server need not keep the log before it. A
        repeated epoch begins at an older one, which acknowledges nothing.
        """
        reader = super().resume(partition, position, streams)
        # Only a position that a bundle begins at: what a bundle has claimed may still be repeated.
        stream: Any = reader.stream
        stream.acknowledge(position.position.safe_lsn)
        return reader
