"""Converts messages of one partition to steps that can be claimed. Pure; every rule about time and order is here.

- **Gaps**: each message has the next offset. Another one means that retention has deleted records, which is an error.
- **Event time**: the step of the virtual timestamp, in milliseconds; without one, the time at which the shard made the
  record. A record that is below the watermark of its partition gets the watermark as its event time, so no record is
  late.
- **Watermark** with barriers: the last barrier. YDB has then written every change with an earlier virtual timestamp.
- **Watermark** without barriers: the time of writing, minus `delivery_seconds`. It never falls within a partition, and
  for an idle partition the server says the earliest time of the next message.
- **Initial scan**: its rows have the virtual timestamp of the snapshot, which is taken by the transaction that creates
  the topic. So they have the transaction id of the topic's creation. If the server does not say that, the records with
  the lowest virtual timestamp of the partition count as rows of the scan, also if they are new rows that were inserted
  before the first row of the scan was written.

Sources: YDB documentation, "Change Data Capture" (Barriers, Initial table scan, Record retention period);
ydb_topic.proto, PartitionSessionStatusResponse; of the snapshot `create_cdc_stream_unit.cpp` and
`schemeshard__operation_create_cdc_stream.cpp`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from penstock.errors import LineageError
from penstock.io.change_streams.undecodable import UndecodableRecord
from penstock.io.ydb.decode import READERS, Header
from penstock.io.ydb.description import Description
from penstock.io.ydb.frontier import UNKNOWN, Position
from penstock.io.ydb.preflight import lost_records
from penstock.io.ydb.record import ChangefeedRecord, Table
from penstock.io.ydb.source import ChangeStream
from penstock.timestamps import NANOS

MILLISECOND = 1_000_000


class Message(NamedTuple):
    """A message of a topic. Times are nanoseconds; `key` is empty if there is none."""

    offset: int
    data: bytes
    key: bytes
    created_at: int
    written_at: int


Emitted: TypeAlias = ChangefeedRecord | UndecodableRecord


class PendingStep(NamedTuple):
    """The size of a message as the server counts it, the record to emit, and the position after it."""

    size: int
    record: Emitted | None
    position: Position


@dataclass(frozen=True, slots=True)
class Rules:
    """The facts that are the same for all partitions of one read.

    Args:
        skips_scan: rows of the initial scan are not emitted.
        scan_tx_id: transaction id of the snapshot of the initial scan; 0: there is no scan, or it is not known.
        table_at: returns the table as a `Position.schema` says, or as YDB describes it now.
    """

    stream: ChangeStream
    read: Callable[[bytes], Header]
    format: str
    barriers: bool
    has_commit_times: bool
    delivery: int
    scan_tx_id: int
    table_at: Callable[[str], Table]
    skips_scan: bool = False

    @classmethod
    def of(
        cls,
        stream: ChangeStream,
        found: Description,
        delivery_seconds: float,
        table_at: Callable[[str], Table],
        *,
        skips_scan: bool = False,
    ) -> Rules:
        """Return the rules of a changefeed."""
        return cls(
            stream,
            READERS[found.table.format],
            found.table.format,
            bool(found.barrier_seconds),
            found.has_commit_times,
            round(delivery_seconds * NANOS),
            found.created_at[1] if found.initial_scan else 0,
            table_at,
            skips_scan,
        )


class PartitionSteps:
    """The messages of one partition after a position."""

    def __init__(self, rules: Rules, partition: int, position: Position) -> None:
        self._rules, self._partition = rules, partition
        self.position = position._replace(parents=())
        self.has_ended = False
        """Whether the read has passed its end."""

    def message(self, message: Message, size: int) -> PendingStep:
        """Return the step of a message.

        Raises:
            PositionLostError: messages before it are gone.
            LineageError: it was read before.
        """
        offset, watermark, sought, snapshot, schema, _ = self.position
        # Offsets are consecutive: a hole means that retention has deleted messages.
        if message.offset != offset:
            # The first message of a read that begins at a time is at an offset that is not known before.
            if message.offset < offset:
                raise LineageError(
                    f"partition {self._partition} sent offset {message.offset} again, after {offset - 1}"
                )
            if not sought:
                raise lost_records(self._rules.stream, self._partition, offset, message.offset)
        record: Emitted | None
        try:
            header = self._rules.read(message.data)
        except ValueError as error:  # msgspec's errors are ValueErrors
            record = self._undecodable(message, watermark, error)
        else:
            if header.resolved is not None:
                record, watermark = None, max(watermark, header.resolved[0] * MILLISECOND)
            else:
                # Rows of the scan have the lowest virtual timestamp, and they are not always the first messages.
                if snapshot is not None and header.ts is not None:
                    snapshot = header.ts if snapshot == UNKNOWN else min(snapshot, header.ts)
                schema = header.schema or schema
                record = self._record(message, header, watermark, snapshot, schema)
        # For each message, also for a bad one: it was written, so time has passed.
        if not self._rules.barriers:
            watermark = max(watermark, message.written_at - self._rules.delivery)
        self.position = Position(message.offset + 1, watermark, False, snapshot, schema)
        self._look_for_the_end()
        return PendingStep(size, record, self.position)

    def idle(self, end: int, next_write: int) -> PendingStep | None:
        """Return the step of a report that the partition ends at offset `end`; None: it changes nothing.

        `next_write`: no later message is written before it, in nanoseconds.
        """
        offset, watermark, sought, *_ = self.position
        reached = next_write - self._rules.delivery
        # With barriers only a barrier moves the watermark. Unread messages were written before `next_write`.
        if self._rules.barriers or sought or end != offset or reached <= watermark:
            return None
        self.position = self.position._replace(watermark=reached)
        self._look_for_the_end()
        return PendingStep(0, None, self.position)

    def _look_for_the_end(self) -> None:
        end = self._rules.stream.end
        self.has_ended = end is not None and self.position.watermark > end

    def _record(
        self,
        message: Message,
        header: Header,
        watermark: int,
        snapshot: tuple[int, int] | None,
        schema: str,
    ) -> ChangefeedRecord | None:
        rules = self._rules
        ts = header.ts
        commit = message.created_at if ts is None else ts[0] * MILLISECOND
        if commit < rules.stream.start or (rules.stream.end is not None and commit > rules.stream.end):
            return None
        step, tx_id = (0, 0) if ts is None else ts
        is_scan = header.is_read
        # A schema change is no row of the scan, whatever its timestamp is.
        if ts is not None and not header.schema:
            is_scan = is_scan or ts == snapshot or (tx_id == rules.scan_tx_id and tx_id > 0)
        if is_scan and rules.skips_scan:
            return None
        return ChangefeedRecord(
            commit if commit > watermark else watermark,
            self._partition,
            message.offset,
            rules.table_at(schema),
            message.data,
            message.key,
            step,
            tx_id,
            is_scan,
            message.created_at,
            message.written_at,
        )

    def _undecodable(self, message: Message, watermark: int, error: ValueError) -> UndecodableRecord | None:
        stream = self._rules.stream
        # Its commit time cannot be read, so the time at which the shard made it decides.
        if message.created_at < stream.start or (stream.end is not None and message.created_at > stream.end):
            return None
        return UndecodableRecord(
            commit_timestamp=max(message.created_at, watermark),
            partition=str(self._partition),
            position=str(message.offset),
            reason=f"not a record in format {self._rules.format}: {error}",
            data=message.data,
            format=f"YDB {self._rules.format}",
        )
