"""Stages whole files of one sink, for the two steps that do so: the one that collects, and the one that rolls."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import count

from apache_beam.metrics import Metrics

from penstock.io.staging.blocks import RecordBlock
from penstock.io.staging.format import FileFormat
from penstock.io.staging.metrics import NAMESPACE
from penstock.io.staging.names import final_name, staged_name
from penstock.io.staging.operations import StagedContent, StagingBundle
from penstock.io.staging.staged_file import StagedFile
from penstock.io.staging.store import FileStore
from penstock.publish import current_attempt

# A counter of the process and not of the DoFn: Beam may run several copies of a DoFn in one process, and within one
# attempt they must not use the same number.
file_numbers = count()
"""Numbers the files that this process stages. Within one attempt, names of a bucket sort in the order of staging."""


class FileStager:
    """The files that one bundle of a DoFn stages. `start` begins a bundle, and `finish` makes its files durable."""

    def __init__(self, store: FileStore, sink: str, format: FileFormat) -> None:
        self.store = store
        self._sink = sink
        self._format = format
        self._bundle = StagingBundle(store)
        self._files = Metrics.counter(NAMESPACE, "staged_files")
        self._bytes = Metrics.counter(NAMESPACE, "staged_bytes")

    def start(self) -> None:
        """Begin a bundle."""
        self._bundle = StagingBundle(self.store)

    def stage(self, blocks: Iterable[RecordBlock], records: int) -> StagedFile:
        """Stage a file with the records of `blocks`. Its final name is empty: see `final_name`.

        Raises:
            OutputError: the store refused.
        """
        name = staged_name(self._sink, current_attempt(), next(file_numbers))
        content = self.write(name, self._format.content(blocks))
        return StagedFile(
            output=self.store.output,
            staged=name,
            final="",
            length=content.length,
            crc32=content.crc32,
            records=records,
        )

    def write(self, name: str, content: Iterable[bytes]) -> StagedContent:
        """Stage content under a name that no other try uses, and return what was written."""
        written = self._bundle.stage(name, content)
        self._files.inc()
        self._bytes.inc(written.length)
        return written

    def final_name(self, bucket: str) -> str:
        """Return a final name. The names of a bucket in one attempt sort in the order of the calls."""
        return final_name(bucket, current_attempt(), next(file_numbers), self._format.suffix)

    def finish(self) -> None:
        """Make all files of the bundle durable. The commit comes later.

        Raises:
            OutputError: the store refused.
        """
        self._bundle.finish()
