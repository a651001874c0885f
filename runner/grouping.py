"""Groups of encoded values by key and window: in memory while they fit, then in sorted files. Pure.

A group is handed out once, when everything that belongs to it has arrived; its values can be iterated again
and again, and a group of any size is never held whole once it has been spilled.
"""

from __future__ import annotations

import heapq
import itertools
import os
import pickle
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO, Any

Identity = tuple[bytes, bytes]
"""(encoded key, encoded window)."""


@dataclass(slots=True)
class Group:
    """Values of one key and window in order of arrival, each encoded so that it knows its own end.

    A chunk is one value or several in a row; `first_us` and `last_us` are the lowest and highest timestamp
    seen, in µs.
    """

    chunks: list[bytes]
    first_us: int
    last_us: int

    def add(self, chunk: bytes, first_us: int, last_us: int) -> None:
        """Append a chunk whose values have timestamps from `first_us` to `last_us`."""
        self.chunks.append(chunk)
        if first_us < self.first_us:
            self.first_us = first_us
        if last_us > self.last_us:
            self.last_us = last_us

    def extend(self, later: Group) -> None:
        """Append what came later."""
        self.chunks += later.chunks
        self.first_us = min(self.first_us, later.first_us)
        self.last_us = max(self.last_us, later.last_us)


def write_group(stream: Any, key: bytes, window: bytes, group: Group) -> None:
    """Write a group, one value a chunk, to one of Beam's output streams, as it travels to its task."""
    stream.write(key, True)
    stream.write(window, True)
    stream.write_bigendian_int64(group.first_us)
    stream.write_bigendian_int64(group.last_us)
    stream.write_var_int64(len(group.chunks))
    stream.write(b"".join(group.chunks), True)


def read_group(stream: Any) -> tuple[bytes, bytes, int, int, int, bytes]:
    """The next of what `write_group` wrote: key, window, lowest and highest timestamp, count, values."""
    return (
        stream.read_all(True),
        stream.read_all(True),
        stream.read_bigendian_int64(),
        stream.read_bigendian_int64(),
        stream.read_var_int64(),
        stream.read_all(True),
    )


class Grouping:
    """Collects values by key and window, then hands out groups sorted by key and window."""

    def __init__(self, memory_bytes: int = 256 << 20, folder: str | None = None) -> None:
        self._memory_bytes = memory_bytes
        self._folder = folder
        self._groups: dict[Identity, Group] = {}
        self._held = 0
        self._files: list[IO[bytes]] = []

    def __bool__(self) -> bool:
        return bool(self._groups or self._files)

    def add(self, key: bytes, window: bytes, first_us: int, last_us: int, chunk: bytes) -> None:
        """Add a chunk of encoded values with timestamps from `first_us` to `last_us`."""
        identity = (key, window)
        group = self._groups.get(identity)
        if group is None:
            self._groups[identity] = Group([chunk], first_us, last_us)
            self._held += len(key) + len(window) + 300
        else:
            group.add(chunk, first_us, last_us)
        self._held += len(chunk) + 60
        if self._held > self._memory_bytes:
            self._spill()

    def groups(self) -> Iterator[tuple[bytes, bytes, Iterator[Group]]]:
        """Yield (key, window, parts) with all parts of a group in order of arrival; then forget everything.

        The parts of a group must be taken before the next group is asked for.
        """
        if not self._files:
            for (key, window), group in self._groups.items():
                yield key, window, iter([group])
        else:
            self._spill()
            runs = [_read(file) for file in self._files]
            merged = heapq.merge(*runs, key=lambda entry: entry[0])
            for (key, window), parts in itertools.groupby(merged, key=lambda entry: entry[0]):
                yield key, window, (group for _, group in parts)
        self.close()

    def close(self) -> None:
        """Forget everything and give the disk back."""
        for file in self._files:
            file.close()
        self._files, self._groups, self._held = [], {}, 0

    def _spill(self) -> None:
        folder = self._folder or os.environ.get("SPARK_LOCAL_DIRS", "").split(",")[0] or None
        file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115 - closed by `close`, read once all is in
        for identity in sorted(self._groups):
            for part in _parts(self._groups[identity]):
                pickle.dump((identity, part), file, pickle.HIGHEST_PROTOCOL)
        self._files.append(file)
        self._groups, self._held = {}, 0


_PART_BYTES = 1 << 20
"""About the size of a part in a file; the merge holds one part of each file."""


def _parts(group: Group) -> Iterator[Group]:
    chunks, size = [], 0
    for chunk in group.chunks:
        chunks.append(chunk)
        size += len(chunk) + 60
        if size >= _PART_BYTES:
            yield Group(chunks, group.first_us, group.last_us)
            chunks, size = [], 0
    if chunks:
        yield Group(chunks, group.first_us, group.last_us)


def _read(file: IO[bytes]) -> Iterator[tuple[Identity, Group]]:
    file.seek(0)
    while True:
        try:
            entry: tuple[Identity, Group] = pickle.load(file)
        except EOFError:
            return
        yield entry
