"""The files of a parked table: the changes that its target has refused, by the epoch that brought them. No Beam.

    <staging>/…/<sink>/g<generation>_e<epoch>_<index>_<nonce>.parked      blocks, the oldest first
    block                      length (u32, big-endian), generation, epoch, drivers and events of one epoch (msgpack)

A file is never changed. New changes are written as a new file, together with the last files as long as these are at
most twice as long. So the number of files grows with the logarithm of the number of epochs until files are `FILE_BYTES`
long, and each change is copied a few times.

A change is an event. In a change log it is a data file that a task has written; see `ChangeCodec`.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import chain, groupby
from typing import Any

import msgspec

from penstock.attempt import Attempt, DriverToken
from penstock.errors import UsageError
from penstock.event.coder import decode_event, encode_event
from penstock.event.model import ChangeEvent, Op, Source, Version
from penstock.io.staging.delivery import LedgerEntry
from penstock.io.staging.epochs import EpochDelivery
from penstock.io.staging.errors import OutputError
from penstock.io.staging.names import staged_in, staged_name, staging_folder
from penstock.io.staging.store import FileStore
from penstock.parked import ParkedTable

FILE_BYTES = 16 << 20
"""Length from which a file gets no more changes. It is read at once, and becomes one commit."""
_SUFFIX = ".parked"
_LENGTH = struct.Struct(">I")


@dataclass(frozen=True, slots=True)
class ChangeCodec:
    """How the changes of parked tables are encoded. Each change has a `source` and a `schema`.

    `weigh` returns how many events a change has, and how many bytes outside of the files of this module. `truncation`
    returns the change that removes all rows up to an event; None if a target of these changes removes nothing.
    """

    encode: Callable[[Any], bytes]
    decode: Callable[[bytes], Any]
    weigh: Callable[[Any], tuple[int, int]]
    truncation: Callable[[ChangeEvent], Any] | None = None


def _truncation(event: ChangeEvent) -> ChangeEvent:
    return ChangeEvent(
        event.source, Op.TRUNCATE, event.timestamp, None, None, None, event.version, event.schema
    )


EVENTS = ChangeCodec(encode_event, decode_event, lambda event: (1, 0), _truncation)


@dataclass(frozen=True, slots=True)
class EpochChanges:
    """The events of one table in one epoch, in the order of their versions, or what a `ChangeCodec` encodes."""

    delivery: EpochDelivery
    events: Sequence[Any]


@dataclass(frozen=True, slots=True)
class TableEpochs:
    """What one commit gives to the table `name` of the target: one epoch, or several that were parked, oldest first.

    `current` is the delivery that the driver would make now; None if that is the newest of `epochs`.
    """

    name: str
    source: Source
    epochs: tuple[EpochChanges, ...]
    current: EpochDelivery | None = None

    @property
    def newest(self) -> EpochDelivery:
        """The delivery that stands for all of them in the ledger of the table."""
        return self.epochs[-1].delivery

    def is_delivered(self, ledger: LedgerEntry | None) -> bool:
        """Return whether a table has all epochs, from the writer's entry in its ledger.

        Raises:
            LedgerConflictError: the entry is not of the history of this checkpoint.
        """
        # Not by the newest of parked epochs: a try that was not committed may have written these and then changes of a
        # later driver, which for the parked epoch alone would be of another history.
        if (self.current or self.newest).is_delivered(ledger):
            return True
        return ledger is not None and _position(self.newest) <= (ledger.generation, ledger.epoch)

    @property
    def events(self) -> list[ChangeEvent]:
        """The events of all epochs."""
        return self.after(None)

    def after(self, ledger: LedgerEntry | None) -> list[ChangeEvent]:
        """Return the events of the epochs that a table does not have yet, from the writer's entry in its ledger.

        The entry is of this history; see `is_delivered`.
        """
        # As in one epoch: the events of several readers are in the order of their versions.
        return sorted(self.missing(ledger), key=_version_of)

    def missing(self, ledger: LedgerEntry | None) -> list[Any]:
        """Return the changes of the epochs that a table does not have yet, in the order of the epochs."""
        known = (0, 0) if ledger is None else (ledger.generation, ledger.epoch)
        missing = [each for each in self.epochs if _position(each.delivery) > known]
        return list(chain.from_iterable(each.events for each in missing))


class ParkedFile(msgspec.Struct, frozen=True, array_like=True):
    """One file. `length` is in bytes, `crc32` covers the content, `changes` counts the events.

    `held`: bytes outside of the file that its changes keep.
    """

    name: str
    length: int
    crc32: int
    changes: int
    held: int = 0

    @property
    def weight(self) -> int:
        """All bytes that wait because of the file."""
        return self.length + self.held


class _Block(msgspec.Struct, frozen=True, array_like=True):
    generation: int
    epoch: int
    drivers: tuple[DriverToken, ...]
    events: list[bytes]


class ParkedFiles:
    """Reads and writes the files of the parked tables of one sink."""

    def __init__(self, store: FileStore, sink: str, codec: ChangeCodec = EVENTS) -> None:
        self._store, self._sink, self._codec = store, sink, codec

    def with_changes(
        self, parked: ParkedTable, changes: EpochChanges, attempt: Attempt, index: int
    ) -> ParkedTable:
        """Return a table with the changes of one more epoch, which are written as a file.

        `index` is used once in an attempt.

        Raises:
            OutputError: the store refused.
        """
        files = list(files_of(parked))
        content, weights = self._encoded(changes), list(map(self._codec.weigh, changes.events))
        count, held = sum(each for each, _ in weights), sum(each for _, each in weights)
        while (
            files
            and files[-1].length <= 2 * len(content)
            and files[-1].weight + len(content) + held <= FILE_BYTES
        ):
            # The old file stays until a record without it is committed; see `clean_up`.
            last = files.pop()
            content, count, held = self._read(last) + content, last.changes + count, last.held + held
        name = staged_name(self._sink, attempt, index) + _SUFFIX
        self._store.create(name, [content])
        self._store.sync([name])
        files.append(ParkedFile(name, len(content), zlib.crc32(content), count, held))
        return with_files(parked, files)

    def read(self, parked: ParkedTable, file: ParkedFile, attempt: Attempt) -> list[TableEpochs]:
        """Return the changes of a file as commits: epochs whose events have the same columns are one.

        Events with other columns may be refused although each epoch alone is not.
        """
        job = attempt.job
        current = EpochDelivery(self._sink, job, attempt.generation, attempt.epoch, attempt.drivers)
        blocks = [_decode_block(block) for block in _blocks(self._read(file))]
        epochs = [
            EpochChanges(
                EpochDelivery(self._sink, job, each.generation, each.epoch, each.drivers),
                self._decoded(parked, each.events),
            )
            for each in blocks
        ]
        return [
            TableEpochs(parked.name, each[0].events[0].source, tuple(each), current)
            for _, group in groupby(epochs, key=_schemas)
            for each in [list(group)]
        ]

    def truncation(self, parked: ParkedTable, attempt: Attempt) -> TableEpochs | None:
        """Return a commit that removes the rows of a table, in place of its parked changes.

        None: a target of such changes removes no rows.
        """
        if self._codec.truncation is None:
            return None
        # Not the last event: with several readers it need not have the highest version.
        parts = chain.from_iterable(self.read(parked, file, attempt) for file in files_of(parked))
        last = next(parts)
        event = max(last.events, key=_version_of)
        for last in parts:
            event = max(event, *last.events, key=_version_of)
        return replace(last, epochs=(EpochChanges(last.newest, [self._codec.truncation(event)]),))

    def clean_up(self, job: str, upto: tuple[int, int], parked: Iterable[ParkedTable]) -> None:
        """Delete the files of `job` at or before (generation, epoch) `upto` that no table in `parked` has."""
        self._store.delete(self.unnamed(job, upto, parked))

    def unnamed(self, job: str, upto: tuple[int, int], parked: Iterable[ParkedTable]) -> list[str]:
        """Return the names of the files that `clean_up` deletes."""
        keep = {file.name for each in parked for file in files_of(each)}
        origins = {name: staged_in(name.removesuffix(_SUFFIX)) for name in self.names(job)}
        return [
            name
            for name, origin in origins.items()
            if origin is not None and origin <= upto and name not in keep
        ]

    def names(self, job: str) -> list[str]:
        """Return the names of all files of `job`, also of tries that were not committed."""
        return [
            name for name in self._store.names_in(staging_folder(job, self._sink)) if name.endswith(_SUFFIX)
        ]

    def changes_in(self, names: Collection[str]) -> Iterator[Any]:
        """Yield the changes in files, of which some may not be whole: a process died while it wrote them."""
        for name in names:
            # No record names a file that is not whole, and its changes are published or parked again.
            with suppress(msgspec.DecodeError, struct.error):
                for block in _blocks(self._store.read(name)):
                    yield from map(self._codec.decode, _decode_block(block).events)

    def _decoded(self, parked: ParkedTable, events: Sequence[bytes]) -> list[Any]:
        try:
            return list(map(self._codec.decode, events))
        except (msgspec.DecodeError, ValueError):
            # The file has its checksum, so it is whole.
            raise UsageError(
                f"{parked.source} was parked while the sink had another mode: give it the mode that it had, and "
                "resume or skip the table first (penstock tables)"
            ) from None

    def _encoded(self, changes: EpochChanges) -> bytes:
        delivery = changes.delivery
        events = list(map(self._codec.encode, changes.events))
        block = msgspec.msgpack.encode(_Block(delivery.generation, delivery.epoch, delivery.drivers, events))
        return _LENGTH.pack(len(block)) + block

    def _read(self, file: ParkedFile) -> bytes:
        content = self._store.read(file.name)
        if len(content) != file.length or zlib.crc32(content) != file.crc32:
            raise OutputError(
                f"the file {file.name} in {self._store.output} is not what was parked (length or checksum). Restore "
                "the file, then resume the pipeline"
            )
        return content


def files_of(parked: ParkedTable) -> tuple[ParkedFile, ...]:
    """Return the files of a table, the oldest first."""
    return _decode_files(parked.files) if parked.files else ()


def with_files(parked: ParkedTable, files: Sequence[ParkedFile]) -> ParkedTable:
    """Return a table with other files."""
    return replace(
        parked,
        files=msgspec.msgpack.encode(files),
        changes=sum(each.changes for each in files),
        size=sum(each.weight for each in files),
    )


def _blocks(content: bytes) -> Iterator[bytes]:
    start = 0
    while start < len(content):
        (length,) = _LENGTH.unpack_from(content, start)
        start += _LENGTH.size
        yield content[start : start + length]
        start += length


def _position(delivery: EpochDelivery) -> tuple[int, int]:
    return delivery.generation, delivery.epoch


def _version_of(event: ChangeEvent) -> Version:
    return event.version


def _schemas(epoch: EpochChanges) -> frozenset[object]:
    return frozenset(event.schema for event in epoch.events)


_decode_files = msgspec.msgpack.Decoder(tuple[ParkedFile, ...]).decode
_decode_block = msgspec.msgpack.Decoder(_Block).decode
