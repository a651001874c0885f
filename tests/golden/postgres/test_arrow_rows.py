"""Records of the log become change rows in Arrow without an event: the rows are those that are made of events."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.batches import ElementBatch
from penstock.errors import UnwritableError
from penstock.event.arrow import _plain
from penstock.event.change_rows import change_rows
from penstock.event.coder import encode_event
from penstock.event.model import ChangeEvent
from penstock.io.columnar import row_runs
from penstock.io.columnar.block_events import schema_of
from penstock.io.columnar.row_runs import EventRows, divided, rows_of_block
from penstock.io.files.layout import Layout
from penstock.io.postgres import arrow_runs
from penstock.io.postgres import messages as m
from penstock.io.postgres.arrow_runs import LogRows
from penstock.io.postgres.catalog import describe
from penstock.io.postgres.events import EventConverter
from penstock.io.postgres.initial_scan.copied_rows import CopiedRows
from penstock.io.postgres.initial_scan.frontier import numbers_of_rows
from penstock.io.postgres.record import UNCHANGED, ChangeKind, LogRecord, LogTransaction
from penstock.io.staging.blocks import BucketRun, RecordBlock
from tests.golden.postgres.history import as_logged, records
from tests.unit.postgres.test_initial_scan import as_copied

MIN_ROWS = 3
LAYOUT = Layout(None, "hour", 1)
HOUR_US = 3_600_000_000
TRANSACTION = LogTransaction(7, 9, 0)
COLUMNS = {
    "id": (20, -1),
    "name": (25, -1),
    "price": (1700, (12 << 16) + 2 + 4),
    "any": (1700, -1),
    "at": (1184, -1),
    "local": (1114, -1),
    "day": (1082, -1),
    "clock": (1083, -1),
    "paid": (16, -1),
    "ratio": (701, -1),
    "small": (700, -1),
    "tags": (1009, -1),
    "raw": (17, -1),
    "doc": (3802, -1),
    "counts": (1007, -1),
}


@pytest.fixture(scope="module", autouse=True)
def runs_of_few_rows() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for module in (row_runs, arrow_runs):
            patch.setattr(module, "MIN_ROWS", MIN_ROWS)
        yield


WHOLE = {**COLUMNS, "clock": (25, -1)}
"""Columns whose changes can be whole rows: a time of day is another value in tables than in events."""


def table(identity: str, key: bool = True, types: dict[str, tuple[int, int]] = COLUMNS) -> Any:
    columns = tuple(
        m.RelationColumn(name, *type_, identity == "f" or name == "id") for name, type_ in types.items()
    )
    return describe(
        m.Relation(1, "public", "t", identity, columns), [("id", True, 1, None)] if key else [], {}
    )


def by_event(records: list[LogRecord]) -> list[ChangeEvent]:
    convert = EventConverter("", "history", "changes")
    return [event for record in records for event in convert(record)]


def content(elements: list[Any]) -> dict[str, list[ChangeEvent]]:
    """Return the rows of runs and events, by bucket, as values."""
    buckets: dict[str, list[Any]] = {}
    for element in elements:
        if type(element) is BucketRun:
            assert len(element.times_us) == len(element.records)
            for rows in rows_of_block(RecordBlock.joined(element.times_us, element.records)):
                buckets.setdefault(element.bucket, []).extend(values(rows))
        else:
            bucket = LAYOUT(element, element.timestamp // 1000)
            buckets.setdefault(bucket, []).extend(values(change_rows([element], element.schema)))
    return buckets


def values(rows: Any) -> list[Any]:
    # As text: NaN equals itself, and the types of values count. Dates are numbers: Python has not all of them.
    columns = [_plain(column.combine_chunks()).to_pylist() for column in rows.columns]
    return [repr(row) for row in zip(*columns, strict=True)]


def test_the_recorded_history_has_the_same_rows_without_events() -> None:
    tables: dict[Any, list[LogRecord]] = {}
    for record in records():
        tables.setdefault(record.table, []).append(record)
    direct = pickle.loads(pickle.dumps(LogRows(LAYOUT.bucket_of, database="history", stream="changes")))
    short = 0
    for each in (own for key, own in tables.items() if key is not None):
        for record in each:
            try:
                events = by_event([record])
                expected = content(events)
            except UnwritableError:
                expected = None
            # The same record many times: few rows take the way of events.
            made, _ = direct([record] * MIN_ROWS, [record.event_timestamp // 1000] * MIN_ROWS)
            if type(made[0]) is not BucketRun:
                continue
            short += 1
            assert content(made) == {bucket: rows * MIN_ROWS for bucket, rows in (expected or {}).items()}
    assert short > len(records()) / 2


texts = st.none() | st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=5)
fractions = st.sampled_from(["", ".5", ".12", ".123456"])
times = st.datetimes().filter(lambda at: at.year >= 1000)
local = st.builds("{:%Y-%m-%d %H:%M:%S}{}".format, times, fractions)
days = st.builds("{:%Y-%m-%d}".format, times)
numbers = st.integers(-(10**11), 10**11).map(lambda n: f"{n / 100:.2f}")
plain_rows = st.tuples(
    st.integers(-(2**63), 2**63 - 1).map(str),
    texts,
    st.none() | numbers,
    st.none() | st.decimals(allow_nan=False, allow_infinity=False).map(lambda n: f"{n:f}"),
    st.none() | local.map(lambda text: text + "+00"),
    st.none() | local,
    st.none() | days,
    st.none() | st.builds("{:%H:%M:%S}{}".format, st.times(), fractions),
    st.sampled_from(["t", "f", None]),
    st.none() | st.floats().map(str),
    st.none() | st.floats(width=32).map(str),
    st.sampled_from(
        [None, "{}", '{a,"b c",NULL}', "{a,NULL,b c}", "{NULL}", '{""}', "[2:3]={a,b}", "{a}", '{"NULL"}']
    ),
    st.none() | st.binary(max_size=4).map(lambda raw: "\\x" + raw.hex()),
    st.sampled_from([None, '{"a": 1}', "[]"]),
    st.sampled_from([None, "{}", "{1,NULL,-3}", "{NULL}", "{7}", "[0:1]={5,6}"]),
)
odd = {1: UNCHANGED, 2: "NaN", 4: "infinity", 5: "0044-03-15 10:00:00 BC", 6: "12345-01-02"}


@st.composite
def histories(draw: Any, types: dict[str, tuple[int, int]] = COLUMNS) -> tuple[Any, list[LogRecord]]:
    """A few records of one table, in transactions, at times in up to three hours."""
    identity = draw(st.sampled_from("fd"))
    of = table(identity, draw(st.booleans()), types)
    only_key = [column.in_identity for column in of.columns]
    made = []
    hour = 0
    for number in range(draw(st.integers(1, 8))):
        new, old = draw(plain_rows), draw(plain_rows)
        if draw(st.integers(0, 9)) == 0:
            place, value = draw(st.sampled_from(sorted(odd.items())))
            new = (*new[:place], value, *new[place + 1 :])
        kind = draw(st.sampled_from(["INSERT", "UPDATE", "DELETE", "READ"]))
        hour += draw(st.integers(0, 5)) == 0
        lsn, at = 1000 + number, hour * HOUR_US * 1000 + number * 1000
        transaction = LogTransaction(7 + number // 3, lsn + 5, at, "origin", 5, lsn // 2)
        before: Any = (
            old if identity == "f" else tuple(v if k else None for v, k in zip(old, only_key, strict=True))
        )
        made.append(
            LogRecord(
                ChangeKind(kind),
                at,
                None if kind == "READ" else transaction,
                number,
                lsn,
                False,
                of,
                None if kind == "DELETE" else new,
                before if kind == "DELETE" or (kind == "UPDATE" and draw(st.booleans())) else None,
                identity == "f",
            )
        )
    return of, made


@pytest.mark.long(seconds=5)
@given(histories(), st.booleans())
def test_rows_without_events_equal_those_of_events(history: Any, long: bool) -> None:
    _, few = history
    batch = [record for record in few for _ in range(MIN_ROWS if long else 1)]
    times_us = [record.event_timestamp // 1000 for record in batch]
    events = by_event(batch)
    made, event_times = LogRows(LAYOUT.bucket_of, database="history", stream="changes")(batch, times_us)
    assert len(made) == len(event_times)
    try:
        expected = content(list(events))
    except UnwritableError:
        # Then nothing takes the short way, and the check names the event.
        assert list(map(encode_event, made)) == list(map(encode_event, events))
        return
    assert content(made) == expected
    assert content(EventRows(LAYOUT)(ElementBatch(list(events), times_us)).elements) == expected


@pytest.mark.long(seconds=5)
@given(st.lists(plain_rows, min_size=1, max_size=5), st.booleans())
def test_rows_of_a_chunk_equal_those_of_events(rows: list[Any], key: bool) -> None:
    """The server has sent them as lines, and no record is made."""
    lines = as_copied(rows * MIN_ROWS)
    numbers = numbers_of_rows(3, 40, len(rows) * MIN_ROWS)
    copied = CopiedRows(table("d", key), lines, numbers, 90, 7_000)
    times_us = [7] * len(copied)
    made, _ = LogRows(LAYOUT.bucket_of, database="history", stream="changes")(copied, times_us)
    events = by_event(list(CopiedRows(copied.table, lines, numbers, 90, 7_000)))
    try:
        expected = content(list(events))
    except UnwritableError:
        assert list(map(encode_event, made)) == list(map(encode_event, events))
        return
    assert content(made) == expected
    assert [type(each) for each in made] == [BucketRun], "a chunk takes the long way"
    assert copied._records is None, "records were made"


@pytest.mark.long(seconds=5)
@settings(max_examples=40)
@given(histories())
def test_rows_that_are_not_decoded_equal_those_of_events(history: Any) -> None:
    _, few = history
    for rows in as_logged([record for record in few for _ in range(MIN_ROWS)]):
        times_us = rows.times_us
        events = by_event(list(rows[:]))
        made, _ = LogRows(LAYOUT.bucket_of, database="history", stream="changes")(rows, times_us)
        try:
            expected = content(list(events))
        except UnwritableError:
            assert list(map(encode_event, made)) == list(map(encode_event, events))
            continue
        assert content(made) == expected


def test_rows_without_old_ones_become_no_records() -> None:
    (rows,) = as_logged([insert(table("d"), number) for number in range(12)])
    made, _ = LogRows(LAYOUT.bucket_of)(rows, [0] * 12)
    assert [type(each) for each in made] == [BucketRun]
    assert rows._records is None


def insert(of: Any, number: int, time_us: int = 0) -> LogRecord:
    row = ("1", *[None] * (len(COLUMNS) - 1))
    return LogRecord(ChangeKind.INSERT, time_us * 1000, TRANSACTION, number, number, False, of, row)


def test_runs_keep_their_place_among_events() -> None:
    of = table("d")
    batch = [insert(of, number) for number in range(12)]
    events = by_event(batch)
    runs, _ = LogRows(LAYOUT.bucket_of, database="history", stream="changes")(batch[4:8], [0] * 4)
    assert [type(each) for each in runs] == [BucketRun]
    mixed = EventRows(LAYOUT)(ElementBatch([*events[:4], *runs, *events[8:]], [0] * 9))
    assert content(mixed.elements) == content(events)


def test_events_of_a_table_stay_in_order_when_its_columns_change_and_change_back() -> None:
    one, other = by_event([insert(table("d"), 1)])[0], by_event([insert(table("d"), 2)])[0]
    other = msgspec.structs.replace(other, source=one.source)
    events = [*[one] * 4, *[other] * 4, *[one] * 4]
    made = EventRows(LAYOUT)(ElementBatch(events, [0] * 12))
    assert [type(each) for each in made.elements] == [BucketRun] * 3
    assert content(made.elements) == content(events)


def test_rows_land_in_the_folder_of_their_hour() -> None:
    of = table("d")
    times_us = [0, 1, HOUR_US - 1, HOUR_US, HOUR_US + 1, HOUR_US + 2, 5 * HOUR_US]
    batch = [insert(of, number, time_us) for number, time_us in enumerate(times_us)]
    made, _ = LogRows(LAYOUT.bucket_of, database="history", stream="changes")(batch, times_us)
    assert [len(each.times_us) for each in made] == [3, 3, 1]
    assert content(made) == content(by_event(batch))


@pytest.mark.long(seconds=5)
@settings(max_examples=40)
@given(histories())
def test_columns_of_a_block_are_those_of_its_events(history: Any) -> None:
    _, few = history
    made, _ = LogRows(LAYOUT.bucket_of)(few * MIN_ROWS, [0] * len(few) * MIN_ROWS)
    shape = change_rows([], schema_of(by_event(few))).schema
    for run in made:
        if type(run) is BucketRun:
            assert rows_of_block(RecordBlock.joined(run.times_us, run.records))[0].schema == shape


def told(event: ChangeEvent) -> Any:
    """Return what a table of current rows takes of an event."""
    try:
        rows = change_rows([event], event.schema)
    except UnwritableError:
        return encode_event(event)
    return values(rows.drop_columns(["before", "metadata"])), event.source, event.schema, event.version


def shard(source: Any, schema: Any, time_us: int) -> str:
    return "0-of-1"


@given(histories(WHOLE), st.booleans())
def test_whole_rows_of_the_log_become_its_events(history: Any, long: bool) -> None:
    _, few = history
    batch = [record for record in few for _ in range(MIN_ROWS if long else 1)]
    made, _ = LogRows(shard, database="history", stream="changes", whole=True)(
        batch, [record.event_timestamp // 1000 for record in batch]
    )
    again: list[ChangeEvent] = []
    for each in made:
        is_run = type(each) is BucketRun
        again += divided([RecordBlock.joined(each.times_us, each.records)])[0] if is_run else [each]
    # Tables have the order of the versions, whatever the order of the changes is.
    assert sorted(map(repr, map(told, again))) == sorted(map(repr, map(told, by_event(batch))))


def test_inserts_and_rows_of_a_chunk_are_whole_rows() -> None:
    (logged,) = as_logged([insert(table("d", types=WHOLE), number) for number in range(12)])
    lines = as_copied([("1", *[None] * (len(COLUMNS) - 1))] * MIN_ROWS)
    copied = CopiedRows(table("d", types=WHOLE), lines, numbers_of_rows(3, 40, MIN_ROWS), 90, 7_000)
    for rows in (logged, copied):
        made, _ = LogRows(shard, whole=True)(rows, [0] * len(rows))
        assert [type(each) for each in made] == [BucketRun]
        assert len(divided([RecordBlock.joined(made[0].times_us, made[0].records)])[0]) == len(rows)
