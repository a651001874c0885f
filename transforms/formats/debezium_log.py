"""PostgreSQL's log records as Debezium's records in JSON, without an event in between. Pure; part of the hot path.

    records = LogRecordFormat(DebeziumFormat("shop"), database="shop")(log_record)

The result equals the output of `EventConverter` and then `DebeziumFormat`, byte by byte, in a third of the time. Most
values need not become Python values: the log has the text of a number, and JSON wants the same text. Each table gets
the constant parts of its records once, and for each column the function from the text in the log to the text in JSON.

Only the frequent records take this way: inserts, updates that keep the key, deletes, and rows of snapshots, as JSON
without embedded schemas. All others, and each record with a value that has no short way, are made from events.
"""

from __future__ import annotations

from binascii import b2a_base64
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from json.encoder import encode_basestring as quoted
from typing import Any

import msgspec

from penstock.event import Kind, Source, TableSchema
from penstock.event.keys import key_rules
from penstock.io.change_streams.lazy_records import parts_of
from penstock.io.postgres import text_values
from penstock.io.postgres.column_types import text_reader
from penstock.io.postgres.decode import new_row
from penstock.io.postgres.events import EventConverter, version_of
from penstock.io.postgres.logged_rows import KINDS, LoggedRows, neighbours_by_table
from penstock.io.postgres.record import ChangeKind, LogRecord, LogTransaction, Row, Table
from penstock.io.staging.blocks import RecordRun
from penstock.transforms.formats.debezium import DebeziumFormat
from penstock.transforms.formats.debezium_source import CONNECTOR_VERSION
from penstock.transforms.formats.debezium_table import DebeziumTable
from penstock.transforms.formats.debezium_types import Convert
from penstock.transforms.formats.formatted import FormattedRecord

Show = Callable[[str], str]
"""From the text of a value in the log to its text in JSON."""

_OPS = {ChangeKind.INSERT: "c", ChangeKind.UPDATE: "u", ChangeKind.DELETE: "d", ChangeKind.READ: "r"}
_json = msgspec.json.Encoder().encode


