"""What is read, and how it is reached: two values with different lives.

A `ChangeStream` is an element of the pipeline. It is encoded, checkpointed and resumed, so it holds only what
identifies the reading. A `Connection` belongs to the program that runs: it may change between a stop and a
resume (another endpoint, other credentials), so it travels with the code and never into a checkpoint.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from apache_beam import coders

from penstock.coders import VersionedCoder
from penstock.io.change_streams import connection as reading
from penstock.timestamps import format_timestamp

VERSION = 1


@dataclass(frozen=True, slots=True)
class ChangeStream:
    """A change stream and the part of it to read: from `start` to `end`, nanoseconds, both inclusive.

    `end` None: without end. The start is a moment even when the user asked for "now", so that every retry
    reads from the same one.
    """

    project: str
    instance: str
    database: str
    change_stream: str
    start: int
    end: int | None

    @property
    def database_path(self) -> str:
        """The database's resource name."""
        return f"projects/{self.project}/instances/{self.instance}/databases/{self.database}"

    @property
    def identity(self) -> str:
        """What a checkpoint is gone on with: the change stream, and where the reading ends."""
        return f"{self}, {'without end' if self.end is None else f'to {format_timestamp(self.end)}'}"

    def __str__(self) -> str:
        return f"change stream {self.change_stream} of {self.database_path}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Connection(reading.Connection):
    """How a worker reaches Spanner."""

    plain_text: bool = False
    database_role: str | None = None


class ChangeStreamCoder(VersionedCoder):
    """Encodes a `ChangeStream` as a JSON list that begins with the format's version; deterministic."""

    value_type = ChangeStream
    what = "a change stream element"

    def encode(self, value: ChangeStream) -> bytes:
        fields = [value.project, value.instance, value.database, value.change_stream, value.start, value.end]
        return json.dumps([VERSION, *fields], separators=(",", ":")).encode()

    def decode(self, encoded: bytes) -> ChangeStream:
        """Return the change stream.

        Raises:
            ValueError: the bytes were written by a version that this one does not know.
        """
        version, *fields = json.loads(encoded)
        self.check_version(version)
        return ChangeStream(*fields)


coders.registry.register_coder(ChangeStream, ChangeStreamCoder)
