"""Stage, publish and clean up: the operations of each step on a store. No Beam.

The table in docs/files.md, "How it works", lists the effects of a crash at each point.
"""

from __future__ import annotations

import zlib
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field

from penstock.io.staging.errors import OutputError
from penstock.io.staging.names import staged_in, staging_folder
from penstock.io.staging.staged_file import StagedFile
from penstock.io.staging.store import FileStore
from penstock.object_stores.store import in_parallel

HELD_BYTES = 64 << 20
"""Content that a bundle holds in memory before it is sent to a store that answers late."""


@dataclass(slots=True)
class StagedContent:
    """Counts what passes through `measured`: the bytes, and the CRC-32 of all of them."""

    length: int = field(default=0, init=False)
    crc32: int = field(default=0, init=False)

    def measured(self, content: Iterable[bytes]) -> Iterator[bytes]:
        """Yield `content` unchanged."""
        for part in content:
            self.length += len(part)
            self.crc32 = zlib.crc32(part, self.crc32)
            yield part


def stage(store: FileStore, name: str, content: Iterable[bytes]) -> StagedContent:
    """Create the staged file `name` and return what was written. A failure leaves no file.

    Raises:
        OutputError: the store refused, or the name exists.
    """
    written = StagedContent()
    store.create(name, written.measured(content))
    return written


class StagingBundle:
    """The files that one bundle stages. They are staged for certain only when `finish` returns.

    A store that answers late gets them together, so that many buckets take no longer than one. Until then their content
    is in memory, at most about `HELD_BYTES` of it.
    """

    def __init__(self, store: FileStore) -> None:
        self._store = store
        self._names: list[str] = []
        self._held: list[tuple[str, bytes]] = []
        self._held_bytes = 0

    def stage(self, name: str, content: Iterable[bytes]) -> StagedContent:
        """Stage a file, now or in `finish`, and return what is written; see `stage`."""
        self._names.append(name)
        if not self._store.answers_late:
            return stage(self._store, name, content)
        written = StagedContent()
        # The bytes are held, so that all files of the bundle can be sent side by side.
        self._held.append((name, b"".join(written.measured(content))))
        self._held_bytes += written.length
        if self._held_bytes >= HELD_BYTES:
            self._send()
        return written

    def finish(self) -> None:
        """Make all files durable. The commit comes later."""
        self._send()
        # Sync once for all files, because most of them are in one folder.
        self._store.sync(self._names)

    def _send(self) -> None:
        held, self._held, self._held_bytes = self._held, [], 0
        in_parallel(lambda each: self._store.create(each[0], [each[1]]), held)


def publish(store: FileStore, publication: StagedFile) -> bool:
    """Move a staged file to its final name; return whether this call moved it.

    False means that an earlier try moved it. This is also so if there is no file with the final name: a consumer has
    taken it away, and it must not appear again. The move is durable only after `sync_published`, which is necessary
    whether this call moved the file or not: an earlier try may have been killed before it synced.

    Raises:
        OutputError: the staged file has another length; a file that this pipeline did not write has the final name; a
            missing staged file does not prove that it was moved; the store refused.
    """
    # `move` returns False if a consumer removed the folder of the final name just then, so the loop tries again.
    while (length := store.length(publication.staged)) is not None:
        if length != publication.length:
            raise OutputError(
                f"the staged file {publication.staged} in {publication.output} has {length} bytes, its publication "
                f"says {publication.length}: something else changed it. "
                "Restore the file, then resume the pipeline."
            )
        if store.move(publication.staged, publication.final):
            return True
    store.check_moved(publication.staged, publication.final)
    return False


def sync_published(store: FileStore, publications: Iterable[StagedFile]) -> None:
    """Make the moves of `publications` durable, whichever try made them."""
    store.sync(name for each in publications for name in (each.staged, each.final))


def clean_up(store: FileStore, job: str, sink: str, upto: tuple[int, int], keep: Collection[str]) -> int:
    """Delete the files that `sink` staged in `job` at or before (generation, epoch) `upto`, except those in `keep`.

    Files of other sinks, other jobs and later epochs stay. Returns the number of deleted files.

    Folders stay too. While a job lives, its folder proves to `publish` that the job has staged its files here.
    A clean-up may run very late, so it cannot know whether the job still has files to publish.
    """
    # The name says which epoch staged a file. A time would compare the clocks of several machines.
    staged = [(name, staged_in(name)) for name in store.names_in(staging_folder(job, sink))]
    doomed = [name for name, origin in staged if origin is not None and origin <= upto and name not in keep]
    # Deleted together: a store may take many names in one request.
    store.delete(doomed)
    return len(doomed)
