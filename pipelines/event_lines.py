"""`EventLines`: the records of a source as lines in a format, with the choices of `EventOptions`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from operator import attrgetter
from typing import Any

import apache_beam as beam

from penstock.errors import UsageError
from penstock.io.files import WriteToJsonLines
from penstock.pipelines.event_options import EventOptions, by_table, table_and_column
from penstock.secrets import read_secret
from penstock.transforms import (
    Barriers,
    DeadLetters,
    FilterEvents,
    Mask,
    MaskColumns,
    MaterializeRows,
    RenameColumns,
    SelectColumns,
    ShardByKey,
    ShardRecord,
    ToChangeEvents,
    hashed,
    redacted,
    truncated,
)
from penstock.transforms.dead_letters import letter_fields
from penstock.transforms.element_transform import ElementTransform
from penstock.transforms.expression import RowExpression
from penstock.transforms.formats.capture import check_capture
from penstock.transforms.formats.lines import Line, RecordLines
from penstock.transforms.formats.ydb import YdbFormat


class EventLines(beam.PTransform):  # type: ignore[misc, unused-ignore]
    """Converts, filters, masks and formats the records of a source; emits `Line`s.

    Order, repeats, watermark and state are those of the source, unless rows are materialized or barriers added: see
    `MaterializeRows` and `Barriers`. With `dead_letters` it also writes what cannot be converted or formatted.

    Args:
        options: the user's choices.
        system: spanner or bigtable.
        stream: the change stream that is read.
        capture: a function that returns the capture type of the source; it is called before the start, and only if
            the format depends on it.
        shards: number of shards of the sink, for barriers.

    Raises:
        UsageError: a choice is malformed, or the source cannot satisfy it.
    """

    def __init__(
        self,
        options: EventOptions,
        system: str,
        stream: Any,
        capture: Callable[[], str],
        shards: int,
    ) -> None:
        super().__init__()
        self._options, self._capture, self._shards = options, capture, shards
        self._format = options.make_format(system, stream)
        self._lines = RecordLines(self._format, options.lines)
        self._convert = ToChangeEvents(
            server=f"{stream.project}/{stream.instance}",
            database=getattr(stream, "database", ""),
            stream=getattr(stream, "change_stream", ""),
            table=getattr(stream, "table", ""),
        )
        self._steps = [*row_steps(options), *column_steps(options)]
        if options.barrier_seconds and not isinstance(self._format, YdbFormat):
            raise UsageError(f"barrier_seconds is for format ydb; format {options.format} has no barriers")
        if system == "bigtable":
            self.check()  # nothing has to be asked for

    def check(self) -> None:
        """Check before the start that the source can satisfy the format.

        Raises:
            UsageError: it cannot; the message names the capture types that can.
        """
        mode = getattr(self._format, "required_mode", None)
        if mode and not self._options.materialize_rows:
            try:
                check_capture(mode, self._capture())
            except UsageError as error:
                remedy = "; or set materialize_rows=true" if self._capture() else ""
                raise UsageError(f"format {self._options.format}: {error}{remedy}") from None

    def expand(self, records: beam.PCollection[Any]) -> beam.PCollection[Line]:
        """Apply the steps; a step that has nothing to do is left out."""
        options, failures = self._options, []
        folder = options.dead_letters

        def apply(events: Any, name: str, transform: Any) -> Any:
            if folder is None or not isinstance(transform, ElementTransform):
                return events | name >> transform
            done, failed = events | name >> transform.with_exception_handling()
            failures.append(failed)
            return done

        events = apply(records, "ToChangeEvents", self._convert)
        for name, transform in self._steps:
            events = apply(events, name, transform)
        if options.barrier_seconds:
            sharded = apply(events, "ShardByKey", ShardByKey(self._shards))
            barriers = Barriers(shards=self._shards, interval_seconds=options.barrier_seconds, per_table=True)
            to_lines = partial(_shard_lines, self._lines)
            lines = apply(sharded | "Barriers" >> barriers, "ToLines", ElementTransform(to_lines, Line))
        else:
            lines = apply(events, "ToLines", ElementTransform(self._lines, Line))
        if folder is not None:
            letters = failures | "Failures" >> beam.Flatten() | "DeadLetters" >> DeadLetters(with_text=True)
            _ = letters | "WriteDeadLetters" >> WriteToJsonLines(
                folder, table="dead-letters", format=letter_fields
            )
        return lines


class WriteLines(beam.PTransform):  # type: ignore[misc, unused-ignore]
    """Writes `Line`s to files of their tables; see `WriteToJsonLines`."""

    def __init__(self, options: EventOptions, output: str, *, shards: int, roll_seconds: float) -> None:
        super().__init__()
        divided = bool(options.barrier_seconds)
        self._write = WriteToJsonLines(
            output,
            table=attrgetter("table"),
            key=None if divided else attrgetter("table", "key"),
            shard=attrgetter("shard") if divided else None,
            format=attrgetter("line"),
            shards=shards,
            roll_seconds=roll_seconds,
        )

    def expand(self, lines: beam.PCollection[Line]) -> Any:
        """Return the published files."""
        return lines | "Files" >> self._write


Steps = list[tuple[str, beam.PTransform]]
"""Labels and transforms."""


def row_steps(options: EventOptions) -> Steps:
    """Return the steps up to whole rows. They filter tables only: other filters hide a part of a row's changes."""
    steps: Steps = []
    if options.tables or options.without_tables:
        tables = FilterEvents(tables=options.tables or None, without_tables=options.without_tables or None)
        steps.append(("FilterTables", tables))
    return [*steps, ("MaterializeRows", MaterializeRows())] if options.materialize_rows else steps


