"""The interface between staging and the place where files are stored, and the store of an output.

Its verbs exist on local disks and on object stores:

| verb | local folder | object store |
|---|---|---|
| `create` | exclusive open, write, fsync | conditional put; 412 means that the name is taken |
| `read` | open, read | get |
| `move` | rename | copy or put if the target is absent, then delete of the source |
| `delete` | unlink | delete |
| `names_in` | names of a folder | names with a prefix |
| `sync` | fsync of folders | nothing: names are durable at once |

`create` never gets the same name twice, because names carry the attempt.

`move` of an object store is not atomic. If it is interrupted after the copy, the next try finds the target, which must
equal the source, and only deletes the source. So consumers of an object store must not remove a file before the commit
after its publication. (`tests/simulation/staging/test_object_store.py` plays this.)
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Protocol

from penstock.io.staging.local import LocalStore
from penstock.io.staging.remote import RemoteStore
from penstock.object_stores.location import locate


class FileStore(Protocol):
    """One output. Names are relative to it, with "/" between their parts; it creates folders as needed.

    Every method may be repeated, by this process or by another one, and raises `OutputError` if the output refuses.
    """

    @property
    def output(self) -> str:
        """The absolute folder or the URL; `store_of` returns an equal store for it."""

    @property
    def answers_late(self) -> bool:
        """Whether a request takes so long that several should run at the same time. The store is then thread-safe."""

    def check_location(self) -> None:
        """Check that the output may exist where it is, and change nothing. For a pipeline that is being built."""

    def check_writable(self) -> None:
        """Create the output if it is missing, and write a temporary file into it. For the check before a start."""

    def create(self, name: str, content: Iterable[bytes]) -> None:
        """Create the staged file `name`, whole or not at all. Its content is durable when this returns.

        The name is durable only after `sync`. It is an error if the name exists.
        """

    def sync(self, names: Iterable[str]) -> None:
        """Make durable that each of `names` was created, moved or deleted."""

    def read(self, name: str) -> bytes:
        """Return the content of a file; it is an error if there is no such file."""

    def length(self, name: str) -> int | None:
        """Return the number of bytes of a file, or None if there is no such file."""

    def move(self, source: str, target: str) -> bool:
        """Give the file `source` the name `target`, and return whether this call did it.

        Returns False if `source` or the folder of `target` was removed in the meantime. Never overwrites: an existing
        `target` while `source` exists is an error, unless an interrupted call of `move` made it from `source`.
        """

    def check_moved(self, source: str, target: str) -> None:
        """Raise unless a missing staged file `source` proves that it was moved to `target`.

        It proves nothing if the file may never have been in what is now the output, for example because a disk is
        not mounted.
        """

    def delete(self, names: Iterable[str]) -> None:
        """Delete files. Names that do not exist are ignored."""

    def names_in(self, folder: str) -> list[str]:
        """Return the sorted names in `folder`, each with the folder's name in front. A missing folder is empty."""


def store_of(output: str | os.PathLike[str]) -> FileStore:
    """Return the store of an output: a path, or a URL of an object store (`penstock.object_stores.location`).

    A relative path is resolved here, because workers may have another working directory.

    Raises:
        ValueError: the output is empty, or a URL that is not supported.
    """
    found = locate(output)
    return LocalStore(found) if isinstance(found, str) else RemoteStore(found)
