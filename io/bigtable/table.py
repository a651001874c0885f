"""A table as it is: a bounded read of all its rows, by ranges, on all workers.

    rows = pipeline | ReadFromBigtableTable(project="my-project", instance="my-instance", table="my-table")

The ranges are those between the keys that SampleRowKeys returns, spread by a Reshuffle. Each row comes whole and
as it was at one moment, but different rows at different moments: a snapshot that a change stream is to continue
must be put together with the stream's records, by their commit timestamps. A range that is read again after a
failure gives its rows again, as they are then.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import apache_beam as beam
from apache_beam import coders
from apache_beam.transforms.display import DisplayDataItem

from penstock.coders import VersionedCoder
from penstock.extras import extra_packages
from penstock.io.bigtable.coder import ChangeStreamMutationCoder, entry_by_entry
from penstock.io.bigtable.keys import EVERYTHING, KeyRange
from penstock.io.bigtable.options import BigtableOptions
from penstock.io.bigtable.record import ChangeStreamMutation, MutationType, SetCell
from penstock.io.bigtable.source import EMULATOR_VARIABLE, Connection
from penstock.io.change_streams.arguments import in_range, named


@dataclass(frozen=True, slots=True)
class TableRow:
    """One row with all its cells, in the order of the service: families, qualifiers, newest version first."""

    row_key: bytes
    cells: tuple[SetCell, ...]

    def __repr__(self) -> str:  # without key and values, which are user data
        return f"<row of {len(self.cells)} cells>"


class TableRowCoder(VersionedCoder):
    """Encodes a row in version 1 of the format of `ChangeStreamMutationCoder`, as a change that sets its cells."""

    value_type = TableRow
    what = "a TableRow"

    def encode(self, value: TableRow) -> bytes:
        change = ChangeStreamMutation(value.row_key, MutationType.USER, "", 0, 0, "", 0, value.cells)
        return entry_by_entry(change)

    def decode(self, encoded: bytes) -> TableRow:
        """Return the row; raises ValueError for bytes of another version."""
        change = ChangeStreamMutationCoder().decode(encoded)
        return TableRow(change.row_key, tuple([cell for cell in change.entries if isinstance(cell, SetCell)]))


coders.registry.register_coder(TableRow, TableRowCoder)


class ReadFromBigtableTable(BigtableOptions, beam.PTransform):
    """Read the rows of a table.

    Raises:
        UsageError: an argument is missing, malformed or out of range. Whether the table exists and can be read is
            known only to the service: `check()` asks it.
    """

    def __post_init__(self) -> None:
        beam.PTransform.__init__(self)
        connection = Connection.of_options(
            EMULATOR_VARIABLE, self, app_profile=named("app_profile", self.app_profile)
        )
        self._source = _Source(
            named("project", self.project),
            named("instance", self.instance),
            named("table", self.table),
            connection,
        )
        in_range("unavailable_seconds", self.unavailable_seconds, 0, 86_400)
        self._row_range = KeyRange(*(self.row_range or EVERYTHING)).checked()

    def check(self) -> None:
        """Ask the service, from this process, whether the table can be read.

        Raises:
            ChangeStreamError: it cannot be read; the message says why and what to do.
            UnavailableError: the service did not answer for `unavailable_seconds`.
        """
        # The client imports google-cloud-bigtable, which only a running pipeline needs.
        with extra_packages("bigtable"):
            from penstock.io.bigtable.client import check_table

        check_table(str(self._source), self._source.connection, self.unavailable_seconds)

    def expand(self, pbegin: beam.pvalue.PBegin) -> beam.PCollection[TableRow]:
        return (
            pbegin
            | "Range" >> beam.Create([tuple(self._row_range)], reshuffle=False)
            | "Sample" >> beam.ParDo(_SampleFn(self._source))
            | "Spread" >> beam.Reshuffle()
            | "Read" >> beam.ParDo(_ReadRowsFn(self._source)).with_output_types(TableRow)
        )

    def display_data(self) -> dict[str, DisplayDataItem]:
        """Return the table and the app profile. Row keys are not part of it: they are data."""
        shown = {"table": str(self._source), "app_profile": self._source.connection.app_profile}
        return {name: DisplayDataItem(value, label=name) for name, value in shown.items()}


@dataclass(frozen=True, slots=True)
class _Source:
    project: str
    instance: str
    table: str
    connection: Connection

    def __str__(self) -> str:
        return f"projects/{self.project}/instances/{self.instance}/tables/{self.table}"


class _TableFn(beam.DoFn):
    """Holds the data client between setup and teardown."""

    def __init__(self, source: _Source) -> None:
        super().__init__()
        self._source = source
        self._client: Any = None
        self._table: Any = None

    def setup(self) -> None:
        source = self._source
        # The client imports google-cloud-bigtable, which only a running pipeline needs.
        from penstock.io.bigtable.row_client import data_client

        self._client = data_client(source.project, source.connection)
        self._table = self._client.get_table(
            source.instance, source.table, app_profile_id=source.connection.app_profile
        )

    def teardown(self) -> None:
        if self._client is not None:
            self._table.close()
            self._client.close()
            self._client = None


class _SampleFn(_TableFn):
    def process(self, element: tuple[bytes, bytes]) -> Iterator[tuple[bytes, bytes]]:
        yield from between(KeyRange(*element), [key for key, _ in self._table.sample_row_keys()])


class _ReadRowsFn(_TableFn):
    def process(self, element: tuple[bytes, bytes]) -> Iterator[TableRow]:
        from google.cloud.bigtable.data import ReadRowsQuery, RowRange

        start, end = element
        query = ReadRowsQuery(row_ranges=[RowRange(start or None, end or None)])
        for row in self._table.read_rows_stream(query):
            cells = [SetCell(c.family, c.qualifier, c.timestamp_micros, c.value) for c in row.cells]
            yield TableRow(row.row_key, tuple(cells))


def between(row_range: KeyRange, samples: list[bytes]) -> list[KeyRange]:
    """Return `row_range`, cut at those sampled keys that lie inside; a sample of ``b""`` is the table's end."""
    # Not the start itself: a range with two equal ends would be empty, and from b"" to b"" the whole table.
    inside = sorted({key for key in samples if key > row_range.start and row_range.holds(key)})
    return [KeyRange(*ends) for ends in pairwise([row_range.start, *inside, row_range.end])]
