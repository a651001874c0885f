"""Reads the JSON Lines files that a pipeline published below a folder or a URL: dead letters, the lineage log."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock.errors import UsageError
from penstock.object_stores import ObjectStore, locate, store_at

_ENDINGS = (".jsonl", ".jsonl.gz")


@dataclass(frozen=True, slots=True)
class PublishedLine:
    """One line of a published file: `file` is relative to the folder, `number` counts from 1."""

    file: str
    number: int
    content: dict[str, Any]


def published_lines(folder: str) -> Iterator[PublishedLine]:
    """Yield the lines of all files below a folder, in the order of their names.

    Raises:
        UsageError: there is no such folder, or a file in it has no JSON Lines.
    """
    location = locate(folder)
    files = _on_disk(Path(location)) if isinstance(location, str) else _in_store(store_at(location))
    for name, data in files:
        text = gzip.decompress(data) if name.endswith(".gz") else data
        for number, line in enumerate(text.splitlines(), 1):
            try:
                content = json.loads(line)
            except ValueError:
                raise UsageError(
                    f"line {number} of {name} below {folder} is not JSON: remove the line, or name another folder"
                ) from None
            yield PublishedLine(name, number, content)


def _on_disk(folder: Path) -> Iterator[tuple[str, bytes]]:
    if not folder.is_dir():
        raise UsageError(f"there is no folder {folder}: check the name")
    for path in sorted(folder.rglob("*")):
        if path.name.endswith(_ENDINGS) and not path.name.startswith("."):
            yield path.relative_to(folder).as_posix(), path.read_bytes()


def _in_store(store: ObjectStore) -> Iterator[tuple[str, bytes]]:
    for each in store.list_objects(""):
        if each.name.endswith(_ENDINGS):
            yield each.name, store.read(each.name)
