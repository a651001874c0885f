"""From messages of one partition to steps: gaps, event times, watermarks, the initial scan and the end."""

from __future__ import annotations

import json
from typing import Any

import pytest

from penstock.errors import LineageError, PositionLostError
from penstock.io.change_streams.undecodable import UndecodableRecord
from penstock.io.ydb.frontier import UNKNOWN, Position
from penstock.io.ydb.read import Tables
from penstock.io.ydb.record import ChangefeedRecord, TableColumn
from penstock.io.ydb.source import ChangeStream
from penstock.io.ydb.steps import Message, PartitionSteps, Rules
from penstock_emulators.ydb.topic import Topic
from tests.unit.ydb.memory import TABLE, described

MS = 1_000_000
SECOND = 1_000_000_000


def steps(
    position: Position = Position(0, 0),
    *,
    start: int = 0,
    end: int | None = None,
    skips_scan: bool = False,
    **options: Any,
) -> Any:
    stream = ChangeStream("/local", "orders", "feed", start, end)
    found = described(Topic("/local/orders/feed", created_at=(1000, 55)), **options)
    return PartitionSteps(
        Rules.of(stream, found, 10.0, Tables(found.table).at, skips_scan=skips_scan), 0, position
    )


def message(
    offset: int, value: Any, *, written_at: int = 0, created_at: int = 0, key: bytes = b""
) -> Message:
    data = value if isinstance(value, bytes) else json.dumps(value).encode()
    return Message(offset, data, key, created_at, written_at)


def change(step: int, tx_id: int = 1) -> dict[str, Any]:
    return {"key": ["k"], "update": {}, "ts": [step, tx_id]}


def test_event_time_is_the_step_of_the_virtual_timestamp() -> None:
    record = steps().message(message(0, change(5000, 7)), 1).record
    assert isinstance(record, ChangefeedRecord)
    assert (record.commit_timestamp, record.step, record.tx_id) == (5000 * MS, 5000, 7)


def test_without_virtual_timestamps_event_time_is_the_time_of_creation() -> None:
    reading = steps(virtual_timestamps=False)
    record = reading.message(message(0, {"key": ["k"], "update": {}}, created_at=77), 1).record
    assert (record.commit_timestamp, record.step, record.tx_id) == (77, 0, 0)


def test_a_barrier_is_no_record_and_raises_the_watermark_to_its_step() -> None:
    step = steps().message(message(0, {"resolved": [5000, 3]}), 1)
    assert step.record is None
    assert step.position == Position(1, 5000 * MS)


def test_with_barriers_neither_records_nor_idle_time_raise_the_watermark() -> None:
    reading = steps()
    assert reading.message(message(0, change(5000), written_at=90 * SECOND), 1).position.watermark == 0
    assert reading.idle(1, 99 * SECOND) is None


def test_without_barriers_the_watermark_trails_the_time_of_writing() -> None:
    reading = steps(barrier_seconds=0.0)
    assert (
        reading.message(message(0, change(5000), written_at=90 * SECOND), 1).position.watermark == 80 * SECOND
    )
    assert reading.idle(1, 95 * SECOND).position == Position(1, 85 * SECOND)
    assert reading.idle(1, 95 * SECOND) is None, "it changes nothing"


def test_an_idle_report_counts_only_when_every_message_before_it_was_read() -> None:
    reading = steps(barrier_seconds=0.0)
    reading.message(message(0, change(5000), written_at=20 * SECOND), 1)
    assert reading.idle(2, 95 * SECOND) is None
    assert steps(Position(0, 0, True), start=1, barrier_seconds=0.0).idle(0, 95 * SECOND) is None


def test_a_record_below_the_watermark_gets_the_watermark_as_its_event_time() -> None:
    reading = steps(barrier_seconds=0.0)
    reading.message(message(0, change(89_000), written_at=90 * SECOND), 1)
    record = reading.message(message(1, change(60_000), written_at=91 * SECOND), 1).record
    assert (record.commit_timestamp, record.step) == (80 * SECOND, 60_000)


def test_a_gap_is_an_error_and_not_a_record() -> None:
    reading = steps(Position(3, 0))
    with pytest.raises(PositionLostError, match="should have offset 3.* has 5: .*2 records are lost"):
        reading.message(message(5, change(1)), 1)
    with pytest.raises(LineageError, match="offset 2 again"):
        reading.message(message(2, change(1)), 1)