class LogRecordFormat:
    """Formats the log records of one database as `DebeziumFormat` formats their events. Picklable.

    `database`, `stream`: the parts of the source that records do not name; see `ToChangeEvents`. `keyed`: whether the
    lines of `runs` have keys.
    """

    def __init__(
        self, format: DebeziumFormat, *, database: str = "", stream: str = "", keyed: bool = True
    ) -> None:
        self._format, self._database, self._stream = format, database, stream
        self._keyed = keyed
        self._convert = EventConverter("", database, stream)
        self._tables: dict[Table, _LogTable | None] = {}
        self._last: tuple[Table | None, _LogTable | None] = (None, None)

    def __getstate__(self) -> dict[str, Any]:
        # The functions of the columns are closures, which do not pickle; the worker makes them again.
        convert = EventConverter("", self._database, self._stream)
        return {**self.__dict__, "_convert": convert, "_tables": {}, "_last": (None, None)}

    def __call__(self, record: LogRecord) -> list[FormattedRecord]:
        """Return the records of a change, in their order.

        Raises:
            ValueError: a value does not have the form of its type, or the options cannot express it.
        """
        made = self.short(record)
        if made is not None:
            return made
        return [each for event in self._convert(record) for each in self._format(event)]

    def short(self, record: LogRecord) -> list[FormattedRecord] | None:
        """Return the records of a change; None if they must be made from its event."""
        table = record.table
        if table is None:
            return None
        last, found = self._last
        # Neighbours share their table, and its hash walks all columns.
        if table is not last:
            found = self._find(table)
            self._last = table, found
        return None if found is None else found.records(record)

    def values(
        self, table: Table, rows: LoggedRows, start: int
    ) -> tuple[str, list[bytes], list[bytes | None], list[Row]]:
        """Return the topic, the values, the keys and the decoded rows of `rows[start:]`, all of one table.

        They end before a row that has another number of records than one, or must be made from its event.
        """
        plan = self._find(table)
        if plan is None:
            return "", [], [], []
        keys, decoded = list[bytes | None](), list[Row]()
        lines = plan.lines_of_rows(rows, start, keys, decoded)
        return plan.topic, [line[:-1] for line in lines], keys, decoded

    def runs(self, records: Sequence[LogRecord], times_us: list[int]) -> list[RecordRun]:
        """Return the values of the records of a batch as lines. A tombstone has no line.

        Raises:
            ValueError: see above.
        """
        runs, start = [], 0
        for table, neighbours in neighbours_by_table(records):
            end = start + len(neighbours)
            runs.append(self._run(table, neighbours, times_us[start:end]))
            start = end
        return [run for run in runs if run.records]

    def _run(self, table: Table | None, records: Sequence[LogRecord], times_us: Sequence[int]) -> RecordRun:
        """Return the lines of records of one table."""
        plan = None if table is None else self._find(table)
        run = RecordRun(str(table or ""), [] if self._keyed else None, [], [])
        start = 0
        for part in parts_of(records):
            self._add_lines(run, plan, part, times_us[start : start + len(part)])
            start += len(part)
        return run

    def _add_lines(
        self, run: RecordRun, plan: _LogTable | None, records: Sequence[LogRecord], times_us: Sequence[int]
    ) -> None:
        done = 0
        # Invariant: the lines of `records[:done]` are in the run. `lines` ends before a record that it cannot make.
        while done < len(records):
            if plan is not None and (made := plan.lines(records, done, run.keys)):
                run.records.extend(made)
                run.times_us.extend(times_us[done : done + len(made)])
                done += len(made)
                continue
            for each in self(records[done]):
                if each.value is not None:
                    run.records.append(each.value + b"\n")
                    run.times_us.append(times_us[done])
                    if run.keys is not None:
                        run.keys.append(each.key)
            done += 1

    def _find(self, table: Table) -> _LogTable | None:
        if table not in self._tables:
            source, schema = self._convert.source_and_schema(table)
            plan = self._format.table(source, schema)
            self._tables[table] = (
                _LogTable(self._format, plan, source, schema, table) if plan.is_plain_json else None
            )
        return self._tables[table]


def table_of_record(record: LogRecord) -> str:
    """Return ``schema.table``; the empty string for a message."""
    return str(record.table or "")


