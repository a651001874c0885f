"""Native lines are read as the changes that they were made of, so that a replay of them has the right rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from hypothesis import given

from penstock.event import ChangeEvent, Image
from penstock.event.keys import changed_key
from penstock.io.postgres.events import EventConverter as PostgresEvents
from penstock.io.postgres.record import UNCHANGED, ChangeKind, LogRecord, LogTransaction, read_record
from penstock.io.spanner.events import EventConverter as SpannerEvents
from penstock.io.spanner.record import DataChangeRecord, Mods
from penstock.transforms.formats.postgres_lines import log_lines
from penstock.transforms.formats.spanner_lines import mod_lines
from penstock.verify.file_changes import UnreadableLineError
from penstock.verify.replayed_lines import ReadLine, lines_of, postgres_lines, spanner_lines
from tests.golden.pipelines.test_mod_lines import CASES
from tests.golden.postgres.history import records as logged
from tests.golden.postgres.test_arrow_rows import histories
from tests.golden.spanner.test_debezium_mods import records as changes


def encoded(line: Any) -> bytes:
    return str(line.line).encode()


def first(convert: Callable[[Any], list[ChangeEvent]]) -> Callable[[Any], ChangeEvent]:
    def event(record: Any) -> ChangeEvent:
        (found,) = convert(record)
        return found

    return event


def assert_same(read: ChangeEvent, written: ChangeEvent) -> None:
    """Compare what a replay takes from the events. As text: NaN equals itself, and the types of values count."""
    for attribute in ("op", "version", "key"):
        assert repr(getattr(read, attribute)) == repr(getattr(written, attribute))
    assert repr(changed_key(read)) == repr(changed_key(written))
    assert (read.after is None) == (written.after is None)
    for name, value in (written.after or {}).items():
        assert repr((read.after or {})[name]) == repr(value), name


def assert_reads_postgres(record: LogRecord) -> None:
    convert = first(PostgresEvents())
    try:
        written = convert(record)
    except ValueError:  # a value that is not of its type
        return
    (line,) = log_lines(record)
    read = postgres_lines(convert, read_record(record.table, ()))(encoded(line))  # type: ignore[arg-type]
    assert_same(read, written)
    # What an image before the change has counts as sent.
    known = (written.before or {}).keys() if record.kind is ChangeKind.UPDATE else set()
    assert set(read.unavailable) == set(written.unavailable) - known


def test_lines_of_every_type_of_postgres_are_read() -> None:
    of_rows = [record for record in logged() if record.kind is not ChangeKind.MESSAGE]
    assert len(of_rows) > 100
    for record in of_rows:
        assert_reads_postgres(record)


@pytest.mark.long(seconds=5)
@given(histories())
def test_lines_of_changes_and_of_snapshots_of_postgres_are_read(history: Any) -> None:
    for record in history[1]:
        assert_reads_postgres(record)


def row_of_postgres(last: Any = None) -> LogRecord:
    """Return an UPDATE of a table with the columns of the golden history, with NULL in all but the last one."""
    table = next(record.table for record in logged() if record.kind is ChangeKind.INSERT)
    assert table is not None
    new = (*(None for _ in table.columns[1:]), last)
    return LogRecord(ChangeKind.UPDATE, 5, LogTransaction(7, 9, 5), 1, 8, True, table, new)


def test_a_large_value_that_did_not_change_is_not_null() -> None:
    record = row_of_postgres(UNCHANGED)
    (line,) = log_lines(record)
    name = record.table.columns[-1].name  # type: ignore[union-attr]
    read = postgres_lines(first(PostgresEvents()), record)(encoded(line))
    assert name not in (read.after or {})
    assert name in read.unavailable


def test_a_large_key_that_did_not_change_is_known_from_the_old_row() -> None:
    record = row_of_postgres()
    columns = (msgspec.structs.replace(record.table.columns[0], key_position=1), record.table.columns[-1])  # type: ignore[union-attr]
    table = msgspec.structs.replace(record.table, columns=columns)  # type: ignore[type-var]
    record = msgspec.structs.replace(record, table=table, new=(UNCHANGED, None), old=("1", None))
    (line,) = log_lines(record)
    assert line.key == '["1"]'
    read = postgres_lines(first(PostgresEvents()), record)(encoded(line))
    assert list((read.key or {}).values()) == [1]


def test_a_column_that_a_table_has_lost_is_left_out_and_a_new_one_was_not_sent() -> None:
    record = row_of_postgres()
    (line,) = log_lines(record)
    lost, kept = record.table.columns[-1], record.table.columns[:-1]  # type: ignore[union-attr]
    new = msgspec.structs.replace(lost, name="new")
    table = msgspec.structs.replace(record.table, columns=(*kept, new))  # type: ignore[type-var]
    read = postgres_lines(first(PostgresEvents()), read_record(table, ()))(encoded(line))  # type: ignore[arg-type]
    assert lost.name not in (read.after or {})
    assert read.unavailable == ("new",)


@pytest.mark.slow
@given(changes())
def test_lines_of_spanner_are_read(record: DataChangeRecord) -> None:
    convert = SpannerEvents()
    try:
        written = convert(record)
    except ValueError:
        return
    read = spanner_lines(first(convert), record)
    for line, event in zip(mod_lines(record), written, strict=True):
        found = read(encoded(line))
        assert_same(found, event)
        assert found.unavailable == event.unavailable


def test_changes_of_one_record_of_spanner_have_their_places_in_it() -> None:
    record = replace(CASES["two_mods"], mods=Mods.of(CASES["two_mods"].mods))
    read = spanner_lines(first(SpannerEvents()), record)
    assert [read(encoded(line)).version.index for line in mod_lines(record)] == [0, 1]


def test_a_line_that_cannot_be_read_is_named_without_its_values() -> None:
    record = next(each for each in logged() if each.kind is ChangeKind.INSERT)
    (line,) = log_lines(record)
    read: ReadLine = postgres_lines(first(PostgresEvents()), record)
    bad: Image = {**msgspec.json.decode(encoded(line)), "lsn": "secret"}
    with pytest.raises(UnreadableLineError, match="^line 2 is no change of the table") as raised:
        lines_of(read).read(encoded(line) + b"\n" + msgspec.json.encode(bad) + b"\n")
    assert "'secret' is not a position" in str(raised.value)
