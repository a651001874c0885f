"""Records of the log become Debezium's JSON without an event: the bytes are those of the records made of events."""

from __future__ import annotations

import pickle
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.io.postgres import messages as m
from penstock.io.postgres.catalog import describe
from penstock.io.postgres.events import EventConverter
from penstock.io.postgres.logged_rows import LoggedRows
from penstock.io.postgres.record import UNCHANGED, ChangeKind, LogRecord, LogTransaction
from penstock.transforms.formats.debezium import DebeziumFormat
from penstock.transforms.formats.debezium_log import LogRecordFormat, table_of_record
from tests.golden.postgres.history import as_logged, parts_of_history, records
from tests.golden.postgres.test_debezium import OPTIONS


def both_ways(record: LogRecord, format: DebeziumFormat, direct: LogRecordFormat) -> tuple[Any, Any]:
    def of(make: Any) -> Any:
        try:
            return make()
        except ValueError as error:
            return str(error)

    convert = EventConverter("", "history", "changes")
    return (
        of(lambda: [each for event in convert(record) for each in format(event)]),
        of(lambda: direct(record)),
    )


@pytest.mark.parametrize("name", OPTIONS)
def test_the_recorded_history_has_the_same_bytes_without_events(name: str) -> None:
    format = DebeziumFormat(name, **OPTIONS[name])
    direct = pickle.loads(pickle.dumps(LogRecordFormat(format, database="history", stream="changes")))
    for record in records():
        by_event, by_record = both_ways(record, format, direct)
        assert by_record == by_event


def test_most_of_the_history_is_formatted_without_events(monkeypatch: pytest.MonkeyPatch) -> None:
    direct = LogRecordFormat(DebeziumFormat("shop"))
    converted = []
    monkeypatch.setattr(direct, "_convert", Counted(direct._convert, converted))
    for record in records():
        with suppress(ValueError):  # NaN is refused
            direct(record)
    assert len(converted) < len(records()) / 5


class Counted:
    def __init__(self, convert: EventConverter, converted: list[LogRecord]) -> None:
        self.convert, self.converted = convert, converted
        self.source_and_schema = convert.source_and_schema

    def __call__(self, record: LogRecord) -> Any:
        self.converted.append(record)
        return self.convert(record)


COLUMNS = (
    ("id", 20, -1),
    ("name", 25, -1),
    ("price", 1700, (12 << 16) + 2 + 4),
    ("at", 1184, -1),
    ("at3", 1184, 3),
    ("at0", 1184, 0),
    ("paid", 16, -1),
)
TABLE = describe(
    m.Relation(1, "public", "t", "f", tuple(m.RelationColumn(*column, True) for column in COLUMNS)),
    [("id", True, 1, None)],
    {},
)


def moments(digits: int) -> st.SearchStrategy[str]:
    """Texts of timestamps as the server prints them with at most so many digits after the point."""
    fractions = [text for text in ("", ".5", ".12", ".123456") if len(text) <= digits + 1]
    return st.one_of(
        st.builds(
            "{:%Y-%m-%d %H:%M:%S}{}+00{}".format,
            st.datetimes().filter(lambda at: at.year >= 1000),
            st.sampled_from(fractions),
            st.sampled_from(["", " BC"]),
        ),
        st.sampled_from(["infinity", "-infinity", "12345-01-02 03:04:05+00"]),
    )


