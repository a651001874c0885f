"""The two services of BigQuery that the sink needs, as protocols. Pure.

`WriteApi` (gRPC) appends rows to streams. `Warehouse` (REST) creates tables and runs the few queries of the sink. Tests
have both in memory, with lost answers and crashes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from penstock.event.model import TableSchema
from penstock.event.schema_policies import ChangePolicies
from penstock.io.bigquery.columns import Field
from penstock.io.bigquery.rows import RowLayout
from penstock.io.staging.complete_marks import Mark
from penstock.io.staging.delivery import LedgerEntry

DEFAULT_STREAM = "_default"
"""The stream that each table has: rows are visible at once, and there are no offsets."""


class LedgerRow(NamedTuple):
    """The last delivery of a writer to one table.

    The next row of the writer is at `next_offset` of `stream`. `refused` are the events of the delivery that were left
    out of any table, as JSON.
    """

    table: str
    generation: int
    epoch: int
    driver: str
    stream: str
    next_offset: int
    refused: str

    @property
    def entry(self) -> LedgerEntry:
        """The delivery, as `is_delivered` takes it."""
        return LedgerEntry(self.generation, self.epoch, self.driver)


class Successor(NamedTuple):
    """The stream that follows a stream of one writer and table, once and for all.

    It was chosen in `epoch`, when `before` rows of the delivery of that epoch were in earlier streams. So row `before`
    of that delivery is at offset 0.
    """

    stream: str
    epoch: int
    before: int


class WriteApi(Protocol):
    """Appends rows."""

    def create_stream(self, table: str) -> str:
        """Create a stream of type COMMITTED, and return its name."""

    def append(
        self, table: str, stream: str, layout: RowLayout, rows: Sequence[bytes], offset: int | None
    ) -> None:
        """Append rows to a stream of a table, all or none, and return when they are visible.

        With an offset the stream must have exactly this many rows.

        Raises:
            OffsetExistsError: the stream has more rows than `offset`.
            StreamEndedError: the stream takes no rows.
            RowsRefusedError: rows are refused because of their content.
            TargetUnavailableError: no answer; it is not known whether the rows were written.
            BigQueryTargetError: the request is refused.
        """

    def check_rights(self, table: str) -> None:
        """Raise an error if the account must not write to a table."""

    def finalize(self, stream: str) -> None:
        """End a stream that is not used. An error is ignored."""

    def close(self) -> None: ...


class Warehouse(Protocol):
    """Tables and queries. All methods raise TargetUnavailableError or BigQueryTargetError."""

    def require_dataset(self) -> None:
        """Raise an error if there is no dataset, or if it must not be read."""

    def create_log(self, table: str) -> None:
        """Create a change log if it is missing."""

    def replica(self, table: str, schema: TableSchema, policies: ChangePolicies) -> tuple[Field, ...]:
        """Return the columns of a table that takes rows of `schema`, after it was created or altered as needed."""

    def read_ledger(self, writer: str) -> list[LedgerRow]:
        """Return the last entry of each table of a writer. Entries that were acknowledged before are seen."""

    def mark_complete(self, mark: Mark) -> None:
        """Set the time until which a sink has completed the logs of the dataset, unless a later record has set it."""

    def mark_current(self, mark: Mark, staleness_seconds: int) -> None:
        """Note the time until which a sink has completed the tables of the mode current.

        It counts for queries that begin `staleness_seconds` after this call, or later. Of the times that count for a
        query the highest one holds, so a call with an old mark changes nothing.
        """

    def batch_indexes(self, table: str, writer: str, epoch: int) -> list[int]:
        """Return the indexes of the events of a batch that are in a log, in increasing order."""

    def successor(self, writer: str, table: str, stream: str) -> Successor | None:
        """Return the stream that follows `stream` (empty: the first one), or None if none was chosen."""

    def choose_successor(self, writer: str, table: str, stream: str, candidate: Successor) -> Successor:
        """Choose the stream that follows `stream`, unless one was chosen; return the chosen one.

        Atomic: of two processes that call it at the same time both get the same answer.
        """

    def close(self) -> None: ...
