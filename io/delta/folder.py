"""The folder of a Delta table: on this machine with the house's own durable writes, elsewhere through delta-rs."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
from typing import Any, Protocol

import pyarrow as pa
from pyarrow.fs import FileSelector, FileType, PyFileSystem

from penstock.errors import InvariantError
from penstock.io.columnar.log_parts import Folder
from penstock.io.delta.deletion_vectors import FOLDER
from penstock.io.staging.local import LocalStore
from penstock.object_stores.client import ObstoreRequests
from penstock.object_stores.location import locate
from penstock.object_stores.store import ObjectStore

_LOG = "_delta_log"


def is_local(uri: str) -> bool:
    """Return whether a table is in a folder of this machine."""
    return "://" not in uri.removeprefix("file://")


class DeltaFolder(Folder, Protocol):
    """The folder of a table, also with its log and with data files of other writers."""

    def read_entry(self, name: str) -> bytes:
        """Return the content of a file of the log, or raise FileNotFoundError."""

    def put_entry(self, name: str, content: bytes) -> bool:
        """Create a file of the log, whole and durable; False: there is one with another content."""

    def opened(self, name: str) -> AbstractContextManager[Any]:
        """Open a file for pyarrow."""

    def vector_names(self) -> list[str]:
        """Return the names in the folder of deletion vectors."""

    def log_names(self) -> list[str]:
        """Return the names in the folder of the log."""


def folder_of(uri: str, storage_options: Mapping[str, str]) -> DeltaFolder:
    """Return the folder of a table."""
    if is_local(uri):
        return LocalFolder(os.path.abspath(uri.removeprefix("file://")))
    return _RemoteFolder(uri, storage_options)


class LocalFolder(LocalStore):
    def create(self, name: str, content: Iterable[bytes]) -> None:
        # What a try that was killed has left; no commit names it.
        self.delete([name])
        super().create(name, content)

    def read_entry(self, name: str) -> bytes:
        with open(self._absolute(name), "rb") as file:
            return file.read()

    def put_entry(self, name: str, content: bytes) -> bool:
        # A name as delta-rs gives it, which every reader of logs ignores. A rename would replace another entry.
        whole = f"_delta_log/_commit_{uuid.uuid4()}.json.tmp"
        super().create(whole, [content])
        try:
            os.link(self._absolute(whole), self._absolute(name))
        except FileExistsError:
            return False
        finally:
            self.delete([whole])
        self.sync([name])
        return True

    def opened(self, name: str) -> AbstractContextManager[Any]:
        return pa.OSFile(self._absolute(name))

    def vector_names(self) -> list[str]:
        return [os.path.basename(path) for path in self.names_in(FOLDER)]

    def log_names(self) -> list[str]:
        return os.listdir(self._absolute(_LOG))


@dataclass(frozen=True, slots=True)
class _RemoteFolder:
    """Requests go through delta-rs, so that they use the same options and credentials as its own."""

    uri: str
    # Not in the repr, because it may contain credentials.
    storage_options: Mapping[str, str] = field(repr=False)

    def create(self, name: str, content: Iterable[bytes]) -> None:
        # The handler below pyarrow's file: with pyarrow 25 that file passes buffers, which delta-rs 1.6 refuses.
        stream = self._files._handler.open_output_stream(name, None)
        for part in content:
            stream.write(part)
        stream.close()

    def sync(self, names: Iterable[str]) -> None:
        """Nothing to do: an object is durable when its stream is closed."""

    def read(self, name: str) -> bytes:
        with self._files.open_input_file(name) as stream:
            found: bytes = stream.read()
        return found

    def length(self, name: str) -> int | None:
        (info,) = self._files.get_file_info([name])
        return info.size if info.type == FileType.File else None

    def delete(self, names: Iterable[str]) -> None:
        for name in names:
            # Deleted already, by an earlier try.
            with suppress(FileNotFoundError):
                self._files.delete_file(name)

    def read_entry(self, name: str) -> bytes:
        return self.read(name)

    def put_entry(self, name: str, content: bytes) -> bool:
        # The handler of delta-rs has no conditional put.
        location = locate(self.uri)
        if isinstance(location, str):
            raise InvariantError(f"{self.uri} is no object store")
        requests = ObstoreRequests(location, tuple(sorted(self.storage_options.items())))
        return ObjectStore(location.url, requests, location.unavailable_seconds).create(name, content)

    def opened(self, name: str) -> AbstractContextManager[Any]:
        return PyFileSystem(self._files).open_input_file(name)

    def vector_names(self) -> list[str]:
        return self._names_in(FOLDER)

    def log_names(self) -> list[str]:
        return self._names_in(_LOG)

    def _names_in(self, folder: str) -> list[str]:
        listed = PyFileSystem(self._files).get_file_info(FileSelector(folder, allow_not_found=True))
        return [each.base_name for each in listed]

    @property
    def _files(self) -> Any:
        from deltalake.fs import DeltaStorageHandler

        return DeltaStorageHandler(self.uri, dict(self.storage_options))
