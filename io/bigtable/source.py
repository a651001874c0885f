"""What is read, and how it is reached: two values with different lives.

A `ChangeStream` is an element of the pipeline. It is encoded, checkpointed and resumed, so it holds only what
identifies the reading. A `Connection` belongs to the program that runs: it may change between a stop and a
resume (another endpoint, app profile, other credentials), so it travels with the code and never into a
checkpoint.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from apache_beam import coders

from penstock.coders import VersionedCoder
from penstock.io.bigtable.keys import EVERYTHING, KeyRange
from penstock.io.change_streams import connection as reading
from penstock.timestamps import format_timestamp

VERSION = 1


@dataclass(frozen=True, slots=True)
class ChangeStream:
    """The change stream of a table, and what of it to read.

    From `start` to `end`, nanoseconds, both inclusive, `end` None: without end; and of the row keys in `row_range`,
    start inclusive, end exclusive. The start is a moment even when the user asked for "now", so that every
    retry reads from the same one.
    """

    project: str
    instance: str
    table: str
    start: int
    end: int | None
    row_range: KeyRange = EVERYTHING

    @property
    def instance_path(self) -> str:
        """The instance's resource name."""
        return f"projects/{self.project}/instances/{self.instance}"

    @property
    def table_path(self) -> str:
        """The table's resource name."""
        return f"{self.instance_path}/tables/{self.table}"

    @property
    def identity(self) -> str:
        """What a checkpoint is gone on with: the change stream, and where the reading ends."""
        return f"{self}, {'without end' if self.end is None else f'to {format_timestamp(self.end)}'}"

    def __str__(self) -> str:
        return f"change stream of {self.table_path}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Connection(reading.Connection):
    """How a worker reaches Bigtable."""

    app_profile: str = "default"


class ChangeStreamCoder(VersionedCoder):
    """Encodes a `ChangeStream` as a JSON list that begins with the format's version; deterministic.

    Row keys are text in which each character is one byte (Latin-1).
    """

    value_type = ChangeStream
    what = "a change stream element"

    def encode(self, value: ChangeStream) -> bytes:
        keys = [key.decode("latin-1") for key in value.row_range]
        fields = [value.project, value.instance, value.table, value.start, value.end, *keys]
        return json.dumps([VERSION, *fields], separators=(",", ":")).encode()

    def decode(self, encoded: bytes) -> ChangeStream:
        """Return the change stream.

        Raises:
            ValueError: the bytes were written by a version that this one does not know.
        """
        version, *fields = json.loads(encoded)
        self.check_version(version)
        project, instance, table, start, end, first, last = fields
        row_range = KeyRange(first.encode("latin-1"), last.encode("latin-1"))
        return ChangeStream(project, instance, table, start, end, row_range)


coders.registry.register_coder(ChangeStream, ChangeStreamCoder)
