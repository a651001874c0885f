"""The interfaces between staging and formats: of a file, and of the records of queues. Pure.

The formats of records are in a higher layer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

from penstock.event.model import ChangeEvent, Version
from penstock.io.staging.blocks import RecordBlock


class FileFormat(Protocol):
    """How encoded records become the content of one file. It is pickled into the pipeline."""

    @property
    def suffix(self) -> str:
        """The end of published names, for example ``.jsonl``."""

    def content(self, blocks: Iterable[RecordBlock]) -> Iterable[bytes]:
        """Return the whole content of a file with the records of `blocks`, in any number of parts."""


class Formatted(Protocol):
    """A record of a format, such as `penstock.transforms.formats.FormattedRecord`."""

    @property
    def topic(self) -> str: ...
    @property
    def key(self) -> bytes | None: ...
    @property
    def value(self) -> bytes | None: ...
    @property
    def timestamp(self) -> int: ...
    @property
    def version(self) -> Version: ...
    @property
    def headers(self) -> tuple[tuple[str, bytes], ...]: ...


Format = Callable[[ChangeEvent], Iterable[Formatted]]
