"""Open the folder of a path or URL: the file system that can read it, and its path there."""

from __future__ import annotations

import functools

from penstock.object_stores.client import store_at
from penstock.object_stores.location import Location, locate
from penstock.runner.store.filesystem import FileSystem, LocalFileSystem
from penstock.runner.store.local_copies import LocalCopies
from penstock.runner.store.object_filesystem import ObjectFileSystem


def open_folder(location: str) -> tuple[FileSystem, str]:
    """Return the file system of a path or URL, and the folder's path in it. Creates nothing and sends nothing.

    Raises:
        UsageError: the URL is not supported.
    """
    found = locate(location)
    if isinstance(found, str):
        return LocalFileSystem(), found
    return _object_filesystem(found), found.url


# One object per location: its client keeps connections, and `may_reappear` must know all creates of this process.
@functools.lru_cache(maxsize=64)
def _object_filesystem(location: Location) -> ObjectFileSystem:
    return ObjectFileSystem(
        store_at(location), LocalCopies(location.url), str(location).removeprefix(location.url)
    )