class _LogTable:
    """The records of one table. `plan` is the same table in the format of events."""

    def __init__(
        self, format: DebeziumFormat, plan: DebeziumTable, source: Source, schema: TableSchema, table: Table
    ) -> None:
        self.topic, self._tombstones = plan.topic, format.has_tombstones
        self._ops = {kind: op for kind, op in _OPS.items() if op not in format.skipped}
        self._ops_of_messages = {kind: self._ops[name] for kind, name in KINDS.items() if name in self._ops}
        self._skipped = frozenset(_OPS) - frozenset(self._ops)
        # The record's key has one form for each value, and its row the form that was sent: a column of the key may
        # need two functions.
        rules = dict(key_rules(schema))
        self._has_rules = bool(rules)
        """Whether the key may be refused although the row is not."""
        shown = [(column.name, _show(column.type, plan.mappings[column.name])) for column in table.columns]
        self._show_row = _compile(shown, range(len(shown)))
        key = sorted(
            (column.key_position, number)
            for number, column in enumerate(table.columns)
            if column.key_position is not None
        )
        self._key = [number for _, number in key]
        in_key = [
            (name, _show(column.type, plan.mappings[name], rules[name]) if name in rules else show)
            for column, (name, show) in zip(table.columns, shown, strict=True)
        ]
        self._show_key = _compile(in_key, self._key)
        self._whole_key_in_identity = all(table.columns[number].in_identity for number in self._key)
        names = _members(version=CONNECTOR_VERSION, connector="postgresql", name=format.server)
        database = _members(db=source.database)
        self._head = f',"source":{{{names},"ts_ms":'
        flags = ("false", "true", "incremental")
        self._live, self._read, self._incremental = (f',"snapshot":"{flag}",{database},' for flag in flags)
        self._place = _members(schema=source.schema, table=source.table)
        self._about: tuple[LogTransaction | None, int, bool] = (None, -1, False)
        self._parts = ("", "", "", "")

    def records(self, record: LogRecord) -> list[FormattedRecord] | None:
        """Return the records of a change; None if it must be made from its event."""
        kind, old, new = record.kind, record.old, record.new
        op = self._ops.get(kind)
        if (
            kind is ChangeKind.UPDATE
            and old is not None
            and not (record.old_is_full and self._same_key(record))
        ):
            return None
        if op is None:
            return [] if kind in self._skipped else None
        if kind is ChangeKind.DELETE and not (record.old_is_full or self._whole_key_in_identity):
            return None
        try:
            before = "null" if old is None else self._show_row(*old)
            after = "null" if new is None else self._show_row(*new)
            key = self._show_key(*(new or old or ())).encode() if self._key else None
        except (TypeError, ValueError, ArithmeticError, LookupError):
            # A large value that was not sent, or one that the format refuses: the long way names the column.
            return None
        if (record.transaction, record.event_timestamp, record.incremental) != self._about:
            self._set_transaction(record.transaction, record.event_timestamp, incremental=record.incremental)
        first, second, third, last = self._parts
        lsn = record.lsn
        value = f'{{"before":{before},"after":{after}{first}{lsn}{second}{lsn}{third}{op}{last}'.encode()
        version, timestamp = version_of(record), record.event_timestamp
        made = FormattedRecord(self.topic, key, value, timestamp, version)
        if kind is ChangeKind.DELETE and self._tombstones:
            return [made, FormattedRecord(self.topic, key, None, timestamp, version)]
        return [made]

    def lines(self, records: Sequence[LogRecord], start: int, keys: list[bytes | None] | None) -> list[bytes]:
        """Return the lines of `records[start:]`, up to one that is made in another way. Their keys go to `keys`.

        Only rows without an old one are made here: the values of `records` without the objects around them.
        """
        if isinstance(records, LoggedRows):
            return self.lines_of_rows(records, start, keys)
        ops, show = self._ops, self._show_row
        transaction, timestamp, incremental = self._about
        first, second, third, last = self._parts
        lines: list[bytes] = []
        for number in range(start, len(records)):
            record = records[number]
            op, new = ops.get(record.kind), record.new
            if op is None or new is None or record.old is not None:
                break
            try:
                after = show(*new)
                self._note_key(new, keys)
            except (TypeError, ValueError, ArithmeticError, LookupError):
                break
            # The transaction is compared by identity, which is enough for neighbours and costs less.
            if (
                record.transaction is not transaction
                or record.event_timestamp != timestamp
                or record.incremental is not incremental
            ):
                transaction, timestamp, incremental = (
                    record.transaction,
                    record.event_timestamp,
                    record.incremental,
                )
                self._set_transaction(transaction, timestamp, incremental=incremental)
                first, second, third, last = self._parts
            lsn = record.lsn
            value = f'{{"before":null,"after":{after}{first}{lsn}{second}{lsn}{third}{op}{last}\n'
            lines.append(value.encode())
        return lines

    def lines_of_rows(
        self,
        rows: LoggedRows,
        start: int,
        keys: list[bytes | None] | None,
        decoded: list[Row] | None = None,
    ) -> list[bytes]:
        """Do the same for rows as the server has sent them. The row of each line is added to `decoded`."""
        ops, show = self._ops_of_messages, self._show_row
        transaction, timestamp, _ = self._about
        first, second, third, last = self._parts
        lines: list[bytes] = []
        # Invariant: each row before `number` has its line, its key and its place in `decoded`. The first row that
        # cannot be made here ends all three.
        for number in range(start, len(rows)):
            lsn, payload = rows.messages[number]
            op, new = ops.get(payload[0]), new_row(payload)
            if op is None or new is None:
                break
            try:
                after = show(*new)
                self._note_key(new, keys)
            except (TypeError, ValueError, ArithmeticError, LookupError):
                break
            if rows.transactions[number] is not transaction or rows.timestamps[number] != timestamp:
                transaction, timestamp = rows.transactions[number], rows.timestamps[number]
                self._set_transaction(transaction, timestamp)
                first, second, third, last = self._parts
            value = f'{{"before":null,"after":{after}{first}{lsn}{second}{lsn}{third}{op}{last}\n'
            lines.append(value.encode())
            if decoded is not None:
                decoded.append(new)
        return lines

    def _note_key(self, new: Row, keys: list[bytes | None] | None) -> None:
        """Add the key of a row to `keys`. It is also made to see whether it is refused."""
        if keys is not None:
            keys.append(self._show_key(*new).encode() if self._key else None)
        elif self._has_rules:
            self._show_key(*new)

    def _same_key(self, record: LogRecord) -> bool:
        old, new = record.old, record.new
        return old is not None and new is not None and all(old[n] == new[n] for n in self._key)

    def _set_transaction(
        self, transaction: LogTransaction | None, timestamp: int, *, incremental: bool = False
    ) -> None:
        """Make the parts of the value that all records of a transaction share. `lsn` is written between them.

        Without a transaction they are rows of a snapshot. `timestamp`: `LogRecord.event_timestamp`.
        """
        # A transaction may have one row, so this takes as long as few values: texts, and no JSON encoder.
        previous = xid = "null"
        third, committed = _WITHOUT_ORIGIN, timestamp
        if transaction is None:
            place = self._incremental if incremental else self._read
        else:
            place, committed, xid = self._live, transaction.commit_timestamp, str(transaction.id)
            if transaction.previous_end_lsn:
                previous = f'\\"{transaction.previous_end_lsn}\\"'
            if transaction.origin or transaction.origin_lsn:  # seldom
                third = _third_part(transaction.origin or None, transaction.origin_lsn or None)
        micros = committed // 1_000
        self._parts = (
            f'{self._head}{micros // 1_000}{place}"sequence":"[{previous},\\"',
            f'\\"]","ts_us":{micros},"ts_ns":{committed},{self._place},"txId":{xid},"lsn":',
            third,
            f'","ts_ms":{timestamp // 1_000_000},"ts_us":{timestamp // 1_000},"ts_ns":{timestamp}}}',
        )
        self._about = transaction, timestamp, incremental


