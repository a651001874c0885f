"""Spanner's data change records as Debezium's records in JSON, without an event in between. Pure; part of the hot path.

    runs = ModRecordFormat(DebeziumFormat("shop"), server="p/i", database="d", stream="s").runs(records, times_us)

The result equals the output of `EventConverter` and then `DebeziumFormat`, byte by byte, in a third of the time. The
rows of neighbours are decoded in one call and encoded in another. Python looks at the columns only whose JSON in
Debezium's form differs from Spanner's.

Only whole new rows take this way: inserts, updates without an old row (NEW_ROW), and rows that were scanned; as JSON
without embedded schemas. All other records, and neighbours with a value that has no short way, are made from events.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from datetime import datetime
from itertools import accumulate, pairwise
from typing import Any

import msgspec

from penstock.event import ChangeEvent, Op, Source, TableSchema, Version
from penstock.event.keys import key_rules
from penstock.io.spanner.events import OPS, EventConverter, transaction_of, version_of_scan
from penstock.io.spanner.record import DataChangeRecord
from penstock.io.spanner.values import rest_of_conversion, wire_type
from penstock.io.staging.blocks import RecordRun
from penstock.transforms.formats.debezium import DebeziumFormat
from penstock.transforms.formats.debezium_envelope import Envelope
from penstock.transforms.formats.debezium_table import DebeziumTable
from penstock.transforms.formats.debezium_types import Convert, Mapping
from penstock.transforms.formats.formatted import FormattedRecord

_LETTERS = {"INSERT": "c", "UPDATE": "u", "READ": "r"}
"""The operations of whole new rows in Debezium's form, by mod_type."""
_BEFORE_ROW = b'{"before":null,"after":'
"""How each line begins."""
_encode_lines = msgspec.json.Encoder().encode_lines


class ModRecordFormat:
    """Formats the records of one change stream as `DebeziumFormat` formats their events. Picklable.

    `server`, `database`, `stream`: see `EventConverter`. `keyed`: whether the lines of `runs` have keys.
    """

    def __init__(
        self, format: DebeziumFormat, *, server: str, database: str, stream: str, keyed: bool = True
    ) -> None:
        self._format, self._keyed = format, keyed
        self._names = server, database, stream
        self._start()

    def _start(self) -> None:
        self._convert = EventConverter(*self._names)
        self._plans: dict[tuple[Any, ...], _ModTable | None] = {}

    def __getstate__(self) -> Any:
        # Classes of rows do not pickle; the worker makes them again.
        return self._format, self._keyed, self._names

    def __setstate__(self, state: Any) -> None:
        self._format, self._keyed, self._names = state
        self._start()

    def __call__(self, record: DataChangeRecord) -> list[FormattedRecord]:
        """Return the records of a data change record, in their order; with their keys, made of events.

        Raises:
            ValueError: a value does not have the form of its type, or the options cannot express it.
        """
        return [each for event in self._convert(record) for each in self._format(event)]

    def runs(self, records: Sequence[DataChangeRecord], times_us: list[int]) -> list[RecordRun]:
        """Return the values of the records of a batch as lines. A tombstone has no line.

        Raises:
            ValueError: see above.
        """
        runs = []
        for start, end in _neighbours(records):
            run = RecordRun(records[start].table_name, [] if self._keyed else None, [], [])
            self._add_lines(run, records[start:end], times_us[start:end])
            runs.append(run)
        return [run for run in runs if run.records]

    def _add_lines(
        self, run: RecordRun, records: Sequence[DataChangeRecord], times_us: Sequence[int]
    ) -> None:
        """Add the lines of records of one table with the same columns."""
        plan = self._find(records[0])
        start = 0
        while start < len(records):
            end = start + 1
            is_short = plan is not None and plan.takes(records[start])
            while end < len(records) and (plan is not None and plan.takes(records[end])) is is_short:
                end += 1
            if not (
                is_short and plan is not None and plan.add_lines(run, records[start:end], times_us[start:end])
            ):
                self._add_from_events(run, records[start:end], times_us[start:end])
            start = end

    def _add_from_events(
        self, run: RecordRun, records: Sequence[DataChangeRecord], times_us: Sequence[int]
    ) -> None:
        for record, time_us in zip(records, times_us, strict=True):
            for each in self(record):
                if each.value is not None:
                    run.records.append(each.value + b"\n")
                    run.times_us.append(time_us)
                    if run.keys is not None:
                        run.keys.append(each.key)

    def _find(self, record: DataChangeRecord) -> _ModTable | None:
        about = record.table_name, record.value_capture_type, record.column_types
        if about not in self._plans:
            source, schema = self._convert.source_and_schema(record)
            self._plans[about] = _ModTable.of(self._format, source, schema)
        return self._plans[about]


