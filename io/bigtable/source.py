"""The change stream that is read, and the connection to it: two values with different lifetimes.

A `ChangeStream` is an element of the pipeline. It is encoded, checkpointed and resumed, so it holds only the identity
of the stream. A `Connection` belongs to the running program. It may change between a stop and a resume (another
endpoint, app profile or credentials), so it is never in a checkpoint.
"""

from __future__ import annotations

from dataclasses import dataclass

from penstock.io.bigtable.keys import EVERYTHING, KeyRange
from penstock.io.change_streams import connection
from penstock.io.change_streams.source import WithIdentity

EMULATOR_VARIABLE = "BIGTABLE_EMULATOR_HOST"
"""Environment variable that names the `host:port` of an emulator."""


@dataclass(frozen=True, slots=True)
class ChangeStream(WithIdentity):
    """The change stream of a table, and what of it to read.

    From `start` to `end`, nanoseconds, both inclusive, `end` None: without end; and of the row keys in `row_range`,
    start inclusive, end exclusive. The start is a fixed time even if the user asked for "now", so that every
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

    def __str__(self) -> str:
        return f"change stream of {self.table_path}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Connection(connection.Connection):
    """The address and credentials with which a worker reaches Bigtable."""

    app_profile: str = "default"