def _third_part(origin: str | None, lsn: int | None) -> str:
    origin_json, lsn_json = _json(origin).decode(), _json(lsn).decode()
    return f',"xmin":null,"origin":{origin_json},"origin_lsn":{lsn_json}}},"transaction":null,"op":"'


_WITHOUT_ORIGIN = _third_part(None, None)


def _compile(columns: Sequence[tuple[str, Show | None]], chosen: Sequence[int]) -> Callable[..., str]:
    """Return the function from the values of a row to the JSON object of the chosen columns.

    It raises a TypeError for a large value that was not sent, because that is no text.
    """
    # Generated, because a loop over the columns costs twice as much as all their functions. Names of columns do not
    # become code: they are values of the namespace. Types of fixed size, whose texts are taken as they are, are always
    # sent.
    names: dict[str, Any] = {}
    parts = []
    for place, number in enumerate(chosen):
        name, show = columns[number]
        names[f"name{number}"] = f"{',' if place else '{'}{_text(name)}:"
        names[f"show{number}"] = show
        shown = f"value{number}" if show is None else f"show{number}(value{number})"
        parts.append(f"{{name{number}}}{{'null' if value{number} is None else {shown}}}")
    values = ", ".join(f"value{number}" for number in range(len(columns)))
    body = "".join(parts) or "{{"
    code = f'lambda {values}: f"{body}}}}}"'
    compiled: Callable[..., str] = eval(code, names)
    return compiled


