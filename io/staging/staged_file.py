"""The value that a sink puts into the commit record, and the value that it emits after the commit. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.object_stores.location import display_name


@dataclass(frozen=True, slots=True)
class StagedFile:
    """One complete staged file that is to be published under its final name after the commit.

    `output` is the output that `staged` and `final` are relative to: an absolute folder, or a URL with its options. A
    pipeline that is resumed with another output publishes to the old one the files that it had staged there.
    `length` is in bytes, `crc32` covers the whole content, `records` is the number of records in the file.
    """

    output: str
    staged: str
    final: str
    length: int
    crc32: int
    records: int

    def published(self) -> PublishedFile:
        """Return what readers see once this is published."""
        path = f"{display_name(self.output).rstrip('/')}/{self.final}"
        return PublishedFile(path, self.length, self.crc32, self.records)


@dataclass(frozen=True, slots=True)
class PublishedFile:
    """A complete file that readers can see and that never changes.

    `path` is absolute, or a URL without options. A consumer may already have removed the file. `length` is in bytes,
    `crc32` covers the whole content, `records` is the number of records in the file.
    """

    path: str
    length: int
    crc32: int
    records: int
