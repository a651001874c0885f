"""BigQuery in memory: write streams with offsets, the ledger's queries, and the rule that merges changes.

Written from BigQuery's documentation, not from the sink. `Process` gives a sender its two services. Every request of a
process goes through `Process.request`, where a test drops it, loses its answer, or lets other processes work first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import count
from typing import Any, TypeVar

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from penstock.event import TableSchema
from penstock.event.schema_changes import plan_schema_change
from penstock.event.schema_policies import ChangePolicies
from penstock.io.bigquery.columns import Field, field_of, known_type
from penstock.io.bigquery.errors import (
    BigQueryTargetError,
    OffsetExistsError,
    RowsRefusedError,
    StreamEndedError,
)
from penstock.io.bigquery.log_rows import LEDGER
from penstock.io.bigquery.rows import RowLayout
from penstock.io.bigquery.services import DEFAULT_STREAM, LedgerRow, Successor
from penstock.io.staging.complete_marks import Mark
from penstock.io.staging.delivery import TargetUnavailableError

_Result = TypeVar("_Result")
Row = dict[str, Any]


@dataclass
class Stream:
    """A stream of type COMMITTED. `ended` is why it takes no rows: FINALIZED, NOT_FOUND, or empty."""

    table: str
    rows: int = 0
    ended: str = ""


@dataclass
class BigQuery:
    """The service. `refuses` tells which rows it refuses because of their content.

    `rows_first`: it looks at rows before offsets. The documentation does not say which it does.
    """

    refuses: Callable[[Row], bool] = lambda row: False
    rows_first: bool = False
    tables: dict[str, list[Row]] = field(default_factory=dict)
    streams: dict[str, Stream] = field(default_factory=dict)
    successors: dict[tuple[str, str, str], Successor] = field(default_factory=dict)
    schemas: dict[str, dict[str, Field]] = field(default_factory=dict)
    now: float = 0.0
    appended: dict[str, list[float]] = field(default_factory=dict)
    """When each row of a table was appended."""
    marks: list[tuple[Mark, float]] = field(default_factory=list)
    """Marks of the mode current, each with the time from which it counts."""
    _names: Any = field(default_factory=count)

    def create_stream(self, table: str) -> str:
        name = f"stream-{next(self._names)}"
        self.streams[name] = Stream(table)
        return name

    def append(self, table: str, stream: str, rows: Sequence[Row], offset: int | None) -> None:
        """Append rows: all or none."""
        found = None if stream == DEFAULT_STREAM else self.streams[stream]
        bad = {index: "bad" for index, row in enumerate(rows) if self.refuses(row)}
        if bad and self.rows_first and not (found and found.ended):
            raise RowsRefusedError(bad)
        if found is not None:
            assert found.table == table
            if found.ended:
                raise StreamEndedError(found.ended)
            if offset is not None and offset < found.rows:
                raise OffsetExistsError(str(offset))
            if offset is not None and offset > found.rows:
                raise BigQueryTargetError("OFFSET_OUT_OF_RANGE")
        if bad:
            raise RowsRefusedError(bad)
        if found is not None:
            found.rows += len(rows)
        self.tables.setdefault(table, []).extend(rows)
        self.appended.setdefault(table, []).extend([self.now] * len(rows))

    def changes_seen(self, table: str, staleness: float) -> list[Row]:
        """Return the changes that a query sees now, if BigQuery has applied no later ones than `max_staleness` asks."""
        times = self.appended.get(table, [])
        return [
            row
            for row, at in zip(self.tables.get(table, []), times, strict=True)
            if at <= self.now - staleness
        ]

    def mark_current(self, mark: Mark, staleness: float) -> None:
        """Note a mark, and forget those that change no answer any more."""
        self.marks.append((mark, self.now + staleness))
        until = self.until_us(mark.job, mark.sink)
        self.marks = [each for each in self.marks if each[0].sink != mark.sink or each[0].until_us >= until]

    def until_us(self, job: str, sink: str) -> int:
        """Return the time that the query of docs/sinks/bigquery.md gives now; 0: none."""
        of_sink = (each for each in self.marks if (each[0].job, each[0].sink) == (job, sink))
        return max((mark.until_us for mark, counts_from in of_sink if counts_from <= self.now), default=0)

    def end(self, stream: str, why: str) -> None:
        self.streams[stream].ended = why

    def current(self, table: str, *key: str) -> list[Row]:
        """Return the rows of a table that BigQuery maintains from changes: the highest number of each key counts, of
        equal ones the last.
        """
        newest: dict[tuple[Any, ...], Row] = {}
        for row in self.tables.get(table, []):
            columns = tuple(row[name] for name in key)
            known = newest.get(columns)
            if known is None or _number(row) >= _number(known):
                newest[columns] = row
        return [row for row in newest.values() if row["_CHANGE_TYPE"] == "UPSERT"]


def _number(row: Row) -> list[int]:
    sections = row["_CHANGE_SEQUENCE_NUMBER"].split("/")
    assert 1 <= len(sections) <= 4
    assert all(1 <= len(each) <= 16 for each in sections)
    return [int(each, 16) for each in sections]


@dataclass
class Process:
    """The two services as one process of the pipeline reaches them; see `WriteApi` and `Warehouse`."""

    service: BigQuery
    request: Callable[[Callable[[], Any]], Any] = lambda work: work()

    def create_stream(self, table: str) -> str:
        return str(self.request(lambda: self.service.create_stream(table)))

    def append(
        self, table: str, stream: str, layout: RowLayout, rows: Sequence[bytes], offset: int | None
    ) -> None:
        decoded = [decode(layout, row) for row in rows]
        self.request(lambda: self.service.append(table, stream, decoded, offset))

    def finalize(self, stream: str) -> None:
        self.request(lambda: self.service.end(stream, "FINALIZED"))

    def close(self) -> None:
        pass

    def create_log(self, table: str) -> None:
        self.request(lambda: self.service.tables.setdefault(table, []))

    def replica(self, table: str, schema: TableSchema, policies: ChangePolicies) -> tuple[Field, ...]:
        def altered() -> tuple[Field, ...]:
            known = self.service.schemas.setdefault(table, {})
            types = {
                column.name: known_type(known[column.name], column.type)
                for column in schema
                if column.name in known
            }
            change = plan_schema_change(table, types, schema, policies)
            known.update(
                (column.name, field_of(column.name, column.type))
                for column in (*change.added, *change.widened)
            )
            return tuple(known.values())

        found: tuple[Field, ...] = self.request(altered)
        return found

    def read_ledger(self, writer: str) -> list[LedgerRow]:
        def last() -> list[LedgerRow]:
            rows: dict[str, Row] = {}
            for row in self.service.tables.get(LEDGER, []):
                known = rows.get(row["table_name"])
                if row["writer"] == writer and (known is None or row["epoch"] > known["epoch"]):
                    rows[row["table_name"]] = row
            names = ("table_name", "generation", "epoch", "driver", "stream", "next_offset", "refused")
            return [LedgerRow(*(row[name] for name in names)) for row in rows.values()]

        found: list[LedgerRow] = self.request(last)
        return found

    def mark_current(self, mark: Mark, staleness_seconds: int) -> None:
        self.request(lambda: self.service.mark_current(mark, staleness_seconds))

    def batch_indexes(self, table: str, writer: str, epoch: int) -> list[int]:
        def indexes() -> list[int]:
            batch = (writer, epoch)
            rows = self.service.tables[table]
            return sorted(r["batch_index"] for r in rows if (r["batch_writer"], r["batch_epoch"]) == batch)

        found: list[int] = self.request(indexes)
        return found

    def successor(self, writer: str, table: str, stream: str) -> Successor | None:
        found: Successor | None = self.request(lambda: self.service.successors.get((writer, table, stream)))
        return found

    def choose_successor(self, writer: str, table: str, stream: str, candidate: Successor) -> Successor:
        cell = (writer, table, stream)
        found: Successor = self.request(lambda: self.service.successors.setdefault(cell, candidate))
        return found


def decode(layout: RowLayout, content: bytes) -> Row:
    """Return a row as BigQuery reads it: an absent column is None."""
    message = _message(layout)()
    message.ParseFromString(content)
    return {
        each.name: list(getattr(message, each.name))
        if each.mode == "REPEATED"
        else (getattr(message, each.name) if message.HasField(each.name) else None)
        for each in layout.fields
    }


@lru_cache(maxsize=64)
def _message(layout: RowLayout) -> Any:
    file = descriptor_pb2.FileDescriptorProto(name="read.proto", syntax="proto2")
    file.message_type.add().CopyFrom(layout.descriptor)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(layout.descriptor.name))


class Faults:
    """Makes requests of one process fail: the `at`-th is dropped, loses its answer, or waits for others first."""

    def __init__(self, at: int, kind: str, others: Callable[[], None] = lambda: None) -> None:
        self._at, self._kind, self._others = at, kind, others
        self.requests = 0

    def __call__(self, work: Callable[[], _Result]) -> _Result:
        number, self.requests = self.requests, self.requests + 1
        if number != self._at:
            return work()
        if self._kind == "drop":
            raise TargetUnavailableError("dropped")
        if self._kind == "pause before":
            self._others()
            return work()
        result = work()
        if self._kind == "pause after":
            self._others()
            return result
        raise TargetUnavailableError("no answer")
