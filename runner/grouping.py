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
from typing import IO

Identity = tuple[bytes, bytes]
"""(encoded key, encoded window)."""


@dataclass(slots=True)
class Group:
    """Values of one key and window in order of arrival, each encoded so that it knows its own end.

    `first_us` and `last_us` are the lowest and highest timestamp seen, in µs.
    """

    chunks: list[bytes]
    first_us: int
    last_us: int


class Grouping:
    """Collects (key, window, timestamp, value), then hands out groups sorted by key and window."""

    def __init__(self, memory_bytes: int = 256 << 20, folder: str | None = None) -> None:
        self._memory_bytes = memory_bytes
        self._folder = folder
        self._groups: dict[Identity, Group] = {}
        self._held = 0
        self._files: list[IO[bytes]] = []

    def __bool__(self) -> bool:
        return bool(self._groups or self._files)

    def add(self, key: bytes, window: bytes, timestamp_us: int, value: bytes) -> None:
        """Add one encoded value."""
        identity = (key, window)
        group = self._groups.get(identity)
        if group is None:
            group = self._groups[identity] = Group([], timestamp_us, timestamp_us)
            self._held += len(key) + len(window) + 300
        elif timestamp_us < group.first_us:
            group.first_us = timestamp_us
        elif timestamp_us > group.last_us:
            group.last_us = timestamp_us
        group.chunks.append(value)
        self._held += len(value) + 60
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


_PART_VALUES = 10_000


def _parts(group: Group) -> Iterator[Group]:
    for start in range(0, len(group.chunks), _PART_VALUES):
        yield Group(group.chunks[start : start + _PART_VALUES], group.first_us, group.last_us)


def _read(file: IO[bytes]) -> Iterator[tuple[Identity, Group]]:
    file.seek(0)
    while True:
        try:
            entry: tuple[Identity, Group] = pickle.load(file)
        except EOFError:
            return
        yield entry