def _text(value: str) -> str:
    return _json(value).decode()


def _members(**members: str) -> str:
    """Return the members of a JSON object without its braces."""
    return _json(members).decode()[1:-1]


def _show(type_: Any, mapping: Any, canonical: Convert | None = None) -> Show | None:
    """Return the function from the text of a value to JSON; None: the text is JSON already.

    `canonical`: the rule of a key column, see `penstock.event.keys`.
    """
    read, convert = text_reader(type_), mapping.convert

    def from_value(text: str) -> str:
        if type(text) is not str:
            raise TypeError("a large value that was not sent")
        value = text if read is None else read(text)
        if canonical is not None:
            value = canonical(value)
        return _json(value if convert is None else convert(value)).decode()

    if canonical is not None:
        return from_value
    # From here on the frequent types, which need no Python value: their text becomes JSON directly.
    if convert is None and read is int:
        return None
    if convert is None and read is None:
        return quoted
    if convert is None and type_.kind is Kind.BOOL:
        return {"t": "true", "f": "false"}.__getitem__
    name = mapping.schema.get("name", "")
    # `_unscaled` looks for the point, and a number without digits after it has none.
    if name == "org.apache.kafka.connect.data.Decimal" and type_.kind is Kind.DECIMAL and type_.scale > 0:
        return _unscaled(type_.scale)
    if name == "io.debezium.time.ZonedTimestamp":
        return _zoned(6 if type_.scale is None else type_.scale, from_value)
    if read is text_values.timestamp and name in _UNITS:
        return _since_1970(_UNITS[name], from_value)
    return from_value


_EPOCH = datetime(1970, 1, 1)
_UNITS = {
    "io.debezium.time.Timestamp": timedelta(milliseconds=1),
    "io.debezium.time.MicroTimestamp": timedelta(microseconds=1),
}


def _since_1970(unit: timedelta, from_value: Show) -> Show:
    """Return the function from a timestamp without a time zone to a number of units."""

    def show(text: str) -> str:
        try:
            since = datetime.fromisoformat(text) - _EPOCH
        except ValueError:  # a year that `datetime` does not have, or infinity
            return from_value(text)
        return str(since // unit)

    return show


def _unscaled(scale: int) -> Show:
    """Return the function from a number with `scale` digits after the point to base64 of its digits as an integer."""
    point = -scale - 1

    def show(text: str) -> str:
        if text[point] != ".":  # NaN and infinities too
            raise ValueError("not a number with as many digits after the point as its column declares")
        number = int(text.replace(".", ""))
        length = (number if number >= 0 else ~number).bit_length() // 8 + 1
        return f'"{b2a_base64(number.to_bytes(length, "big", signed=True), newline=False).decode()}"'

    return show


def _zoned(digits: int, from_value: Show) -> Show:
    """Return the function from a timestamp in UTC as PostgreSQL prints it to RFC 3339 with `digits` digits."""
    longest = len("2000-01-01 00:00:00.000000+00")

    def show(text: str) -> str:
        if (
            digits == 6 and len(text) == longest and text[10] == " " and text[26:] == "+00"
        ):  # nearly all of them
            return f'"{text[:10]}T{text[11:26]}Z"'
        # Years after 9999, years before 1, and infinities have other lengths, places or ends.
        if text[10:11] != " " or not text.endswith("+00"):
            return from_value(text)
        return (
            f'"{text[:10]}T{text[11:19]}.{text[20:-3]:0<{digits}}Z"'
            if digits
            else f'"{text[:10]}T{text[11:19]}Z"'
        )

    return show
