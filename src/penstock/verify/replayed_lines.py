"""The rows that the JSON Lines of a table give when their changes are replayed.

Only lines are read that tell the version and all values of a change: native lines of PostgreSQL and Spanner, and lines
of the format *envelope* in JSON. Values are compared as events have them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec

from penstock.event.keys import changed_key
from penstock.event.model import ChangeEvent, Image, Op, TableSchema
from penstock.event.replica import encode_version
from penstock.io.columnar.table_rows import key_text
from penstock.transforms.parsers.envelope import EventParser
from penstock.verify.file_changes import FileChanges, FileKind, UnreadableLineError
from penstock.verify.replay import Change
from penstock.verify.replayed_files import ReplayedFiles

ReadLine = Callable[[bytes], ChangeEvent]
"""From a line to its event; raises a ValueError that shows no values."""


@dataclass(slots=True)
class ReplayedLines(ReplayedFiles):
    """One table; see `ReplayedFiles`."""

    def _compared(self, schema: TableSchema) -> TableSchema:
        return schema

    def _stored(self, events: Iterable[ChangeEvent]) -> dict[str, Image]:
        compared = {column.name for column in self.columns}
        return {
            key_text(event.key or {}): {
                name: value
                for name, value in {**(event.after or {}), **(event.key or {})}.items()
                if name in compared
            }
            for event in events
        }

    def _key_text(self, key: dict[str, Any]) -> str:
        return key_text(key)


def lines_of(read_line: ReadLine) -> FileKind:
    """Return the kind of files with such lines."""
    return FileKind(".jsonl", partial(_changes, read_line))


def _changes(read_line: ReadLine, content: bytes) -> FileChanges:
    columns: set[str] = set()
    changes = []
    for number, line in enumerate(content.splitlines(), 1):
        try:
            event = read_line(line)
        except ValueError as error:
            text = f"line {number} is no change of the table as it is now: {error}"
            raise UnreadableLineError(text) from None
        image = event.after if event.after is not None else event.before
        columns |= (image or {}).keys()
        changes.append(_change(event))
    return FileChanges(frozenset(columns), changes)


def _change(event: ChangeEvent) -> Change:
    version, not_sent = encode_version(event.version), event.unavailable
    return Change(event.op, version, event.key, changed_key(event), event.after, not_sent)


def postgres_lines(events: Callable[[Any], ChangeEvent], null_row: Any) -> ReadLine:
    """Return the function from native lines. `events`: of records. `null_row`: a record of the table."""
    from penstock.transforms.formats.postgres_lines import record_of_line

    return lambda line: events(record_of_line(line, null_row.table))


def spanner_lines(events: Callable[[Any], ChangeEvent], null_row: Any) -> ReadLine:
    """See `postgres_lines`."""
    from penstock.transforms.formats.spanner_lines import record_of_line

    def read(line: bytes) -> ChangeEvent:
        record, index = record_of_line(line, null_row.column_types)
        event = events(record)
        if event.op is Op.READ:  # a row of a snapshot has no place in a record
            return event
        return msgspec.structs.replace(event, version=msgspec.structs.replace(event.version, index=index))

    return read


NATIVE_LINES: Mapping[str, Callable[[Callable[[Any], ChangeEvent], Any], ReadLine]] = {
    "postgres": postgres_lines,
    "spanner": spanner_lines,
}
"""By the name of the source."""


class _Message(msgspec.Struct):
    value: msgspec.Raw


_message = msgspec.json.Decoder(_Message).decode


def envelope_lines(schema: TableSchema, *, messages: bool) -> ReadLine:
    """Return the function from lines of the format *envelope*. `messages`: a line is a message that has the record."""
    parse = EventParser(schema, known_columns_only=True)
    return (lambda line: parse(bytes(_message(line).value))) if messages else parse
