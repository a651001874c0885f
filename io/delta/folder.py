"""The folder of a Delta table: on this machine with the house's own durable writes, elsewhere through delta-rs."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from pyarrow.fs import FileType

from penstock.io.columnar.log_target import Folder
from penstock.io.staging.local import LocalStore


def is_local(uri: str) -> bool:
    """Return whether a table is in a folder of this machine."""
    return "://" not in uri.removeprefix("file://")


def folder_of(uri: str, storage_options: Mapping[str, str]) -> Folder:
    """Return the folder of a table."""
    if is_local(uri):
        return LocalFolder(os.path.abspath(uri.removeprefix("file://")))
    return _RemoteFolder(uri, storage_options)


class LocalFolder(LocalStore):
    def create(self, name: str, content: Iterable[bytes]) -> None:
        # What a try that was killed has left; no commit names it.
        self.delete([name])
        super().create(name, content)


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

    @property
    def _files(self) -> Any:
        from deltalake.fs import DeltaStorageHandler

        return DeltaStorageHandler(self.uri, dict(self.storage_options))
