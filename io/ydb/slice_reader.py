"""Reads closed slices of a changefeed's topic: where they begin and can end, and their records.

The rules are in `slice`. Nothing is written to YDB, except the offsets of a consumer.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeVar

import msgspec

from penstock.errors import DecodeError, PenstockError
from penstock.extras import extra_packages
from penstock.io.change_streams.incremental.options import NEVER
from penstock.io.change_streams.status import UnreachableError
from penstock.io.change_streams.undecodable import UndecodableRecord
from penstock.io.ydb.description import Description
from penstock.io.ydb.frontier import Frontier, Position
from penstock.io.ydb.preflight import (
    check_changefeed,
    check_positions,
    check_retention,
    check_scan_is_whole,
    check_snapshot,
    first_frontier,
    lost_records,
)
from penstock.io.ydb.record import ChangefeedRecord, TableColumn
from penstock.io.ydb.slice import Offsets, Piece, SlicePart, parents_of, slice_parts
from penstock.io.ydb.source import ChangeStream, Connection
from penstock.io.ydb.steps import PartitionSteps, Rules
from penstock.io.ydb.stream import Call, Data, EndOfPartition, Opener, Started
from penstock.io.ydb.tables import Tables

if TYPE_CHECKING:
    from penstock.io.ydb.client import Client

_LOGGER = logging.getLogger(__name__)
_AHEAD_BYTES = 8 << 20
"""How many bytes the server may send ahead."""
STREAM_SECONDS = 30.0
"""A stream is opened again after it. If retention deletes the last messages of a slice, the server sends nothing and no
error: it waits for later messages. So before the stream is opened again, the topic is asked what it still has."""
CheckKept = Callable[[int, Position], None]
"""Asks whether a partition still has everything from a position on. Raises PositionLostError if it has not."""
Answer = TypeVar("Answer")
Columns = tuple[tuple[TableColumn, ...], tuple[str, ...]]
"""The columns of the table, and the names of its key."""


@dataclass(frozen=True, slots=True)
class ReadPart:
    """A part of a slice, and the changefeed as the driver knew it when the slice was planned. Picklable."""

    part: SlicePart
    found: Description


@dataclass(frozen=True, slots=True)
class SliceReader:
    """One changefeed and the connection to its database. Picklable.

    `consumer`: whose offsets are committed; empty: none. `snapshot`: initial or never; empty: either.
    """

    stream: ChangeStream
    connection: Connection
    consumer: str
    snapshot: str
    unavailable_seconds: float

    def check(self) -> Description:
        """Return the description of the changefeed, after the checks that the Beam source makes.

        Raises:
            SetupError: it does not exist or cannot be read; the message names the fix.
            UnavailableError: YDB did not answer for `unavailable_seconds`.
        """
        found, names = self._ask(lambda client: client.describe())
        # A slice has an end, so a changefeed that takes no more changes can be read.
        check_changefeed(replace(self.stream, end=time.time_ns()), found, names, self.consumer)
        assert found is not None, "check_changefeed raises"
        check_snapshot(self.stream, found, self.snapshot)
        return found

    def columns(self) -> Columns:
        """Return the columns of the table as they are now, and the names of its key."""
        return self._ask(lambda client: client.describe_columns())

    def first(self, found: Description) -> Offsets:
        """Return where a new query begins: at the first messages that the topic has, or the first since the start.

        Raises:
            PositionLostError: messages that the query asks for may have been deleted.
        """
        check_retention(self.stream, found, time.time_ns())
        check_scan_is_whole(self.stream, found, self.snapshot)
        frontier = first_frontier(self.stream, found)
        places = {number: (each.offset, each.sought) for number, each in frontier.open.items()}
        places |= {number: (each.first, each.sought) for number, each in frontier.waiting.items()}
        return Offsets(
            {number: self._sought(number) if sought else first for number, (first, sought) in places.items()}
        )

    def _sought(self, partition: int) -> int:
        """Return the offset of the first message of a partition that was written at the start or later."""

        def ask(client: Client) -> int:
            call = client.open(partition, self.stream.start)
            try:
                # There is one: an offset is sought only where the last message was written at the start or later.
                return next(event.messages[0].offset for event in _started(call, 0, 1) if type(event) is Data)
            finally:
                call.cancel()

        return self._ask(ask)

    def parts(
        self, found: Description, start: Offsets, end: Offsets, created_at: tuple[int, int], most: int
    ) -> list[SlicePart]:
        """Return at most `most` parts of a slice of the topic that was created at a virtual timestamp.

        Raises:
            PositionLostError: the topic no longer has its messages, or was created again; the message says what to do.
        """
        begun = {number: start.open.get(number, 0) for number in {**start.open, **end.open, **end.finished}}
        # A partition that was read to its end may be deleted, and needs no check.
        opened = {
            number: Position(offset, self.stream.start)
            for number, offset in begun.items()
            if number not in start.finished and offset != end.finished.get(number)
        }
        frontier = Frontier(opened, {}, self.stream.start, created_at=created_at)
        check_positions(self.stream, frontier, found, time.time_ns())
        return slice_parts(start, end, parents_of(found), most)

    def read(self, part: ReadPart) -> Iterator[Sequence[ChangefeedRecord]]:
        """Yield the records of a part. A stream that breaks off is continued.

        Raises:
            PositionLostError: messages of the part are gone.
            DecodeError: a message is no record of the changefeed.
            UnavailableError: YDB did not answer for `unavailable_seconds`.
        """
        client = self._client()
        rules = Rules.of(
            self.stream, part.found, 0, Tables(part.found.table).at, skips_scan=self.snapshot == NEVER
        )
        check_kept = checks_kept(self.stream, client.describe, part.found.created_at)
        for piece in part.part.pieces:
            yield from read_piece(client, rules, piece, self.unavailable_seconds, check_kept)

    def commit(self, end: Offsets) -> None:
        """Commit the offsets of the consumer, if there is one. A commit that fails is repeated with the next one."""
        for partition, offset in {**end.open, **end.finished}.items() if self.consumer else ():
            try:
                self._client().commit(self.consumer, partition, offset)
            except (PenstockError, UnreachableError) as error:
                _LOGGER.warning("offset %d of partition %d was not committed: %s", offset, partition, error)

    def _client(self) -> Client:
        with extra_packages("ydb"):
            from penstock.io.ydb.client import client_for

        return client_for(self.stream, self.connection)

    def _ask(self, question: Callable[[Client], Answer]) -> Answer:
        client = self._client()
        return client.backoff.ask(lambda: question(client), self.unavailable_seconds)


def checks_kept(
    stream: ChangeStream,
    describe: Callable[[], tuple[Description | None, tuple[str, ...]]],
    created_at: tuple[int, int],
) -> CheckKept:
    """Return the check of the topic that was created at a virtual timestamp, which `describe` asks."""

    def check(partition: int, position: Position) -> None:
        found, _ = describe()
        if found is not None:  # without a changefeed, to open the stream is an error
            frontier = Frontier({partition: position}, {}, stream.start, created_at=created_at)
            check_positions(stream, frontier, found, time.time_ns())

    return check


def read_piece(
    opener: Opener, rules: Rules, piece: Piece, unavailable_seconds: float, check_kept: CheckKept
) -> Iterator[Sequence[ChangefeedRecord]]:
    """Yield the records of a piece, in the order of their offsets; raises what `SliceReader.read` raises."""
    # Offsets are exact from the first message on, so each gap is an error. The watermark is not used: the time of an
    # event is the time of its commit.
    steps = PartitionSteps(rules, piece.partition, Position(piece.first, rules.stream.start))
    while steps.position.offset < piece.end:
        try:
            yield from _read_once(opener, rules, piece, steps)
        except UnreachableError as error:
            with suppress(UnreachableError):  # the next attempt asks again
                check_kept(piece.partition, steps.position)
            opener.backoff.failed(str(error), unavailable_seconds)
            time.sleep(opener.backoff.remaining_pause())


def _read_once(
    opener: Opener, rules: Rules, piece: Piece, steps: PartitionSteps
) -> Iterator[Sequence[ChangefeedRecord]]:
    call = opener.open(piece.partition, 0, STREAM_SECONDS)
    try:
        for event in _started(call, steps.position.offset, _AHEAD_BYTES):
            if type(event) is EndOfPartition:
                raise lost_records(rules.stream, piece.partition, steps.position.offset, piece.end)
            if type(event) is not Data:
                continue
            # Not before: messages of a slice exist, so a server that starts and sends none has not answered.
            opener.backoff.answered()
            records = []
            for message in event.messages:
                if steps.position.offset == piece.end:
                    break
                records.append(steps.message(message, 0).record)
            yield [_decoded(record, rules.stream) for record in records if record is not None]
            if steps.position.offset == piece.end:
                return
            # After the caller has taken the records, so that no more than `_AHEAD_BYTES` wait for it.
            call.grant(event.size)
        raise UnreachableError(f"{rules.stream}: the server ended the stream")
    finally:
        call.cancel()


def _started(call: Call, offset: int, ahead_bytes: int) -> Iterator[object]:
    """Yield what the server sends from an offset on."""
    for event in call:
        if type(event) is Started:
            call.start(offset)
            call.grant(ahead_bytes)
        yield event


def _decoded(record: ChangefeedRecord | UndecodableRecord, stream: ChangeStream) -> ChangefeedRecord:
    if isinstance(record, UndecodableRecord):
        raise DecodeError(
            f"{stream}: the record at offset {record.position} of partition {record.partition} cannot be decoded: "
            f"{record.reason}. To continue without such records, read the changefeed with ReadFromYdbChangefeed and "
            "take its error output"
        )
    return record


def with_columns(found: Description, columns: Columns) -> Description:
    """Return the description for tasks: with these columns, and without partitions."""
    table = msgspec.structs.replace(found.table, columns=columns[0], key=columns[1])
    return replace(found, table=table, partitions=())
