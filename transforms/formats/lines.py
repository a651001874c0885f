"""Lines of files: records of a format, one per line. Pure."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable, Iterable
from typing import Any, Literal, NamedTuple, get_args

import msgspec

from penstock.errors import UsageError
from penstock.event import ChangeEvent
from penstock.io.files.json_lines import json_line
from penstock.io.staging.blocks import RecordRun
from penstock.timestamps import format_timestamp
from penstock.transforms.formats.capture import check_choice
from penstock.transforms.formats.formatted import (
    Encoding,
    FormattedRecord,
    key_encoding,
    value_encoding,
)
from penstock.transforms.tables import table_name

LineContent = Literal["values", "messages"]

Runs = tuple[list[RecordRun], list[int]]
"""Runs, and the earliest event time of each in µs since 1970."""

_json = msgspec.json.Encoder().encode


class Line(NamedTuple):
    """A line on its way to a file: its table, its order key, and its text without the newline.

    Lines of one table and `key` stay in order. `shard` is set if an earlier step has chosen the shard.
    """

    table: str
    key: str | bytes | None
    line: str | bytes
    shard: int | None = None


def _table_of_event(event: ChangeEvent) -> str:
    return table_name(event.source)


class RecordLines:
    """Formats events as lines.

    `content` says what a line is. ``values``: the value of the record; a tombstone, which has none, becomes no line.
    ``messages``: an object with the topic, the key, the value, the headers and the timestamp of the record, for
    consumers that need keys or tombstones.

    `format` takes events. One that takes records of a source needs `table`, which returns the table of a record.

    A binary value, such as Avro, is a line of base64. In a message, binary keys and values are ``{"base64":"…"}``.

    Raises:
        UsageError: `content` does not exist.
    """

    def __init__(
        self,
        format: Callable[[Any], Iterable[FormattedRecord]],
        content: LineContent = "values",
        *,
        table: Callable[[Any], str] = _table_of_event,
    ) -> None:
        check_choice("lines", content, get_args(LineContent))
        self._format, self._messages, self._table = format, content == "messages", table
        self._show_key, self._show_value = _SHOW[key_encoding(format)], _SHOW[value_encoding(format)]
        self._binary = value_encoding(format) == "binary"

    def __call__(self, event: Any) -> list[Line]:
        """Return the lines of an event, in the order of its records.

        Raises:
            ValueError: the format cannot express the event.
        """
        lines = self.lines_of(self._table(event), self._format(event))
        change = getattr(event, "schema_change", None)
        return lines if change is None else [line._replace(shard=change.shard) for line in lines]

    def lines_of(self, table: str, records: Iterable[FormattedRecord]) -> list[Line]:
        """Return the lines of records of a table."""
        return [
            Line(table, record.key, line) for record in records if (line := self.line(record)) is not None
        ]

    def runs(self, elements: list[Any], times_us: list[int]) -> Runs:
        """Return the lines of elements with these event times, in their order.

        Raises:
            ValueError: the format cannot express one of the elements.
        """
        of_batch = None if self._messages else getattr(self._format, "runs", None)
        if of_batch is None:
            return line_runs(self, elements, times_us)
        return _with_times(of_batch(elements, times_us))

    def barrier(self, table: str, watermark: int) -> Line:
        """Return the line of a barrier of a YDB changefeed; `watermark` is in nanoseconds.

        Raises:
            UsageError: the format has no barriers.
        """
        barrier = getattr(self._format, "barrier", None)
        if barrier is None:
            raise UsageError("barriers are for format ydb only: leave them out, or choose it")
        return Line(table, None, self.line(barrier(table, watermark)) or b"")

    def line(self, record: FormattedRecord) -> bytes | None:
        """Return the line of a record; None for a tombstone, unless lines are messages."""
        if not self._messages:
            if record.value is None:
                return None
            return b64encode(record.value) if self._binary else _one_line(record.value)
        message = {
            "topic": record.topic,
            "key": self._show_key(record.key),
            "value": self._show_value(record.value),
            "headers": {name: _text(value) for name, value in record.headers},
            "timestamp": format_timestamp(record.timestamp),
        }
        return _json(message)


def line_runs(lines_of: Callable[[Any], Iterable[Line]], elements: list[Any], times_us: list[int]) -> Runs:
    """Return the lines of elements with these event times, in their order."""
    runs: list[RecordRun] = []
    table = None
    # Invariant: `keys`, `records` and `times` are the lists of the last run, whose table is `table`.
    for element, time_us in zip(elements, times_us, strict=True):
        for line in lines_of(element):
            if line.table != table:
                table = line.table
                keys: list[Any] = []
                records: list[bytes] = []
                times: list[int] = []
                runs.append(RecordRun(table, keys, records, times))
            keys.append(line.key)
            records.append(json_line(line.line))
            times.append(time_us)
    return _with_times(runs)


def _with_times(runs: list[RecordRun]) -> Runs:
    return runs, [min(run.times_us) for run in runs]


def _embedded(encoded: bytes | None) -> Any:
    """Return encoded JSON as it is, without decoding it."""
    return None if encoded is None else msgspec.Raw(_one_line(encoded))


def _one_line(encoded: bytes) -> bytes:
    # JSON escapes line breaks in texts. One outside of a text is space, which the source's own JSON may contain.
    return (
        encoded.replace(b"\n", b" ").replace(b"\r", b" ") if b"\n" in encoded or b"\r" in encoded else encoded
    )


def _text(data: bytes | None) -> Any:
    """Return bytes as text if they are UTF-8, otherwise as base64 in an object."""
    if data is None:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return _base64(data)


def _base64(data: bytes | None) -> Any:
    return None if data is None else {"base64": b64encode(data).decode()}


def encoded_as_json(data: bytes | None, encoding: Encoding) -> Any:
    """Return an encoded key or value as a value for msgspec's JSON encoder: as lines with the content `messages`."""
    return _SHOW[encoding](data)


_SHOW: dict[Encoding, Callable[[bytes | None], Any]] = {"json": _embedded, "text": _text, "binary": _base64}
