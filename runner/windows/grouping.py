"""Groups encoded values by key and window: in memory while they fit, then in sorted files. Pure, except for the files.

`Grouping.groups` yields a group once, when all its values have arrived. Its values can be iterated many times. The
values of a group that was spilled are never in memory all at once.
"""

from __future__ import annotations

import heapq
import itertools
import os
import struct
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import IO, Any

from penstock.runner.store.scratch import scratch_folder

MEMORY_BYTES = 128 << 20
"""Memory of a grouping; then its values move to a file."""

Identity = tuple[bytes, bytes]
"""(encoded key, encoded window)."""


@dataclass(slots=True)
class Group:
    """Values of one key and window in order of arrival. Values have a nested encoding, which needs no length.

    A chunk is one value or several in a row. `count` is the number of values. `first_us` and `last_us` are the
    lowest and the highest timestamp, in µs.
    """

    chunks: list[bytes]
    first_us: int
    last_us: int
    count: int = 1

    def add(self, chunk: bytes, first_us: int, last_us: int, count: int = 1) -> None:
        """Append a chunk of `count` values with timestamps from `first_us` to `last_us`."""
        self.chunks.append(chunk)
        self.count += count
        if first_us < self.first_us:
            self.first_us = first_us
        if last_us > self.last_us:
            self.last_us = last_us


@dataclass(frozen=True, slots=True)
class CompleteGroup:
    """A key and window with all their values. `chunks` may be iterated many times.

    The values of a group that was spilled are read from disk at each iteration, about a megabyte at a time, in
    order of arrival. They can be read until the `Grouping` that yielded the group is closed.
    """

    key: bytes
    window: bytes
    first_us: int
    last_us: int
    chunks: Iterable[bytes]
    count: int


def write_group(
    stream: Any, key: bytes, window: bytes, first_us: int, last_us: int, count: int, values: bytes
) -> None:
    """Write a group to one of Beam's output streams, in the form in which it is sent to its task."""
    stream.write(key, True)
    stream.write(window, True)
    stream.write_bigendian_int64(first_us)
    stream.write_bigendian_int64(last_us)
    stream.write_var_int64(count)
    stream.write(values, True)


def read_group(stream: Any) -> tuple[bytes, bytes, int, int, int, bytes]:
    """Read the next group that `write_group` wrote: key, window, lowest and highest timestamp, count, values."""
    return (
        stream.read_all(True),
        stream.read_all(True),
        stream.read_bigendian_int64(),
        stream.read_bigendian_int64(),
        stream.read_var_int64(),
        stream.read_all(True),
    )


class Grouping:
    """Collects values by key and window, then yields groups."""

    def __init__(self, memory_bytes: int = MEMORY_BYTES, folder: str | None = None) -> None:
        self._memory_bytes = memory_bytes
        self._folder = folder
        self._groups: dict[Identity, Group] = {}
        self._held = 0
        self._files: list[IO[bytes]] = []

    def __bool__(self) -> bool:
        return bool(self._groups or self._files)

    def add(
        self, key: bytes, window: bytes, first_us: int, last_us: int, chunk: bytes, count: int = 1
    ) -> None:
        """Add a chunk of `count` encoded values with timestamps from `first_us` to `last_us`."""
        identity = (key, window)
        group = self._groups.get(identity)
        if group is None:
            self._groups[identity] = Group([chunk], first_us, last_us, count)
            # 300 and 60 are about what CPython 3.11 uses for the objects of a group (tuple, two keys, Group, list,
            # entry in the dict) and of a chunk. Too low an estimate would let the worker run out of memory before the
            # first spill.
            self._held += len(key) + len(window) + 300
        else:
            group.add(chunk, first_us, last_us, count)
        self._held += len(chunk) + 60
        if self._held > self._memory_bytes:
            self._spill()

    @property
    def spilled(self) -> bool:
        """Whether any values are on disk."""
        return bool(self._files)

    def groups(self) -> Iterator[CompleteGroup]:
        """Yield each group whole, sorted by key and window. All can be read until `close`."""
        if self._files:
            self._spill()
            yield from _merged(self._files)
        else:
            for key, window in sorted(self._groups):
                group = self._groups[key, window]
                yield CompleteGroup(key, window, group.first_us, group.last_us, group.chunks, group.count)

    def close(self) -> None:
        """Drop all groups and free the disk space."""
        for file in self._files:
            file.close()
        self._files, self._groups, self._held = [], {}, 0

    def _spill(self) -> None:
        folder = self._folder or scratch_folder()
        # The file has no name, so the system frees the space when the process ends, also if it is killed.
        file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115 - closed by `close`, read once all is in
        for identity in sorted(self._groups):
            _write_group(file, identity, self._groups[identity])
        file.flush()
        self._files.append(file)
        self._groups, self._held = {}, 0


