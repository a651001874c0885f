"""The rows of a chunk as the server has sent them: a sequence of records that are made when they are asked for. Pure.

A consumer that reads whole columns takes `data` and `table`, and no record is made at all.

The server writes a row as a line of values that are divided by tabs. NULL is ``\\N``; a backslash stands before special
characters. Source: PostgreSQL documentation, "COPY", "Text Format".
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, overload

from penstock.io.change_streams.lazy_records import LazyRecords
from penstock.io.postgres.record import ChangeKind, LogRecord, Row, Table

NULL = "\\N"
ESCAPES = {"\\b": "\b", "\\f": "\f", "\\n": "\n", "\\r": "\r", "\\t": "\t", "\\v": "\v", "\\\\": "\\"}
"""What the server writes in place of characters."""
_ESCAPE = re.compile(r"\\.")


class CopiedRows(LazyRecords[LogRecord]):
    """Rows of one table as records of the kind READ. They all have one place in the log and one time."""

    __slots__ = ("_records", "commit_timestamp", "data", "lsn", "numbers", "table")

    def __init__(self, table: Table, data: bytes, numbers: range, lsn: int, commit_timestamp: int) -> None:
        """`data`: a line in the text format of COPY for each of `numbers`, which are the `sequence` of the records.
        `commit_timestamp`: nanoseconds.
        """
        self.table, self.data, self.numbers = table, data, numbers
        self.lsn, self.commit_timestamp = lsn, commit_timestamp
        self._records: list[LogRecord] | None = None

    @property
    def newest(self) -> int:
        return self.commit_timestamp

    @property
    def times_us(self) -> list[int]:
        return [self.commit_timestamp // 1000] * len(self.numbers)

    def tables_read(self) -> tuple[Table]:
        return (self.table,)

    def __len__(self) -> int:
        return len(self.numbers)

    @overload
    def __getitem__(self, index: int) -> LogRecord: ...
    @overload
    def __getitem__(self, index: slice) -> list[LogRecord]: ...
    def __getitem__(self, index: Any) -> Any:
        if self._records is None and index == 0:
            # Counters ask for the first record of a batch, to learn its size.
            (row,) = rows_of(self.data[: self.data.index(b"\n") + 1])
            return LogRecord(
                ChangeKind.READ,
                self.commit_timestamp,
                None,
                self.numbers[0],
                self.lsn,
                True,
                self.table,
                row,
            )
        return self._made()[index]

    def __iter__(self) -> Iterator[LogRecord]:
        return iter(self._made())

    def __reduce__(self) -> Any:
        return CopiedRows, (self.table, self.data, self.numbers, self.lsn, self.commit_timestamp)

    def _made(self) -> list[LogRecord]:
        if self._records is None:
            at, lsn, table = self.commit_timestamp, self.lsn, self.table
            self._records = [
                LogRecord(ChangeKind.READ, at, None, number, lsn, True, table, row)
                for number, row in zip(self.numbers, rows_of(self.data), strict=True)
            ]
        return self._records


def rows_of(data: bytes) -> list[Row]:
    """Return the rows of lines in the text format of COPY."""
    lines = data.decode().split("\n")
    # Each line ends with a newline, so an empty text follows the last one.
    return [
        tuple(map(_value, line.split("\t"))) if "\\" in line else tuple(line.split("\t"))
        for line in lines[:-1]
    ]


def _value(text: str) -> str | None:
    return None if text == NULL else unescaped(text)


def unescaped(text: str) -> str:
    """Return the text that the server has escaped."""
    return _ESCAPE.sub(lambda found: ESCAPES[found[0]], text) if "\\" in text else text