def rows(names: st.SearchStrategy[Any], prices: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    ids = st.one_of(st.integers(-(2**63), 2**63 - 1), st.sampled_from([1, 2])).map(str)
    return st.tuples(
        ids, names, prices, st.one_of(moments(6), st.none()), moments(3), moments(0), st.sampled_from("tf")
    )


texts = st.one_of(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0")), st.none())
numbers = st.one_of(st.integers(-(10**11), 10**11).map(lambda n: f"{n / 100:.2f}"), st.none())
plain_rows = rows(texts, numbers)
odd_rows = rows(st.one_of(texts, st.just(UNCHANGED)), st.one_of(numbers, st.just("NaN")))
any_rows = st.one_of(plain_rows, plain_rows, odd_rows)


@given(any_rows, st.one_of(st.none(), any_rows), st.integers(0, 2**63))
def test_a_value_has_the_same_bytes_without_an_event(new: Any, old: Any, lsn: int) -> None:
    format = DebeziumFormat("shop", decimal_handling_mode="precise")
    direct = LogRecordFormat(format, database="history", stream="changes")
    transaction = LogTransaction(7, lsn, 1_700_000_000_123_456_000, 'an "origin"', 5, lsn // 2)
    kinds = (ChangeKind.INSERT, ChangeKind.READ) if old is None else (ChangeKind.UPDATE, ChangeKind.DELETE)
    for kind in kinds:
        whose = None if kind is ChangeKind.READ else transaction
        after = None if kind is ChangeKind.DELETE else new
        record = LogRecord(
            kind,
            1_700_000_000_999_999_001,
            whose,
            1,
            lsn,
            True,
            TABLE,
            after,
            old,
            old is not None,
            incremental=kind is ChangeKind.READ and lsn % 2 == 1,
        )
        by_event, by_record = both_ways(record, format, direct)
        assert by_record == by_event


@pytest.mark.long_cases("False", seconds=5)
@pytest.mark.parametrize("keyed", [False, True])
@pytest.mark.parametrize("name", OPTIONS)
def test_the_lines_of_whole_batches_are_the_values_of_the_records_one_by_one(name: str, keyed: bool) -> None:
    direct = LogRecordFormat(DebeziumFormat(name, **OPTIONS[name]), database="history", keyed=keyed)
    fitting, expected = [], []
    for time_us, record in enumerate(records()):
        with suppress(ValueError):
            lines = [
                (table_of_record(record), each.key if keyed else None, each.value + b"\n", time_us)
                for each in direct(record)
                if each.value is not None
            ]
            fitting.append((record, time_us))
            expected += lines
    for size in (1, 7, len(fitting)):
        found = []
        for start in range(0, len(fitting), size):
            some, times_us = zip(*fitting[start : start + size], strict=True)
            for run in direct.runs(list(some), list(times_us)):
                keys = [None] * len(run.records) if run.keys is None else run.keys
                found += [(run.table, *each) for each in zip(keys, run.records, run.times_us, strict=True)]
        assert found == expected


@pytest.mark.long_cases("False", seconds=5)
@pytest.mark.parametrize("keyed", [False, True])
@pytest.mark.parametrize("name", OPTIONS)
def test_the_lines_of_rows_that_are_not_decoded_are_those_of_their_records(name: str, keyed: bool) -> None:
    direct = LogRecordFormat(DebeziumFormat(name, **OPTIONS[name]), database="history", keyed=keyed)
    by_rows = LogRecordFormat(DebeziumFormat(name, **OPTIONS[name]), database="history", keyed=keyed)
    for rows in [*parts_of_history(1), *parts_of_history(7)]:
        assert same_runs(direct, by_rows, rows)


def same_runs(direct: LogRecordFormat, by_rows: LogRecordFormat, rows: LoggedRows) -> bool:
    """Return whether both are the same lines, or refused with the same reason."""

    def of(format: LogRecordFormat, each: Any) -> Any:
        try:
            return format.runs(each, list(range(len(rows))))
        except ValueError as error:
            return str(error)

    return bool(of(by_rows, rows) == of(direct, list(rows)))


@given(
    st.lists(st.tuples(st.sampled_from("IUD"), any_rows, st.booleans()), min_size=1, max_size=6),
    st.booleans(),
)
def test_any_rows_that_are_not_decoded_have_the_lines_of_their_records(changes: Any, keyed: bool) -> None:
    format = DebeziumFormat("shop", decimal_handling_mode="precise")
    ways = [LogRecordFormat(format, database="history", keyed=keyed) for _ in range(2)]
    transaction = LogTransaction(7, 99, 1_700_000_000_123_456_000)
    made = []
    for number, (kind, row, has_old) in enumerate(changes, 1):
        of = {"I": ChangeKind.INSERT, "U": ChangeKind.UPDATE, "D": ChangeKind.DELETE}[kind]
        old = row if kind == "D" or (kind == "U" and has_old) else None
        new = None if kind == "D" else row
        made.append(LogRecord(of, 1, transaction, number, 50, False, TABLE, new, old, old is not None))
    (rows,) = as_logged(made)
    assert list(rows) == made
    (rows,) = as_logged(made)
    assert same_runs(*ways, rows)


def test_a_record_that_the_format_refuses_fails_its_batch() -> None:
    direct = LogRecordFormat(DebeziumFormat("shop"), database="history")
    refused = [
        record for record in records() if isinstance(both_ways(record, direct._format, direct)[1], str)
    ]
    assert refused
    for record in refused:
        with pytest.raises(ValueError, match="column|record|the "):
            direct.runs([record], [0])