def test_the_first_message_after_a_sought_start_may_have_any_later_offset_and_no_other() -> None:
    reading = steps(Position(3, 0, True), start=1)
    assert reading.message(message(9, change(1)), 1).position.offset == 10
    with pytest.raises(PositionLostError):
        reading.message(message(11, change(1)), 1)


def test_start_and_end_are_inclusive_and_other_records_move_the_position() -> None:
    reading = steps(start=2000 * MS, end=3000 * MS)
    found = [
        reading.message(message(n, change(step)), 1).record for n, step in enumerate((1999, 2000, 3001, 3000))
    ]
    assert [record is not None for record in found] == [False, True, False, True]
    assert reading.position.offset == 4


def test_the_read_ends_when_the_watermark_has_passed_the_end() -> None:
    reading = steps(end=3000 * MS)
    reading.message(message(0, {"resolved": [3000, 0]}), 1)
    assert not reading.has_ended, "a change at the end may follow"
    reading.message(message(1, {"resolved": [3001, 0]}), 1)
    assert reading.has_ended


def test_rows_of_the_scan_have_the_transaction_that_created_the_topic() -> None:
    reading = steps(initial_scan=True)
    stamps = [(1005, 60), (1000, 55), (1006, 61)]
    found = [reading.message(message(n, change(*at)), 1).record for n, at in enumerate(stamps)]
    assert [record.is_initial_scan for record in found] == [False, True, False]


def test_if_that_is_not_known_rows_of_the_scan_have_the_lowest_timestamp_of_the_partition() -> None:
    reading = steps(Position(0, 0, False, UNKNOWN), initial_scan=True, created_at=(0, 0))
    stamps = [(1000, 1), (1005, 2), (1000, 1), (1006, 3)]
    found = [reading.message(message(n, change(*at)), 1).record for n, at in enumerate(stamps)]
    assert [record.is_initial_scan for record in found] == [True, False, True, False]


def test_rows_of_the_scan_can_be_left_out_and_move_the_position() -> None:
    reading = steps(initial_scan=True, skips_scan=True)
    stamps = [(1000, 55), (1005, 60)]
    found = [reading.message(message(n, change(*at)), 1) for n, at in enumerate(stamps)]
    assert [step.record is None for step in found] == [True, False]
    assert found[0].position.offset == 1


def test_without_a_scan_no_record_is_a_row_of_one() -> None:
    assert not steps().message(message(0, change(1000, 55)), 1).record.is_initial_scan


def test_the_debezium_format_marks_rows_of_the_scan_and_has_a_message_key() -> None:
    table = TABLE.__class__("orders", "feed", "NEW_IMAGE", "DEBEZIUM_JSON", TABLE.columns, TABLE.key)
    value = {"payload": {"op": "r", "after": {}, "source": {"step": 7, "txId": 8, "snapshot": True}}}
    key = b'{"payload":{"id":"k"}}'
    record = steps(table=table).message(message(0, value, key=key), 1).record
    assert (record.is_initial_scan, record.step, record.tx_id, record.key) == (True, 7, 8, key)


def test_a_schema_change_is_a_record_with_the_new_table_and_so_are_those_after_it() -> None:
    described_table = {"schemaVersion": 2, "columns": {"id": {"type": "Utf8"}, "n": "Int32"}}
    value = {"tableChanges": [{"table": described_table}], "ts": [5, 6]}
    reading = steps(Position(0, 0, False, UNKNOWN), initial_scan=True)
    before = reading.message(message(0, change(5, 1)), 1).record
    changed = reading.message(message(1, value), 1).record
    after = reading.message(message(2, change(9)), 1).record
    assert before.table == TABLE
    assert (
        changed.table.columns == after.table.columns == (TableColumn("id", "Utf8"), TableColumn("n", "Int32"))
    )
    assert after.table.key == TABLE.key, "some releases do not name the key"
    resumed = steps(reading.position).message(message(3, change(10)), 1).record
    assert resumed.table == after.table, "the position holds the schema"


@pytest.mark.parametrize("data", [b"{", b"[]", b'{"ts":"x"}', b""])
def test_bytes_that_are_no_record_are_undecodable_at_their_place(data: bytes) -> None:
    step = steps(Position(4, 50)).message(message(4, data, created_at=40), 3)
    assert isinstance(step.record, UndecodableRecord)
    assert (step.record.partition, step.record.position, step.record.commit_timestamp) == ("0", "4", 50)
    assert step.record.data == data
    assert step.position.offset == 5
