"""A `FileSystem` on an object store: create-if-absent is a conditional put.

| operation | requests |
|---|---|
| `create_if_absent`, `write` | one put; a get if the store says "exists"; more if an answer is lost |
| `read`, `exists` | one get, one head |
| `list`, `sizes` | one for each 1,000 objects |
| `local_path` | one get, if this machine has no copy yet |
| `delete_all` | one for each 1,000 objects on S3, one for each object elsewhere |

Objects are durable when a request has succeeded, and never partly written, so there are no leftovers. The settings of
the bucket decide which users may read them.
"""

from __future__ import annotations

import mmap
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from penstock.object_stores.guarantees import PROBE, check_guarantees
from penstock.object_stores.store import ObjectStore
from penstock.runner.store.local_copies import LocalCopies


@dataclass(frozen=True)
class ObjectFileSystem:
    """Paths are URLs without options, below the URL of the store.

    `options` is the query of the store's location. Equal for equal stores, as the cache of runs expects.
    """

    store: ObjectStore
    copies: LocalCopies | None = None
    options: str = ""
    _unsettled: set[str] = field(default_factory=set, init=False, compare=False, repr=False)
    """Paths of creates of which a try was not answered. There are few: a driver stops if a record gets no answer."""

    def create_if_absent(self, path: str, data: bytes) -> bool:
        # True also if an earlier try of this call has created it: `create` compares the bytes.
        return self.store.create(self._key(path), data, lambda: self._unsettled.add(path))

    def may_reappear(self, path: str) -> bool:
        return path in self._unsettled

    def write(self, path: str, data: bytes | memoryview) -> None:
        if not self.store.create(self._key(path), data):
            raise FileExistsError(f"{path} was written before, by another task")
        if self.copies is not None:
            # Spark may run the next task of these keys in another process of this machine.
            self.copies.keep(path, data)

    def write_file(self, path: str, local: str) -> None:
        # Map the file: one put request needs the whole content, and the system can drop mapped pages from memory.
        with (
            open(local, "rb") as file,
            mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped,
            memoryview(mapped) as content,
        ):
            self.write(path, content)

    def read(self, path: str) -> bytes:
        return self.store.read(self._key(path))

    def list(self, folder: str) -> list[str]:
        # A driver that is killed in `check_guarantees` leaves the probe in a folder that is still empty otherwise.
        return [name for name in self.store.list_children(self._key(folder)) if name != PROBE]

    def exists(self, path: str) -> bool:
        return self.store.exists(self._key(path))

    def sizes(self, folder: str) -> dict[str, int]:
        return {each.name: each.size for each in self.store.list_objects(self._key(folder))}

    @property
    def lists_cheaply(self) -> bool:
        return False

    def delete(self, path: str) -> None:
        self.store.delete([self._key(path)])

    def delete_all(self, paths: Iterable[str]) -> None:
        self.store.delete(map(self._key, paths))

    def local_path(self, path: str) -> str | None:
        if self.copies is None:
            return None
        return self.copies.find(path) or self.copies.keep(path, self.read(path))

    def discard_copy(self, path: str) -> bool:
        return self.copies is not None and self.copies.discard(path)

    def forget_copies(self, folder: str, alive: Collection[str], before: tuple[int, int]) -> None:
        if self.copies is not None:
            self.copies.forget_dead(alive, before)

    def location_of(self, path: str) -> str:
        return path + self.options

    def make_private(self, folder: str) -> None:
        """Rights belong to the bucket, not to objects."""

    def delete_leftovers(self, folder: str, older_than_s: float) -> int:
        return 0

    def check_guarantees(self) -> None:
        check_guarantees(self.store)

    def _key(self, path: str) -> str:
        return "" if path == self.store.url else path.removeprefix(f"{self.store.url}/")
