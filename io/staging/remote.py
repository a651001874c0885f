"""A prefix of an object store as a store of staged files.

| verb | requests |
|---|---|
| `create` | one conditional put; one more for the marker, once in a process and staging folder |
| `move` | S3: get, conditional put, delete. Google and Azure: conditional copy, delete |
| `length` | one head |
| `names_in` | one list for each 1,000 objects |

`move` is not atomic. If it is interrupted after the copy, the next try finds the target, which equals the source, and
deletes the source. So consumers must not remove a file before the commit after its publication.

No multipart upload is used: an abandoned one would leave parts that cost money and that no listing shows. So a file is
held in memory while it is staged, and on S3 again while it is published.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from penstock.io.staging.errors import OutputError
from penstock.io.staging.names import created_in, marker_name, staged_in
from penstock.object_stores.client import store_at
from penstock.object_stores.errors import StoreError
from penstock.object_stores.guarantees import check_guarantees
from penstock.object_stores.location import Location
from penstock.object_stores.store import ObjectStore

_NOTE = b"Penstock created this folder. See docs/files.md before you delete it.\n"

_marked: set[tuple[Location, str]] = set()
"""The staging folders that have a marker of this process. One for each job and sink that the process has worked for."""


@contextmanager
def _as_output_errors() -> Iterator[None]:
    try:
        yield
    except StoreError as error:
        raise OutputError(str(error)) from None


@dataclass(frozen=True, slots=True)
class RemoteStore:
    """See `penstock.io.staging.store.FileStore`. Pickles without credentials: each process finds its own."""

    location: Location

    @property
    def output(self) -> str:
        """The URL with its options."""
        return str(self.location)

    @property
    def answers_late(self) -> bool:
        return True

    def check_location(self) -> None:
        """Nothing can be told without a request. `check_writable` sends some."""

    def check_writable(self) -> None:
        with _as_output_errors():
            check_guarantees(self._objects)

    def create(self, name: str, content: Iterable[bytes]) -> None:
        folder, _, _ = name.rpartition("/")
        with _as_output_errors():
            # First: a staged file without a marker in its folder could not be proved to be published.
            self._mark(folder, marker_name(name))
            # Send the content in one piece: a put needs its length, and a multipart upload would leave parts behind.
            if not self._objects.create(name, b"".join(content)):
                raise OutputError(
                    f"cannot stage {name} in {self.location.url}: the name exists, with another content."
                )

    def sync(self, names: Iterable[str]) -> None:
        """Nothing to do: an object is durable when its put has succeeded."""

    def read(self, name: str) -> bytes:
        with _as_output_errors():
            try:
                return self._objects.read(name)
            except FileNotFoundError as error:
                raise OutputError(
                    f"cannot read {name} in {self.location.url}: {error}. Restore the object, then resume the pipeline."
                ) from None

    def length(self, name: str) -> int | None:
        with _as_output_errors():
            return self._objects.size(name)

    def move(self, source: str, target: str) -> bool:
        with _as_output_errors():
            try:
                # A conditional put or copy: an object that exists is never overwritten.
                copied = self._objects.copy(source, target)
            except FileNotFoundError:
                return False
            if not copied:
                raise OutputError(
                    f"will not overwrite {self.location.url}/{target}, which this pipeline did not write: "
                    "move it away, then resume the pipeline."
                )
            # Last: the staged object is the only proof that the publication is not complete.
            self._objects.delete([source])
            return True

    def check_moved(self, source: str, target: str) -> None:
        """Raise unless the staging folder has a marker that is not younger than the staged file.

        A missing object alone proves nothing: the bucket may be missing or another one.
        """
        folder, _, staged = source.rpartition("/")
        # This runs only after a crash or a lost answer, so the listing does not cost the usual path anything.
        with _as_output_errors():
            names = [each.name for each in self._objects.list_objects(folder)]
        created, origin = created_in(names), staged_in(staged)
        if created is None or origin is None or created > origin:
            raise OutputError(
                f"cannot tell whether {self.location.url}/{target} was published: the staging folder {folder} is gone "
                "or was created after the file was staged. If the output was moved, move it back; if objects were "
                "deleted, see 'A deleted staging folder' in docs/files.md. Then resume the pipeline."
            )

    def delete(self, names: Iterable[str]) -> None:
        with _as_output_errors():
            self._objects.delete(names)

    def names_in(self, folder: str) -> list[str]:
        with _as_output_errors():
            listed: Sequence[str] = [each.name for each in self._objects.list_objects(folder)]
        return [f"{folder}/{name}" for name in listed]

    def _mark(self, folder: str, marker: str | None) -> None:
        """Create a marker that tells in which epoch this process first staged a file in the folder.

        Each process adds one, since a listing would cost as much as the put. The oldest marker of a folder counts.
        """
        # Once per process: the marker of an earlier process stays too.
        if marker is not None and (self.location, folder) not in _marked:
            self._objects.create(f"{folder}/{marker}", _NOTE)
            _marked.add((self.location, folder))

    @property
    def _objects(self) -> ObjectStore:
        return store_at(self.location)