def table_of_record(record: DataChangeRecord) -> str:
    """Return the name of the table, with its schema if it has one."""
    return record.table_name


def _neighbours(records: Sequence[DataChangeRecord]) -> Iterator[tuple[int, int]]:
    """Yield start and end (exclusive) of neighbours of one table with the same columns."""
    start = 0
    for place, record in enumerate(records):
        first = records[start]
        # Equal tuples of columns are nearly always the same one, and comparing their columns would cost more.
        if (
            record.column_types is not first.column_types
            or record.table_name != first.table_name
            or record.value_capture_type != first.value_capture_type
        ):
            yield start, place
            start = place
    if records:
        yield start, len(records)


class _ModTable:
    """The lines of one table. `plan` is the same table in the format of events."""

    def __init__(
        self, plan: DebeziumTable, source: Source, schema: TableSchema, skipped: frozenset[str]
    ) -> None:
        self._plan, self._source, self._schema = plan, source, schema
        self._letters = {kind: letter for kind, letter in _LETTERS.items() if letter not in skipped}
        names = schema.names
        row = _struct([(name, wire_type(column.type)) for name, column in zip(names, schema, strict=True)])
        self._decode = msgspec.json.Decoder(list[row], strict=False).decode  # type: ignore[valid-type]
        shown = [_show(column.type, plan.mappings[column.name]) for column in schema]
        self._conversions = [(f"c{number}", show) for number, show in enumerate(shown) if show is not None]
        self._key = [f"c{names.index(column.name)}" for column in schema.key_columns]
        self._key_row = _struct([(column.name, Any) for column in schema.key_columns])

    @classmethod
    def of(cls, format: DebeziumFormat, source: Source, schema: TableSchema) -> _ModTable | None:
        """Return the lines of a table; None: all of them must be made from events."""
        plan = format.table(source, schema)
        # A column that has no form is left out, and a key with rules may be refused: both are rare.
        if not plan.is_plain_json or set(plan.mappings) != set(schema.names) or key_rules(schema):
            return None
        # Classes of msgspec take no names that JSON escapes. Spanner has no such names of columns either.
        if any(msgspec.json.encode(name) != f'"{name}"'.encode() for name in schema.names):
            return None
        return cls(plan, source, schema, format.skipped)

    def takes(self, record: DataChangeRecord) -> bool:
        """Return whether a record has whole new rows and no old ones."""
        letter = self._letters.get(record.mod_type)
        # "" is a side that is NULL, and "{}" has no column.
        return letter is not None and (
            letter == "c" or max(map(len, record.mods.texts[2::3]), default=0) <= 2
        )

    def add_lines(self, run: RecordRun, records: Sequence[DataChangeRecord], times_us: Sequence[int]) -> bool:
        """Add the lines of records that it takes to a run; False: they must be made from events, and none was added."""
        texts = []
        for record in records:
            sides = record.mods.texts
            texts += [f"{key[:-1]},{new[1:]}" for key, new in zip(sides[::3], sides[1::3], strict=True)]
        try:
            # Two objects become one by these cuts only if each has a member. All other texts fail: a comma too many is
            # no JSON, and a row must have each of its columns and no other.
            rows = self._decode(f"[{','.join(texts)}]")
            self._show_values(rows)
        except (TypeError, ValueError, ArithmeticError):
            return False
        run.records.extend(self._lines(records, rows))
        for record, time_us in zip(records, times_us, strict=True):
            run.times_us.extend([time_us] * len(record.mods))
        if run.keys is not None:
            keys = [self._key_row(*[getattr(row, name) for name in self._key]) for row in rows]
            run.keys.extend(_encode_lines(keys).split(b"\n")[:-1])
        return True

    def _show_values(self, rows: Sequence[Any]) -> None:
        for name, show in self._conversions:
            for row in rows:
                value = getattr(row, name)
                if value is not None:
                    setattr(row, name, show(value))

    def _lines(self, records: Sequence[DataChangeRecord], rows: Sequence[Any]) -> Iterator[bytes]:
        """Yield the lines of records, whose rows these are."""
        places = list(accumulate((len(record.mods) for record in records), initial=0))
        # Records of small transactions have one row each, so that all of their lines are made in this one call. To make
        # each further row of a large record like this would cost more than to join it with the parts of the first line.
        firsts = [
            self._envelope(record, rows[place])
            for record, place in zip(records, places[:-1], strict=True)
            if record.mods
        ]
        lines = iter(_encode_lines(firsts).splitlines(keepends=True))
        for record, (start, end) in zip(records, pairwise(places), strict=True):
            if end - start == 1:
                yield next(lines)
            elif end > start:
                yield from _lines_of_rows(next(lines), rows[start:end], is_scan=record.mod_type == "READ")

    def _envelope(self, record: DataChangeRecord, row: Any) -> Envelope:
        """Return the value of a record's first row."""
        op = OPS[record.mod_type]
        if op is Op.READ:
            transaction, version = None, version_of_scan(record)
        else:
            transaction = transaction_of(record)
            version = Version(record.commit_timestamp, transaction.id, record.record_sequence)
        event = ChangeEvent(
            self._source, op, record.commit_timestamp, None, None, None, version, self._schema, transaction
        )
        return self._plan.envelope(event, self._letters[record.mod_type], None, row)