_HEAD = struct.Struct(">IIqqQQ")
"""Head of a group in a file: length of key and window, lowest and highest timestamp, count, length of the parts."""
_LENGTH = struct.Struct(">I")
_PART_BYTES = 1 << 20
"""About the size of the parts in which a spilled group is written and read."""


@dataclass(frozen=True, slots=True)
class _SpilledGroup:
    """The part of a group that one file contains."""

    identity: Identity
    group: CompleteGroup


@dataclass(frozen=True, slots=True)
class _PartsOnDisk:
    """The parts of a group in a file, from `begin` to `end`, each with its length before it."""

    file: IO[bytes]
    begin: int
    end: int

    def __iter__(self) -> Iterator[bytes]:
        at = self.begin
        while at < self.end:
            (length,) = _LENGTH.unpack(_read_at(self.file, at, _LENGTH.size))
            yield _read_at(self.file, at + _LENGTH.size, length)
            at += _LENGTH.size + length


class _Chain:
    """Several iterables of chunks one after the other; may be iterated many times."""

    def __init__(self, links: list[Iterable[bytes]]) -> None:
        self._links = links

    def __iter__(self) -> Iterator[bytes]:
        return itertools.chain.from_iterable(self._links)


def unite_groups(key: bytes, window: bytes, groups: list[CompleteGroup]) -> CompleteGroup:
    """Return several groups of one key as one group of `window`, whose values are read one group after the other."""
    first_us = min(group.first_us for group in groups)
    last_us = max(group.last_us for group in groups)
    count = sum(group.count for group in groups)
    return CompleteGroup(key, window, first_us, last_us, _Chain([group.chunks for group in groups]), count)


def _write_group(file: IO[bytes], identity: Identity, group: Group) -> None:
    key, window = identity
    parts = list(joined_chunks(group.chunks))
    length = sum(len(part) + _LENGTH.size for part in parts)
    head = _HEAD.pack(len(key), len(window), group.first_us, group.last_us, group.count, length)
    file.write(head + key + window)
    for part in parts:
        file.write(_LENGTH.pack(len(part)))
        file.write(part)


def joined_chunks(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Join chunks into larger ones of about a megabyte; each value knows its own end, so any may be joined."""
    waiting: list[bytes] = []
    size = 0
    for chunk in chunks:
        waiting.append(chunk)
        size += len(chunk)
        if size >= _PART_BYTES:
            yield b"".join(waiting)
            waiting, size = [], 0
    if waiting:
        yield b"".join(waiting)


def _merged(files: list[IO[bytes]]) -> Iterator[CompleteGroup]:
    # `heapq.merge` is stable, and the files are in the order of their spills, so the values of a key stay in order of
    # arrival.
    merged = heapq.merge(*map(_heads, files), key=lambda spilled: spilled.identity)
    for (key, window), same in itertools.groupby(merged, key=lambda spilled: spilled.identity):
        yield unite_groups(key, window, [spilled.group for spilled in same])


def _heads(file: IO[bytes]) -> Iterator[_SpilledGroup]:
    """Yield the groups of a file in its order. The values of large ones are not read."""
    file.seek(0)
    while head := file.read(_HEAD.size):
        key_length, window_length, first_us, last_us, count, length = _HEAD.unpack(head)
        names = file.read(key_length + window_length)
        identity = (names[:key_length], names[key_length:])
        parts: Iterable[bytes]
        if length <= _PART_BYTES:  # then it is one part
            parts, end = [file.read(length)[_LENGTH.size :]], file.tell()
        else:
            end = file.tell() + length
            parts = _PartsOnDisk(file, file.tell(), end)
        yield _SpilledGroup(identity, CompleteGroup(*identity, first_us, last_us, parts, count))
        # Return to the stored position, because the consumer may have read from the file.
        file.seek(end)


def _read_at(file: IO[bytes], at: int, length: int) -> bytes:
    """Read without moving the file's position: several iterators may read one file at the same time."""
    found = bytearray()
    while len(found) < length:
        data = os.pread(file.fileno(), length - len(found), at + len(found))
        if not data:
            raise EOFError("a file of spilled groups is shorter than it was written: is the disk full?")
        found += data
    return bytes(found)
