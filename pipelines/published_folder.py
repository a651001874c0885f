"""Reads the JSON Lines files that a pipeline published below a folder or a URL: dead letters, the lineage log."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock.errors import UsageError
from penstock.object_stores import locate, store_at

_ENDINGS = (".jsonl", ".jsonl.gz")


@dataclass(frozen=True, slots=True)
class PublishedLine:
    """One line of a published file: `file` is relative to the folder, `number` counts from 1."""

    file: str
    number: int
    content: dict[str, Any]


class NoFolderError(UsageError):
    """There is no such folder. It is made with the first file."""


@dataclass(frozen=True, slots=True)
class PublishedFolder:
    """The published files below a folder, a path or a URL. They never change; new ones are added.

    `endings`: of the names, by default the endings of JSON Lines.
    """

    folder: str
    endings: tuple[str, ...] = _ENDINGS

    def files(self) -> list[str]:
        """Return the names of the files, relative to the folder, in their order.

        Raises:
            NoFolderError: there is no such folder on this machine.
        """
        location = locate(self.folder)
        if not isinstance(location, str):
            listed = store_at(location).list_objects("")
            return [each.name for each in listed if each.name.endswith(self.endings)]
        folder = Path(location)
        if not folder.is_dir():
            raise NoFolderError(f"there is no folder {folder}: check the name")
        return [
            path.relative_to(folder).as_posix()
            for path in sorted(folder.rglob("*"))
            if path.name.endswith(self.endings) and not path.name.startswith(".")
        ]

    def read(self, file: str) -> bytes:
        """Return the content of a file."""
        location = locate(self.folder)
        return (
            Path(location, file).read_bytes() if isinstance(location, str) else store_at(location).read(file)
        )

    def lines(self, file: str) -> Iterator[PublishedLine]:
        """Yield the lines of a file.

        Raises:
            UsageError: a line is not JSON.
        """
        data = self.read(file)
        text = gzip.decompress(data) if file.endswith(".gz") else data
        for number, line in enumerate(text.splitlines(), 1):
            try:
                content = json.loads(line)
            except ValueError:
                raise UsageError(
                    f"line {number} of {file} below {self.folder} is not JSON: remove the line, or name another folder"
                ) from None
            yield PublishedLine(file, number, content)


def published_lines(folder: str) -> Iterator[PublishedLine]:
    """Yield the lines of all files below a folder, in the order of their names.

    Raises:
        UsageError: there is no such folder, or a file in it has no JSON Lines.
    """
    published = PublishedFolder(folder)
    for file in published.files():
        yield from published.lines(file)
