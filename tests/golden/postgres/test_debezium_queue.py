"""Records of the log become records of a queue without events: the sender gets what it would get of events."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from penstock.errors import ServiceError
from penstock.event.coder import encode_event
from penstock.event.sharding import shard_of
from penstock.io.postgres.events import EventConverter
from penstock.io.postgres.record import ChangeKind, LogRecord, LogTransaction
from penstock.io.staging.delivery import RowRefusedError
from penstock.io.staging.formatted_run import FormatBeforeCommit, decode_staged
from penstock.io.staging.roll_batches import bucket_of
from penstock.transforms.formats.debezium import DebeziumFormat
from penstock.transforms.formats.debezium_queue import LogQueueRecords
from tests.golden.postgres.history import parts_of_history, records
from tests.golden.postgres.test_debezium import OPTIONS
from tests.golden.postgres.test_debezium_log import TABLE, Counted, any_rows

Staged = dict[str, list[tuple[int, Any]]]
"""What the sender gets of each bucket, and the event times."""


def received(record: bytes) -> list[Any]:
    """Return what the sender gets of a staged record, and the event that an error output would get."""
    return [
        (structs.replace(each, make_event=None), encode_event(each.make_event()))  # type: ignore[union-attr, type-var]
        for each in decode_staged(record)
    ]


def by_events(
    some: Iterable[tuple[LogRecord, int]], format: DebeziumFormat, shards: int, *, refuses: bool = False
) -> Staged:
    convert = EventConverter("", "history", "changes")
    encode = FormatBeforeCommit(format, "the queue", refuses=refuses)
    staged: Staged = {}
    for record, time_us in some:
        for event in convert(record):
            bucket = bucket_of(shard_of(event, shards), shards)
            staged.setdefault(bucket, []).extend((time_us, each) for each in received(encode(event)))
    return staged


def direct(format: DebeziumFormat, shards: int, *, refuses: bool = False) -> LogQueueRecords:
    made = LogQueueRecords(
        format,
        shards=shards,
        target="the queue",
        refuses=refuses,
        database="history",
        stream="changes",
    )
    return pickle.loads(pickle.dumps(made))


def by_records(some: list[tuple[LogRecord, int]], make: LogQueueRecords, size: int) -> Staged:
    staged: Staged = {}
    for start in range(0, len(some), size):
        batch, times_us = zip(*some[start : start + size], strict=True)
        runs, earliest = make(batch, times_us)
        assert earliest == [min(run.times_us) for run in runs]
        for run in runs:
            events = [each for record in run.records for each in received(record)]
            staged.setdefault(run.bucket, []).extend(zip(run.times_us, events, strict=True))
    return staged


def outcome(make: Callable[[], Staged]) -> Staged | str:
    """Return what was staged, or the message of the error."""
    try:
        return make()
    except (ValueError, ServiceError) as error:
        return str(error)


@pytest.mark.long_cases("1", seconds=5)
@pytest.mark.parametrize("shards", [1, 4])
@pytest.mark.parametrize("name", OPTIONS)
def test_the_recorded_history_has_the_same_records_without_events(name: str, shards: int) -> None:
    format = DebeziumFormat(name, **OPTIONS[name])
    fitting = []
    for time_us, record in enumerate(records()):
        with suppress(ValueError, ServiceError):
            by_events([(record, time_us)], format, shards)
            fitting.append((record, time_us))
    expected = by_events(fitting, format, shards)
    make = direct(format, shards)
    for size in (1, 7, len(fitting)):
        assert by_records(fitting, make, size) == expected


def test_with_an_error_output_the_sender_gets_what_the_format_refuses() -> None:
    history = list(zip(records(), range(len(records())), strict=True))
    format = DebeziumFormat("shop")
    expected = by_events(history, format, 4, refuses=True)
    assert any(formatted.reason for each in expected.values() for _, (formatted, _) in each)
    assert by_records(history, direct(format, 4, refuses=True), 50) == expected


@given(any_rows, st.one_of(st.none(), any_rows), st.integers(0, 2**63), st.sampled_from([1, 3]))
def test_a_change_has_the_same_records_without_an_event(new: Any, old: Any, lsn: int, shards: int) -> None:
    format = DebeziumFormat("shop", decimal_handling_mode="precise")
    transaction = LogTransaction(7, lsn, 1_700_000_000_123_456_000, "", 5, lsn // 2)
    kinds = (ChangeKind.INSERT, ChangeKind.READ) if old is None else (ChangeKind.UPDATE, ChangeKind.DELETE)
    for kind in kinds:
        record = LogRecord(
            kind,
            1_700_000_000_999_999_001,
            None if kind is ChangeKind.READ else transaction,
            1,
            lsn,
            True,
            TABLE,
            None if kind is ChangeKind.DELETE else new,
            old,
            old is not None,
        )
        made = outcome(lambda record=record: by_records([(record, 5)], direct(format, shards), 1))
        assert made == outcome(lambda record=record: by_events([(record, 5)], format, shards))


@pytest.mark.long_cases("default-1", "nanoseconds", "microseconds", "time_microseconds", seconds=5)
@pytest.mark.parametrize(("name", "shards"), [("default", 1), *((name, 4) for name in OPTIONS)])
def test_rows_that_are_not_decoded_have_the_records_of_their_events(name: str, shards: int) -> None:
    format = DebeziumFormat(name, **OPTIONS[name])
    make = direct(format, shards, refuses=True)
    for rows in parts_of_history(7):
        some = [(record, number) for number, record in enumerate(rows[:])]
        runs, _ = make(rows, range(len(rows)))
        staged = {
            run.bucket: list(
                zip(run.times_us, [each for one in run.records for each in received(one)], strict=True)
            )
            for run in runs
        }
        assert staged == by_events(some, format, shards, refuses=True)


def test_most_of_the_history_is_staged_without_events(monkeypatch: pytest.MonkeyPatch) -> None:
    make = LogQueueRecords(DebeziumFormat("shop"), shards=4, target="the queue", refuses=False)
    converted: list[LogRecord] = []
    counted: Any = Counted(make._convert, converted)
    counted.key_of = make._convert.key_of
    monkeypatch.setattr(make, "_convert", counted)
    for record in records():
        with suppress(RowRefusedError):  # NaN is refused
            make([record], [0])
    assert len(converted) < len(records()) / 5


def test_a_change_that_the_format_refuses_names_the_target_and_the_table() -> None:
    make = direct(DebeziumFormat("shop"), 4)
    refusals = []
    for record in records():
        with suppress(RowRefusedError):
            make([record], [0])
            continue
        with pytest.raises(RowRefusedError) as raised:
            make([record], [0])
        refusals.append((record, str(raised.value)))
    assert refusals
    for record, text in refusals:
        assert text.startswith("the queue cannot hold the ")
        assert str(record.table) in text
