"""Keyed state of one stage in one task attempt: a write buffer above sorted, immutable runs.

This is a small log-structured merge tree. A read looks into the buffer, then into the runs from the newest to the
oldest. The first one that contains the key wins. `seal` writes the changes as at most one new run. It also merges the
newest runs into it, as long as they are not much larger than the data to write (size-tiered compaction). So n sealed
bytes are rewritten O(log n) times, there are O(log n) runs, and all runs together are at most about three times as
large as the live data. A tombstone (the entry of a deleted key) is dropped when no older run contains its key. Until
then it counts as many bytes as the value that it hides. A run of large entries waits until several can be merged at
once: a sink writes its open file as large entries and deletes them soon, mostly before a merge would have helped.

A buffer that grows too large moves to a scratch file, and large runs are merged through one, so a store of any size
needs little memory. No record names a sealed run until the driver commits. A failed attempt leaves unused files only.
"""

from __future__ import annotations

import bisect
import contextlib
import itertools
import zlib
from collections.abc import Iterator, Sequence

from penstock.runner.protocol.names import RunName
from penstock.runner.protocol.record import StateRun
from penstock.runner.store.filesystem import FileSystem, LocalFileSystem
from penstock.runner.store.merged_entries import live_entries, newest_entries, newest_value
from penstock.runner.store.run_bounds import (
    age_of,
    bounds_of,
    check_order,
    counted_bounds,
    counted_bytes,
    intersection,
    limit_to,
    may_contain,
    overlaps,
)
from penstock.runner.store.runs import (
    GROUP_BYTES,
    Bounds,
    Entry,
    FileRunBuilder,
    Run,
    RunBuilder,
    RunCache,
    key_of,
    run_key,
    shared_cache,
)

TIER = 2
"""A run is merged if it is at most this many times as large as everything newer than it."""

LARGE_BYTES = 64 << 20
"""A run that may become larger than this is built in a scratch file instead of memory."""

SPILL_BYTES = 64 << 20
"""Maximum memory of the buffer. Beyond it, the entries move to a scratch file."""

LARGE_ENTRY_BYTES = 16 << 10
"""Entries of this mean size are large at half of `SPILL_BYTES` and a quarter of `LARGE_BYTES`. The limits are high for
small entries: each scratch file makes look-ups slower, and files are slower to merge. For few large ones neither is so.
"""

LARGE_RUNS = 8
"""Runs of large entries are merged when there are so many that would be merged. There are few look-ups for the bytes
that such runs hold, so more runs cost little.
"""

_SPILLED_CACHE_KIB = 256
"""Memory of a scratch file for its pages: little, because a large bundle has many of these files."""

_ENTRY_BYTES = 200
"""Memory that CPython 3.11 uses for a buffer entry besides its bytes: two `bytes` objects and an entry in the dict."""

_INSERTIONS = 500
"""Number of new keys between two scans after which the sorted list of keys is dropped."""

SMALL_BYTES = 64 << 10
"""Minimum size that the new run counts as: merging small runs is cheaper than reading many of them."""


_EVERYTHING: Bounds = (b"", b"\xff" * (GROUP_BYTES + 1))
"""Bounds of all run keys: a key group is below 32768."""


