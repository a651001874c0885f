"""State runs: immutable sorted files of keys and values, each an SQLite database.

    run(k BLOB PRIMARY KEY, v BLOB) WITHOUT ROWID          -- v is NULL: the key was deleted (a tombstone)

`k` is the key group in two bytes, big-endian, then the key, so that a file is ordered by (key group, key). A run is
built in memory, or in a scratch file if it is large. It is written once and never changed, so a cache can use its name
as the key. SQLite provides the sorted file. It does not detect damaged pages, so the commit record contains a CRC-32,
and each process checks it when it first opens a run. This costs one read of the file. A run is replaced after about the
same amount of data was written, so the check costs a constant share of the writing.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sqlite3
import threading
import zlib
from collections import OrderedDict
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final
from urllib.parse import quote

from penstock.runner.protocol.errors import CheckpointError, RunMissingError
from penstock.runner.protocol.names import run_age
from penstock.runner.protocol.record import StateRun
from penstock.runner.store.filesystem import FileSystem
from penstock.runner.store.scratch import new_scratch_file
from penstock.runner.store.sqlite_bytes import from_bytes, to_bytes

Entry = tuple[bytes, bytes | None]
"""(run key, value or None for a tombstone)."""

Bounds = tuple[bytes, bytes]
"""Run keys from the first (inclusive) to the second (exclusive). Lists of bounds are ascending and disjoint."""

ABSENT: Final = object()
"""Result of `Run.get` for a key that the run does not contain."""

IN_MEMORY_BYTES = 4 << 20
"""Runs up to this size are read whole and kept in memory. Larger ones are read page by page from a local file.