def column_steps(options: EventOptions) -> Steps:
    """Return the steps that filter changes, and choose, mask and rename columns, which keep their names until then.

    Raises:
        UsageError: a choice is malformed.
    """
    steps: Steps = []
    if options.operations or options.without_tags or options.where:
        where = RowExpression(options.where) if options.where else None
        chosen = FilterEvents(ops=options.operations or None, without_tags=options.without_tags, where=where)
        steps.append(("FilterChanges", chosen))
    only = by_table(options.only_columns)
    if "*" in only and len(only) > 1:
        raise UsageError("only_columns: write every column with its table, or none of them")
    steps += [
        (f"OnlyColumns({table})", SelectColumns(only=each, table=table)) for table, each in only.items()
    ]
    for table, each in by_table(options.without_columns).items():
        steps.append((f"WithoutColumns({table})", SelectColumns(without=each, table=table)))
    masks: dict[str, dict[str, Mask]] = {}
    for table, column, kind, length in options.chosen_masks():
        masks.setdefault(table, {})[column] = _mask(kind, length, options.mask_key)
    steps += [(f"MaskColumns({table})", MaskColumns(each, table=table)) for table, each in masks.items()]
    names: dict[str, dict[str, str]] = {}
    for reference, new in options.rename_columns.items():
        table, column = table_and_column(reference)
        names.setdefault(table, {})[column] = new
    return [*steps, *((f"RenameColumns({t})", RenameColumns(each, table=t)) for t, each in names.items())]


def _mask(kind: str, length: int, key: str | None) -> Mask:
    match kind:
        case "hash":
            return hashed(read_secret(key or "").encode())
        case "truncate":
            return truncated(length)
    return redacted()


def _shard_lines(lines: RecordLines, pair: tuple[int, ShardRecord]) -> list[Line]:
    shard, record = pair
    if record.event is not None:
        return [line._replace(key=str(shard), shard=shard) for line in lines(record.event)]
    return [
        lines.barrier(record.table, record.timestamp.step * 1_000_000)._replace(key=str(shard), shard=shard)
    ]
