"""The messages that answer a change stream query, one after the other, with faults at their moments."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator

from penstock_emulators.simulated_spanner import wire
from penstock_emulators.simulated_spanner.change_query import ChangeQuery, RunningQuery, open_query
from penstock_emulators.simulated_spanner.chunks import pieces
from penstock_emulators.simulated_spanner.database import Database
from penstock_emulators.simulated_spanner.errors import ServiceError, invalid
from penstock_emulators.simulated_spanner.fault import Fault
from penstock_emulators.simulated_spanner.partition import Partition, Place
from penstock_emulators.simulated_spanner.record import Record
from penstock_emulators.simulated_spanner.record_encoding import encoder, row_metadata
from penstock_emulators.simulated_spanner.service import Service
from penstock_emulators.simulated_spanner.timestamp import SECOND

_BROKEN_PIECE = 8
"""Bytes of the first piece of a row that a fault breaks off."""


class ChangeAnswer:
    """Answers one change stream query: iterate `messages` once."""

    def __init__(self, service: Service, database: Database, query: ChangeQuery) -> None:
        mode = query.stream.definition.partition_mode
        self._service = service
        self._database = database
        self._query = query
        self._encode: Callable[[Record], bytes] = encoder(database.schema.dialect, mode)
        self._metadata = row_metadata(database.schema.dialect, mode, query.function)
        self._rows_sent = 0
        self._messages_sent = 0
        self._faults: list[Fault] = []

    async def messages(self, resume_token: bytes) -> AsyncIterator[bytes]:
        """Yield encoded PartialResultSets until the answer is complete.

        Raises:
            ServiceError: a refusal, a fault, or the end of what can be read.
        """
        service, query = self._service, self._query
        event = asyncio.Event()
        place = _place(resume_token)
        running = open_query(self._database, query, service.clock.now(), place)
        service.stats["change_queries"] += 1
        self._faults = service.faults.of_query(
            query.stream.definition.name, query.token or "", self._number()
        )
        with service.woken_by([query.token] if query.token else [], event):
            while not running.done:
                await self._meet_faults()
                found = running.poll(service.clock.now())
                # Encoded before anything is awaited: retention may drop records from the log in the meantime.
                rows = [self._encoded(*each) for each in found]
                places = [partition.places[index] if partition else None for _, partition, index in found]
                async for message in self._sent(rows, places):
                    yield message
                if not running.done:
                    await self._wait(event, running)
        # Clients read the column types from the first message, so an empty answer has one too.
        if not self._messages_sent:
            yield wire.partial_result_set((), metadata=self._metadata)

    async def _wait(self, event: asyncio.Event, running: RunningQuery) -> None:
        if running.wake > self._service.clock.now():
            await self._service.wait(event, running.wake)

    def _number(self) -> int:
        if self._query.token is None:
            self._database.root_queries += 1
            return self._database.root_queries
        return self._query.ranges.partitions[self._query.token].queries

    def _encoded(self, record: Record, partition: Partition | None, index: int) -> bytes:
        if partition is None:
            return self._encode(record)
        found = partition.encoded[index]
        if found is None:
            found = partition.encoded[index] = self._encode(record)
        return found

    async def _sent(self, rows: list[bytes], places: list[Place | None]) -> AsyncIterator[bytes]:
        start = 0
        while start < len(rows):
            stop = len(rows)
            if self._faults:
                stop = min(stop, start + max(0, self._faults[0].after_rows - self._rows_sent))
            for message in self._messages(rows[start:stop], places[start:stop]):
                yield message
            self._rows_sent += stop - start
            start = stop
            if self._is_due(mid_row=True) and start < len(rows):
                # Before the message is sent: meanwhile another query could meet the fault too.
                fault = self._claim()
                broken = next(pieces(rows[start], _BROKEN_PIECE))
                yield self._message([broken], None, chunked=True)
                await meet(self._service, fault)
            await self._meet_faults()

    def _messages(self, rows: list[bytes], places: list[Place | None]) -> Iterator[bytes]:
        shape = self._service.shape
        whole: list[bytes] = []
        for row, place in zip(rows, places, strict=True):
            if len(row) > shape.chunk_bytes:
                if whole:
                    yield self._message(whole, None)
                    whole = []
                *first, last = pieces(row, shape.chunk_bytes)
                for piece in first:
                    yield self._message([piece], None, chunked=True)
                yield self._message([last], place)
                continue
            whole.append(row)
            if len(whole) >= shape.rows_per_message:
                yield self._message(whole, place)
                whole = []
        if whole:
            yield self._message(whole, places[-1])

    def _message(self, values: list[bytes], place: Place | None, chunked: bool = False) -> bytes:
        every = self._service.shape.resume_every
        self._messages_sent += 1
        token = b""
        # A message that ends in mid-row has no place: a client must not resume after half a row.
        if place is not None and every and self._messages_sent % every == 0:
            token = b"%d:%d" % place
        metadata = self._metadata if self._messages_sent == 1 else b""
        return wire.partial_result_set(values, metadata=metadata, chunked=chunked, resume_token=token)

    def _is_due(self, mid_row: bool) -> bool:
        """Return whether the next fault is one of that kind and its moment has come."""
        # Queries share their faults: another one may have met a fault since this query began.
        self._faults = [fault for fault in self._faults if fault.times > 0]
        due = bool(self._faults) and self._faults[0].after_rows <= self._rows_sent
        return due and self._faults[0].mid_row == mid_row

    async def _meet_faults(self) -> None:
        while self._is_due(mid_row=False):
            await meet(self._service, self._claim())

    def _claim(self) -> Fault:
        """Return the next fault, which no other query meets from now on."""
        fault = self._faults.pop(0)
        self._service.faults.happened(fault)
        return fault


async def meet(service: Service, fault: Fault) -> None:
    """Wait and fail as a fault says."""
    service.stats["faults"] += 1
    if fault.stall_seconds:
        await service.wait_until(service.clock.now() + int(fault.stall_seconds * SECOND))
    if fault.code:
        raise ServiceError(fault.code, fault.message)


def _place(resume_token: bytes) -> Place | None:
    if not resume_token:
        return None
    try:
        timestamp, sequence = resume_token.split(b":")
        return int(timestamp), int(sequence)
    except ValueError:
        raise invalid("Invalid resume token.") from None
