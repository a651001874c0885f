"""The interface between staging and a file format."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from penstock.io.staging.blocks import RecordBlock


class FileFormat(Protocol):
    """How encoded records become the content of one file. It is pickled into the pipeline."""

    @property
    def suffix(self) -> str:
        """The end of published names, for example ``.jsonl``."""

    def content(self, blocks: Iterable[RecordBlock]) -> Iterable[bytes]:
        """Return the whole content of a file with the records of `blocks`, in any number of parts."""