On a network file system, many reads from a small file cost more than the memory.
"""

MAPPED_BYTES = 128 << 20
"""How much of the larger runs of a process is mapped into memory, all together; the rest is read page by page."""

CACHE_BYTES = 128 << 20
"""Maximum memory of the runs in a cache."""

CACHE_RUNS = 256
"""Maximum number of open runs in a cache, each of which may have an open file."""

PAGES = (4096, 8192, 16384, 32768, 65536)
"""Page sizes of a run, in bytes. SQLite allows at most 65536."""

_CHUNK = 1 << 20
_BOUNDS = 512
"""Maximum number of bounds in one SQL statement. Each has two parameters; SQLite allows 32766 (since 3.32)."""

_SCHEMA = "CREATE TABLE run(k BLOB PRIMARY KEY, v BLOB) WITHOUT ROWID"


GROUP_BYTES = 2
"""Number of bytes of a run key that contain the key group."""


def run_key(key_group: int, key: bytes) -> bytes:
    """Return the key in a run of `key` in a key group. Run keys sort by (key group, key)."""
    return key_group.to_bytes(GROUP_BYTES, "big") + key


def key_of(run_key: bytes) -> tuple[int, bytes]:
    """Return (key group, key): the inverse of `run_key`."""
    return int.from_bytes(run_key[:GROUP_BYTES], "big"), run_key[GROUP_BYTES:]


def successor(prefix: bytes) -> bytes:
    """Return the smallest run key above all keys that begin with `prefix` (which has a byte below 0xff)."""
    head = prefix.rstrip(b"\xff")
    return head[:-1] + bytes([head[-1] + 1])


def page_size(entry_bytes: int) -> int:
    """Return a suitable page size for entries of about `entry_bytes`.

    An entry that is larger than a quarter of a page uses overflow pages, and the last one is partly empty (SQLite's
    file format, "B-tree Pages"). So a page should hold eight ordinary entries. For large entries the smallest page
    wastes the least space. For very large ones a page may be larger, which is faster: at most a sixteenth is wasted.
    """
    fitting = (size for size in PAGES if size >= 8 * entry_bytes)
    return next(fitting, PAGES[2] if entry_bytes >= 8 * PAGES[2] else PAGES[0])


class Run:
    """One opened run. It is read-only and may be used by any thread."""

    def __init__(self, database: sqlite3.Connection, held_bytes: int, mapped_bytes: int = 0) -> None:
        self._database = database
        self.held_bytes = held_bytes
        """Bytes of memory that the open run uses."""
        self.mapped_bytes = mapped_bytes
        """Bytes of its file that may be mapped into memory."""

    # There is no `close`: caches and stores share a run, and no one of them knows whether it has the last reference.
    def __del__(self) -> None:
        self._database.close()

    @functools.cached_property
    def key_groups(self) -> frozenset[int]:
        """The key groups that have entries in this run. Cached, because most reads are for key groups without any."""
        # Jump from group to group by the index instead of reading all keys: a run has at most a few thousand groups but
        # may have millions of keys.
        found, lower, next_key = set(), b"", "SELECT k FROM run WHERE k >= ? ORDER BY k LIMIT 1"
        while row := self._database.execute(next_key, (lower,)).fetchone():
            key_group = key_of(row[0])[0]
            found.add(key_group)
            lower = run_key(key_group + 1, b"")
        return frozenset(found)

    def size(self) -> int:
        """Return the bytes of the run's file."""
        (pages,), (page,) = map(self._pragma, ("page_count", "page_size"))
        return int(pages * page)

    def count(self) -> int:
        """Return the number of entries. Reads the whole run."""
        count: int = self._database.execute("SELECT count(*) FROM run").fetchone()[0]
        return count

    def _pragma(self, name: str) -> tuple[int]:
        value: tuple[int] = self._database.execute(f"PRAGMA {name}").fetchone()
        return value

    def get(self, key: bytes) -> bytes | object | None:
        """Return the value; None for a tombstone, ABSENT if the run does not contain the key."""
        row = self._database.execute("SELECT v FROM run WHERE k = ?", (key,)).fetchone()
        return ABSENT if row is None else row[0]

    def length(self, key: bytes) -> int | object | None:
        """Return the length of the value, which is not read; None for a tombstone, ABSENT without the key."""
        row = self._database.execute("SELECT length(v) FROM run WHERE k = ?", (key,)).fetchone()
        return ABSENT if row is None else row[0]

    def scan(self, bounds: Sequence[Bounds]) -> Iterator[Entry]:
        """Return the entries within any of the bounds, ascending, tombstones included."""
        if len(bounds) == 1:
            one = "SELECT k, v FROM run WHERE k >= ? AND k < ? ORDER BY k"
            yield from self._database.execute(one, bounds[0])
        else:
            yield from self._each("JOIN run ON k >= lower AND k < upper ORDER BY k", bounds)

    def first_keys(self, bounds: Sequence[Bounds]) -> Iterator[Entry]:
        """Yield the first entry within each of the bounds, tombstones included; nothing for empty bounds."""
        first = "SELECT k FROM run WHERE k >= lower AND k < upper ORDER BY k LIMIT 1"
        return self._each(f"JOIN run ON k = ({first})", bounds)

    def _each(self, join: str, bounds: Sequence[Bounds]) -> Iterator[Entry]:
        """Query many bounds with one statement: one statement per bound would cost more than reading the entries."""
        for begin in range(0, len(bounds), _BOUNDS):
            ends = [end for pair in bounds[begin : begin + _BOUNDS] for end in pair]
            values = ",".join(["(?,?)"] * (len(ends) // 2))
            # CROSS JOIN keeps SQLite's planner from reading the run in the outer loop.
            bounds_of = f"WITH bounds(lower, upper) AS (VALUES {values})"
            yield from self._database.execute(f"{bounds_of} SELECT k, v FROM bounds CROSS {join}", ends)


class RunBuilder:
    """Builds a run in memory. Later entries replace earlier ones with the same key."""

    def __init__(self, entry_bytes: int = 0) -> None:
        """Begin an empty run. `entry_bytes`, the expected size of an entry, determines the page size."""
        self._database = _connect(":memory:")
        self._database.execute(f"PRAGMA page_size = {page_size(entry_bytes)}")
        # Nothing to recover: the database is in memory until it is complete.
        self._database.execute("PRAGMA journal_mode = OFF")
        self._database.execute(_SCHEMA)

    def add(self, entries: Iterable[Entry]) -> None:
        """Add entries; ascending order is fastest."""
        with self._database:
            self._database.executemany("INSERT OR REPLACE INTO run VALUES (?, ?)", entries)

    def tombstones(self) -> list[bytes]:
        """Return the keys that are marked as deleted."""
        return [key for (key,) in self._database.execute("SELECT k FROM run WHERE v IS NULL")]

    def drop(self, keys: Iterable[bytes]) -> None:
        """Remove entries."""
        with self._database:
            self._database.executemany("DELETE FROM run WHERE k = ?", ((key,) for key in keys))

    def count(self) -> int:
        """Return the number of entries, tombstones included."""
        count: int = self._database.execute("SELECT count(*) FROM run").fetchone()[0]
        return count

    def _pragma(self, name: str) -> int:
        value: int = self._database.execute(f"PRAGMA {name}").fetchone()[0]
        return value

    def finish(self) -> tuple[bytes, Run]:
        """Return the bytes of the file and the opened run. Do not use the builder afterwards."""
        if self._pragma("freelist_count") * 8 > self._pragma("page_count"):
            self._database.execute("VACUUM")  # deleted and replaced entries leave free pages
        # The bytes, and not a file that SQLite changes: the checkpoint may be on an object store, and a run
        # must become visible as a whole.
        data = to_bytes(self._database)
        return data, Run(self._database, len(data))


class FileRunBuilder:
    """Builds a run that is too large for memory, in a file on a local disk. Entries come ascending, each key once.

    `close` deletes the file.
    """

    def __init__(self, entry_bytes: int = 0) -> None:
        self.path = new_scratch_file(".run")
        self.entries = 0
        self._database = _connect(_uri(self.path))
        self._database.execute(f"PRAGMA page_size = {page_size(entry_bytes)}")
        # No journal and no sync: after an error the file is deleted. Exclusive locking, because otherwise SQLite takes
        # the lock for each statement. The cache size is in KiB if negative.
        for setting in (
            "journal_mode = OFF",
            "synchronous = OFF",
            "locking_mode = EXCLUSIVE",
            "cache_size = -8000",
        ):
            self._database.execute(f"PRAGMA {setting}")
        self._database.execute(_SCHEMA)

    def add(self, entries: Iterable[Entry]) -> None:
        """Append entries."""
        with self._database:
            added = self._database.executemany("INSERT INTO run VALUES (?, ?)", entries)
        self.entries += added.rowcount

    def finish(self) -> tuple[int, int]:
        """Return the size and the CRC-32 of the file. It can be read until `close`; do not add to it."""
        self._database.close()
        return os.stat(self.path).st_size, _checksum(self.path)

    def opened(self, cache_kib: int = 8000) -> Run:
        """Return the run, opened, for this process only. The system frees the file when the run is closed.

        The run keeps at most `cache_kib` of its pages in memory; the system caches the others.
        """
        # A new connection, because the one that has written keeps a full cache and its last entry.
        self._database.close()
        database = _connect(_uri(self.path) + "?mode=ro&immutable=1")
        database.execute(f"PRAGMA cache_size = {-cache_kib}")  # in KiB if negative
        # SQLite reads from the open file, so its name can be removed now.
        os.unlink(self.path)
        return Run(database, 0)

    def close(self) -> None:
        """Delete the file."""
        self._database.close()
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.path)


def open_run(filesystem: FileSystem, path: str, run: StateRun, mapped_bytes: int = 0) -> Run:
    """Open the file of a run and check that it is the file that the commit record names.

    At most `mapped_bytes` of it are mapped into memory.

    Raises:
        RunMissingError: there is no such file.
        CheckpointError: the file was cut off or changed.
    """
    try:
        return _open(filesystem, path, run, mapped_bytes)
    except FileNotFoundError as error:
        raise run_missing(path, run) from error
    except CheckpointError:
        # Perhaps only this machine's copy of the object is damaged. Delete it and read the object again.
        if not filesystem.discard_copy(path):
            raise
        return _open(filesystem, path, run, mapped_bytes)


def _open(filesystem: FileSystem, path: str, run: StateRun, mapped_bytes: int) -> Run:
    local = filesystem.local_path(path)
    if local is not None and run.size > IN_MEMORY_BYTES:
        return _open_large(local, path, run, min(mapped_bytes, run.size))
    data = filesystem.read(path) if local is None else Path(local).read_bytes()
    _check(path, run, len(data), zlib.crc32(data))
    database = _connect(":memory:")
    from_bytes(data, database)
    return Run(database, len(data))


def _open_large(local: str, path: str, run: StateRun, mapped_bytes: int) -> Run:
    _check(path, run, Path(local).stat().st_size, _checksum(local))
    # "immutable" lets SQLite skip locks and checks for changes, since nothing ever writes to the file.
    database = _connect(_uri(local) + "?mode=ro&immutable=1")
    # Reads go through the page cache of the system, which all worker processes share. Mapped pages count as memory of
    # each process that has read them (YARN kills a container for it), so only a part is mapped. Other pages cost a
    # system call each.
    database.execute(f"PRAGMA mmap_size = {mapped_bytes}")
    return Run(database, 0, mapped_bytes)


def _checksum(local: str) -> int:
    checksum = 0
    with open(local, "rb") as file:
        while chunk := file.read(_CHUNK):
            checksum = zlib.crc32(chunk, checksum)
    return checksum


def run_missing(path: str, run: StateRun) -> RunMissingError:
    """Return the error of a run whose file does not exist."""
    return RunMissingError(
        f"the state run {path} of {run.stage!r} is missing. If another driver has taken over, this one stops. "
        "Otherwise restore the checkpoint folder from a backup, or use an empty folder"
    )


def check_size(path: str, run: StateRun, size: int) -> None:
    """Raise a CheckpointError if a run's file does not have the size of the run."""
    if size != run.size:
        raise _damaged(path, run, f"{size} bytes instead of {run.size}")


def _check(path: str, run: StateRun, size: int, checksum: int) -> None:
    if (size, checksum) != (run.size, run.checksum):
        found = f"{size} bytes with checksum {checksum:08x} instead of {run.size} with {run.checksum:08x}"
        raise _damaged(path, run, found)


def _damaged(path: str, run: StateRun, found: str) -> CheckpointError:
    return CheckpointError(
        f"the state run {path} of {run.stage!r} is damaged: {found}. Restore the checkpoint folder from a backup, "
        "or use an empty folder"
    )


def _uri(path: str) -> str:
    return f"file:{quote(os.path.abspath(path))}"


def _connect(database: str) -> sqlite3.Connection:
    # Several threads may use one connection: CPython's SQLite is built in serialized mode.
    return sqlite3.connect(database, uri=True, check_same_thread=False, cached_statements=8)


class RunCache:
    """Opened runs by name; the least recently used are dropped. Never stale, because no name is used twice."""

    def __init__(
        self,
        limit_bytes: int = CACHE_BYTES,
        limit_runs: int = CACHE_RUNS,
        limit_mapped_bytes: int = MAPPED_BYTES,
    ) -> None:
        self._limit_bytes = limit_bytes
        self._limit_mapped_bytes = limit_mapped_bytes
        self._limit_runs = limit_runs
        self._runs: OrderedDict[tuple[FileSystem, str], Run] = OrderedDict()
        self._held_bytes = 0
        self._lock = threading.Lock()

    def open(self, filesystem: FileSystem, path: str, run: StateRun) -> Run:
        """Return the run, opened now or earlier; raises what `open_run` raises."""
        with self._lock:
            if opened := self._runs.get((filesystem, path)):
                self._runs.move_to_end((filesystem, path))
                return opened
            # One limit for all runs: a store of several gigabytes has several large runs, and a limit for each of them
            # let a worker grow above a gigabyte.
            mapped = sum(each.mapped_bytes for each in self._runs.values())
        # Outside the lock: a large run takes long to check. Two threads may open it twice, which does no harm.
        opened = open_run(filesystem, path, run, max(0, self._limit_mapped_bytes - mapped))
        self.keep(filesystem, path, opened)
        return opened

    def keep(self, filesystem: FileSystem, path: str, opened: Run) -> None:
        """Add an opened run; drop others beyond the limits. A store that uses a dropped run keeps its own reference."""
        with self._lock:
            before = self._runs.pop((filesystem, path), None)
            self._runs[filesystem, path] = opened
            self._held_bytes += opened.held_bytes - (before.held_bytes if before else 0)
            # Never drop the run that was just opened, even if it alone exceeds the limit.
            while len(self._runs) > 1 and self._over():
                self._held_bytes -= self._runs.popitem(last=False)[1].held_bytes

    def forget_dead(self, folder: str, alive: Collection[str], before: tuple[int, int]) -> None:
        """Drop the runs in `folder` that were written before a (generation, epoch) and are not among `alive`.

        They are never needed again. Without this they would use memory until other runs replace them.
        """
        with self._lock:
            for filesystem, path in list(self._runs):
                of, _, name = path.rpartition("/")
                age = run_age(name)
                if of == folder and name not in alive and age is not None and age < before:
                    self._held_bytes -= self._runs.pop((filesystem, path)).held_bytes

    def _over(self) -> bool:
        return len(self._runs) > self._limit_runs or self._held_bytes > self._limit_bytes


_shared = RunCache()
_caches_of_parents: list[RunCache] = []


def shared_cache() -> RunCache:
    """Return the cache of this process."""
    return _shared


def _use_new_cache() -> None:
    """In a forked child: start with an empty cache. SQLite connections of the parent must not be used or closed."""
    global _shared
    _caches_of_parents.append(_shared)
    _shared = RunCache()


os.register_at_fork(after_in_child=_use_new_cache)