def _lines_of_rows(line: bytes, rows: Sequence[Any], *, is_scan: bool) -> list[bytes]:
    """Return the lines of all rows of a record, of which the first has this line."""
    # JSON escapes the ends of lines within texts, so each line of this is a row.
    texts = _encode_lines(rows).splitlines()
    start, rest = line[: len(_BEFORE_ROW)], line[len(_BEFORE_ROW) + len(texts[0]) :]
    # A quote within a text has a backslash before it, so this is the member.
    middle, name, end = rest.partition(b',"mod_number":')
    middle, end = middle + name, end[1:]
    # The rows of a scan are no mods of a record: all have the number 0.
    numbers = [0] * len(rows) if is_scan else range(len(rows))
    return [
        b"%b%b%b%d%b" % (start, text, middle, number, end)
        for text, number in zip(texts, numbers, strict=True)
    ]


def _struct(columns: Sequence[tuple[str, Any]]) -> Any:
    """Return the class of rows with these columns, with the attributes c0, c1 and so on. Others are refused."""
    # Names of columns need not be names of attributes.
    rename = {f"c{number}": name for number, (name, _) in enumerate(columns)}
    fields = [(f"c{number}", type_) for number, (_, type_) in enumerate(columns)]
    return msgspec.defstruct("Row", fields, rename=rename, forbid_unknown_fields=True, gc=False)


def _show(type_: Any, mapping: Mapping) -> Convert | None:
    """Return the function from the value that msgspec decodes to the one that it encodes; None: they are the same."""
    rest, convert = rest_of_conversion(type_), mapping.convert
    if rest is None or convert is None:
        return rest or convert

    def both(value: Any) -> Any:
        return convert(rest(value))

    if mapping.schema.get("name") == "io.debezium.time.ZonedTimestamp":
        return lambda text: text if _is_shown_timestamp(text) else both(text)
    return both


_SHOWN_TIMESTAMP = re.compile(
    r"\d{4}-\d\d-\d\dT(?:[01]\d|2[0-3]):\d\d:\d\d(?:\.\d{0,8}[1-9])?Z", re.ASCII
).fullmatch


def _is_shown_timestamp(text: str) -> bool:
    """Return whether a timestamp is RFC 3339 in UTC with as many digits after the point as it needs."""
    if _SHOWN_TIMESTAMP(text) is None:
        return False
    datetime.fromisoformat(text[:19])  # a ValueError if there is no such day
    return True