class StateStore:
    """The state of key groups `first` to `last` (inclusive) of one stage. Not for several threads."""

    def __init__(
        self,
        filesystem: FileSystem,
        folder: str,
        runs: Sequence[StateRun],
        first: int,
        last: int,
        cache: RunCache,
    ) -> None:
        self._filesystem = filesystem
        self._folder = folder
        self._runs = list(runs)
        self._first = first
        self._last = last
        self._cache = cache
        # A dict, and a sorted list of its keys that is made at the first scan. Most tasks only get and put, and a
        # sorted container would slow down each put.
        self._buffer: dict[bytes, bytes | None] = {}
        self._sorted: list[bytes] | None = None
        self._inserted = 0
        self._held = 0
        """Estimated memory of the buffer. Too high if keys were written several times."""
        self._spilled: list[Run] = []
        """Scratch files with earlier contents of the buffer, oldest first."""
        self._spilled_keys: list[frozenset[bytes] | None] = []
        """The keys of each of them; None if it has many small entries."""
        self._hidden_by_spilled = 0
        self._spill_bytes = SPILL_BYTES
        self._opened: dict[str, Run] = {}

    @classmethod
    def open(
        cls,
        filesystem: FileSystem,
        folder: str,
        runs: Sequence[StateRun],
        first: int,
        last: int,
        *,
        cache: RunCache | None = None,
    ) -> StateStore:
        """Open the state that `runs`, all of one stage and in any order, hold for key groups first to last.

        Runs of other key groups are ignored. From a run with more key groups, only these are read. Files are opened at
        their first read. `folder` is `Checkpoint.state_folder`; the default `cache` is the process's.

        Raises:
            ValueError: the runs are of several stages.
            CheckpointError: the runs contradict each other.
        """
        if len({run.stage for run in runs}) > 1:
            raise ValueError(f"runs of several stages: {sorted({run.stage for run in runs})}")
        limited = [limit_to(run, first, last) for run in runs if overlaps(run, first, last)]
        limited.sort(key=age_of)
        check_order(limited)
        return cls(filesystem, folder, limited, first, last, cache or shared_cache())

    @classmethod
    def temporary(cls, first: int, last: int) -> StateStore:
        """Return an empty store that is never sealed. It ends with its process."""
        return cls(LocalFileSystem(), "", [], first, last, shared_cache())

    @property
    def runs(self) -> tuple[StateRun, ...]:
        """The runs that hold the sealed state of these key groups, oldest first."""
        return tuple(self._runs)

    def get(self, key_group: int, key: bytes) -> bytes | None:
        """Return the value of a key; None if there is none.

        Raises:
            RunMissingError, CheckpointError: a run cannot be read; all methods that read may raise this.
        """
        wanted = self._key(key_group, key)
        # Test with `in`, because None in the buffer means that the key is deleted.
        if wanted in self._buffer:
            return self._buffer[wanted]
        return newest_value(self._stored(wanted), wanted, Run.get)

    def put(self, key_group: int, key: bytes, value: bytes) -> None:
        """Set the value of a key."""
        self._write(self._key(key_group, key), value)

    def delete(self, key_group: int, key: bytes) -> None:
        """Delete a key. A missing key is not an error."""
        self._write(self._key(key_group, key), None)

    def clear(self, key_group: int, prefix: bytes = b"") -> int:
        """Delete all keys of a key group that begin with `prefix`; return their number."""
        keys = [key for _, key, _ in self.scan(key_group, key_group, prefix)]
        for key in keys:
            self.delete(key_group, key)
        return len(keys)

    def scan(
        self,
        first: int,
        last: int,
        prefix: bytes = b"",
        stop: bytes | None = None,
    ) -> Iterator[tuple[int, bytes, bytes]]:
        """Yield (key group, key, value) of all keys that begin with `prefix` and are below `stop`, ascending.

        `first` and `last` are inclusive; `stop` is exclusive and None means no limit. The scan sees the state at the
        time of the call, so the caller may write during the iteration.
        """
        self._key(first, b""), self._key(last, b"")
        # One pair of bounds for each key group: the prefix comes after the key group, so its keys are not adjacent.
        bounds = [bounds_of(group, prefix, stop) for group in range(first, last + 1)]
        # A scan of everything needs one pair of bounds instead of one per key group.
        if not prefix and stop is None:
            bounds = [(bounds[0][0], bounds[-1][1])]
        buffered = [entry for pair in bounds for entry in self._snapshot(*pair)]
        spilled = [run.scan(within) for run, within in self._spilled_within(bounds)]
        sealed = [opened.scan(within) for opened, within in self._runs_within(bounds)]
        return live_entries(buffered, spilled + sealed)

    def first_keys(self, first: int, last: int, prefix: bytes) -> Iterator[tuple[int, bytes]]:
        """Yield (key group, key) of the first key with `prefix` of each key group, `first` to `last` (inclusive)."""
        self._key(first, b""), self._key(last, b"")
        bounds = [bounds_of(group, prefix, None) for group in range(first, last + 1)]
        found: dict[bytes, Entry] = {}
        entries = [
            entry
            for opened, within in reversed(self._runs_within(bounds))
            for entry in opened.first_keys(within)
        ]
        entries += [
            entry
            for run, within in reversed(self._spilled_within(bounds))
            for entry in run.first_keys(within)
        ]
        entries += [entry for pair in bounds for entry in self._snapshot(*pair, limit=1)]
        for entry in entries:  # oldest first, so that the newer of two equal keys wins
            group = entry[0][:GROUP_BYTES]
            if group not in found or entry[0] <= found[group][0]:
                found[group] = entry
        # If the first key of a group is deleted, only a scan finds the next one.
        for key, value in found.values():
            key_group, name = key_of(key)
            if value is not None:
                yield key_group, name
            else:
                for _, alive, _ in self.scan(key_group, key_group, prefix):
                    yield key_group, alive
                    break

    def seal(self, name: RunName) -> tuple[StateRun, ...]:
        """Write the changes since the store was opened or sealed, durably, as at most one run.

        Returns the runs that now contain the state of these key groups, for the commit record. Without changes they
        are the previous ones, and no file is written. `name` must be new for these key groups.

        Raises:
            OSError: the file could not be written; nothing has changed. (FileExistsError: the name was used before.)
        """
        # Do this first: a store whose only changes are deletions of missing keys must write no file.
        hidden = self._drop_void_tombstones() + self._hidden_by_spilled
        if not self._buffer and not self._spilled:
            return self.runs
        # Invariant: until the new file is durable, a read finds the same values as before. So an error here leaves a
        # store that can be sealed again, and a task that was repeated by Spark writes a file under another name.
        kept, taken = self._choose_runs_to_merge(hidden)
        large = self._spilled or self._is_large(taken)
        added = self._merge_on_disk(kept, taken, name) if large else self._merge_in_memory(kept, taken, name)
        self._runs = kept + added
        self._buffer, self._sorted, self._held = {}, None, 0
        self._spilled, self._spilled_keys, self._hidden_by_spilled = [], [], 0
        return self.runs

    def _is_large(self, taken: Sequence[StateRun]) -> bool:
        entries = len(self._buffer) + sum(run.entries for run in taken)
        size = self._buffered_bytes() + sum(run.size for run in taken)
        return size > (LARGE_BYTES // 4 if size >= entries * LARGE_ENTRY_BYTES else LARGE_BYTES)

    def _key(self, key_group: int, key: bytes) -> bytes:
        if not self._first <= key_group <= self._last:
            raise ValueError(f"key group {key_group} is not among {self._first} to {self._last} (inclusive)")
        return run_key(key_group, key)

    def _write(self, key: bytes, value: bytes | None) -> None:
        if self._sorted is not None and key not in self._buffer:
            # Each insertion moves half of the list. Sorting it again at the next scan is cheaper than many of them.
            self._inserted += 1
            if self._inserted > _INSERTIONS:
                self._sorted = None
            else:
                bisect.insort(self._sorted, key)
        self._buffer[key] = value
        self._held += _ENTRY_BYTES + len(key) + (len(value) if value else 0)
        # The first comparison is for speed: it is false for most writes.
        if self._held > self._spill_bytes // 2 and self._held > self._max_held():
            self._spill()

    def _max_held(self) -> int:
        return self._spill_bytes // 2 if self._has_large_entries() else self._spill_bytes

    def _has_large_entries(self) -> bool:
        return self._held >= len(self._buffer) * LARGE_ENTRY_BYTES

    def _spill(self) -> None:
        """Move the buffer to a scratch file, unless its memory was overestimated."""
        self._held = self._buffered_bytes() + len(self._buffer) * _ENTRY_BYTES
        if self._held <= self._max_held() // 2:
            return
        self._hidden_by_spilled += self._drop_void_tombstones()
        builder = FileRunBuilder(self._held // len(self._buffer)) if self._buffer else None
        if builder is not None:
            try:
                builder.add(sorted(self._buffer.items()))
            except BaseException:
                builder.close()
                raise
            self._spilled.append(builder.opened(_SPILLED_CACHE_KIB))
            self._spilled_keys.append(frozenset(self._buffer) if self._has_large_entries() else None)
        self._buffer, self._sorted, self._held = {}, None, 0

    def _stored(self, key: bytes) -> Iterator[Run]:
        """Yield, newest first, the spilled and sealed runs that may contain a run key."""
        spilled = (
            run
            for run, keys in zip(reversed(self._spilled), reversed(self._spilled_keys), strict=True)
            if keys is None or key in keys
        )
        return itertools.chain(spilled, self._runs_with_group(self._runs, key))

    def _open(self, run: StateRun) -> Run:
        opened = self._opened.get(run.name)
        # Keep a reference here too: the cache may drop a run while this store still reads it.
        if opened is None:
            opened = self._cache.open(self._filesystem, f"{self._folder}/{run.name}", run)
            self._opened[run.name] = opened
        return opened

    def _runs_with_group(self, runs: Sequence[StateRun], key: bytes) -> Iterator[Run]:
        """Yield, newest first, the runs that contain the key group of a run key. Each is opened when it is reached."""
        key_group = key_of(key)[0]
        for run in reversed(runs):
            if run.first_key_group <= key_group <= run.last_key_group:
                opened = self._open(run)
                if key_group in opened.key_groups:
                    yield opened

    def _runs_within(self, bounds: Sequence[Bounds]) -> list[tuple[Run, list[Bounds]]]:
        """Open, newest first, the runs that may contain keys within the bounds; each with those bounds."""
        held = []
        for run in reversed(self._runs):
            whole = counted_bounds(run)
            if bounds[0][0] < whole[1] and whole[0] < bounds[-1][1]:
                opened = self._open(run)
                if within := [
                    intersection(pair, whole) for pair in bounds if may_contain(pair, whole, opened)
                ]:
                    held.append((opened, within))
        return held

    def _spilled_within(self, bounds: Sequence[Bounds]) -> list[tuple[Run, list[Bounds]]]:
        """Return, newest first, the spilled runs that may contain keys within the bounds; each with those bounds."""
        # A spilled run often has the entries of one key group. To look for each of a thousand groups in it cost more
        # than all other work of a sink with large blocks: a scratch file has almost no cache.
        held = [
            (run, [pair for pair in bounds if may_contain(pair, _EVERYTHING, run)])
            for run in reversed(self._spilled)
        ]
        return [(run, within) for run, within in held if within]

    def _snapshot(self, lower: bytes, upper: bytes, limit: int | None = None) -> list[Entry]:
        if self._sorted is None:
            self._sorted = sorted(self._buffer)
        self._inserted = 0
        begin = bisect.bisect_left(self._sorted, lower)
        end = bisect.bisect_left(self._sorted, upper, begin)
        if limit is not None:
            end = min(end, begin + limit)
        return [(key, self._buffer[key]) for key in self._sorted[begin:end]]

    def _drop_void_tombstones(self) -> int:
        """Drop deletions of keys that no run contains; return the bytes of values that the other deletions hide."""
        hidden = 0
        # A timer that is set and cleared within an epoch leaves such a tombstone. If they were kept, each epoch of such
        # a pipeline would write a run.
        for key in [key for key, value in self._buffer.items() if value is None]:
            length = newest_value(self._stored(key), key, Run.length)
            if length is None:
                del self._buffer[key]
            else:
                hidden += length
        self._sorted = None
        return hidden

    def _choose_runs_to_merge(self, hidden: int) -> tuple[list[StateRun], list[StateRun]]:
        """Return the runs that stay as they are, and the newest ones that are merged into the next run."""
        written = self._buffered_bytes() + sum(map(Run.size, self._spilled))
        weight = max(SMALL_BYTES, written + hidden)
        split = len(self._runs)
        # The weight includes the bytes that tombstones hide. So a run that deletes much is merged with the run from
        # which it deletes, and the space is freed.
        while split and counted_bytes(self._runs[split - 1]) <= TIER * weight:
            split -= 1
            weight += counted_bytes(self._runs[split]) + self._runs[split].hides
        kept, taken = self._runs[:split], self._runs[split:]
        return (self._runs, []) if self._may_wait(taken, written, hidden) else (kept, taken)

    def _may_wait(self, taken: Sequence[StateRun], written: int, hidden: int) -> bool:
        """Return whether runs are not merged yet: the next run has large entries, and a merge would free little."""
        if not 0 < len(taken) < LARGE_RUNS or hidden + sum(run.hides for run in taken) > written:
            return False
        entries = len(self._buffer) + sum(map(Run.count, self._spilled))
        return written + hidden >= entries * LARGE_ENTRY_BYTES

    def _buffered_bytes(self) -> int:
        return sum(len(key) + len(value or b"") for key, value in self._buffer.items())

    def _merge_in_memory(
        self, kept: Sequence[StateRun], taken: Sequence[StateRun], name: RunName
    ) -> list[StateRun]:
        """Write the buffer and the runs `taken` as one run."""
        builder = self._builder(taken)
        hides = self._drop_unneeded_tombstones(builder, kept)
        return self._write_run(builder, name, hides) if builder.count() else []

    def _merge_on_disk(
        self, kept: Sequence[StateRun], taken: Sequence[StateRun], name: RunName
    ) -> list[StateRun]:
        """Write the buffer, its spilled parts and the runs `taken` as one run, through a scratch file.

        Entries pass through memory one by one.
        """
        # Newest first, as `_newest_of_each` expects: the buffer, then its spilled parts, then sealed runs.
        spilled = [run.scan([_EVERYTHING]) for run in reversed(self._spilled)]
        sealed = [self._open(run).scan([counted_bounds(run)]) for run in reversed(taken)]
        needed = _NeededEntries(self, kept, newest_entries([sorted(self._buffer.items()), *spilled, *sealed]))
        with contextlib.closing(FileRunBuilder(self._mean_entry(taken))) as builder:
            builder.add(needed)
            if not builder.entries:
                return []
            size, checksum = builder.finish()
            file_name = name.file_name(self._first, self._last)
            self._filesystem.write_file(f"{self._folder}/{file_name}", builder.path)
        groups = (self._first, self._last)
        return [StateRun(name.stage, file_name, *groups, builder.entries, size, checksum, needed.hides)]

    def _mean_entry(self, taken: Sequence[StateRun]) -> int:
        sizes = [(run.size, run.entries) for run in taken]
        sizes += [(run.size(), run.count()) for run in self._spilled]
        sizes.append((self._buffered_bytes(), len(self._buffer)))
        return sum(size for size, _ in sizes) // max(1, sum(entries for _, entries in sizes))

    def _builder(self, taken: Sequence[StateRun]) -> RunBuilder:
        size = self._buffered_bytes() + sum(run.size for run in taken)
        # This is an estimate to choose the page size: entries that are replaced count twice.
        entries = len(self._buffer) + sum(run.entries for run in taken)
        builder = RunBuilder(size // entries)
        for run in taken:  # oldest first: newer entries replace
            builder.add(self._open(run).scan([counted_bounds(run)]))
        # Sorted, because SQLite appends ascending keys to the last page; a random order would split pages.
        builder.add(sorted(self._buffer.items()))
        return builder

    def _drop_unneeded_tombstones(self, builder: RunBuilder, older: Sequence[StateRun]) -> int:
        """Drop tombstones of keys that no older run contains; return the bytes that the others hide."""
        hides, needless = 0, []
        for key in builder.tombstones():
            length = newest_value(self._runs_with_group(older, key), key, Run.length)
            if length is None:
                needless.append(key)
            else:
                hides += length
        builder.drop(needless)
        return hides

    def _write_run(self, builder: RunBuilder, name: RunName, hides: int) -> list[StateRun]:
        entries = builder.count()
        data, opened = builder.finish()
        file_name = name.file_name(self._first, self._last)
        path = f"{self._folder}/{file_name}"
        self._filesystem.write(path, data)
        # Cache the run: it is already in memory, and the next epoch of this process reads it.
        self._cache.keep(self._filesystem, path, opened)
        checksum = zlib.crc32(data)
        groups = (self._first, self._last)
        return [StateRun(name.stage, file_name, *groups, entries, len(data), checksum, hides)]


class _NeededEntries:
    """Entries without the tombstones of keys that no older run contains. `hides`: bytes that the others hide."""

    def __init__(self, store: StateStore, older: Sequence[StateRun], entries: Iterator[Entry]) -> None:
        self._store = store
        self._older = older
        self._entries = entries
        self.hides = 0

    def __iter__(self) -> Iterator[Entry]:
        for entry in self._entries:
            if entry[1] is None:
                older = self._store._runs_with_group(self._older, entry[0])
                hidden = newest_value(older, entry[0], Run.length)
                if hidden is None:
                    continue
                self.hides += hidden
            yield entry
