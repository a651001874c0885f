"""Slices of a changefeed over gRPC: nothing lost, nothing twice, equal when repeated; and what is refused."""

from __future__ import annotations

import time
from typing import Any

import pytest

from penstock.errors import DecodeError, PositionLostError, SetupError
from penstock.event.change_feed import change_feed
from penstock.io.ydb import slice_reader
from penstock.spark.ydb import YdbDataSource, YdbSlices
from penstock.timestamps import format_timestamp
from tests.integration.ydb.conftest import Table, Writers
from tests.support.waiting import wait_until


def slices(table: Table, **options: str) -> YdbSlices:
    names = {"endpoint": table.service.endpoint, "database": table.service.database, "changefeed": "feed"}
    return YdbDataSource({**names, "table": table.name, **options}).stream()


def events(stream: YdbSlices, start: Any, end: Any) -> list[Any]:
    return [event for part in stream.parts(start, end) for group in stream.read(part) for event in group]


def rows(stream: YdbSlices, start: Any, end: Any) -> list[dict[str, Any]]:
    columns = stream.columns()
    assert columns is not None
    return change_feed(events(stream, start, end), columns).to_pylist()


@pytest.mark.long(seconds=5)
def test_slices_of_a_busy_topic_lose_nothing_repeat_nothing_and_are_equal_when_repeated(
    new_table: Any,
) -> None:
    table: Table = new_table(partitions=2, rows=30, initial_scan=True)
    stream = slices(table)
    before = stream.first(None)
    writers = Writers(table, 7, pause=0.005)
    # Replayed in the order in which they come, not by version: the promise is about each key.
    current: dict[int, Any] = {}
    batches = 0
    while True:
        # Asked first: the last slice then has everything.
        stopped = not writers.is_running
        after = stream.slice_end(before, stream.last(), None)
        batch = rows(stream, before, after)
        if batches % 4 == 0:
            assert rows(stream, before, after) == batch
        for row in batch:
            kind, key, value = row["_change_type"], row["id"], (row["note"], row["amount"])
            # A row that was not there can be erased, and replaced, which is an update.
            assert kind != "insert" or key not in current
            assert kind != "update_preimage" or current[key] == value
            assert kind != "delete" or current.get(key, (None, None)) == value
            if kind == "delete":
                current.pop(key, None)
            elif kind != "update_preimage":
                current[key] = value
        batches += 1
        if stopped and after == before:
            break
        before = after
        if not stopped and writers.splits > 1 and writers.merges > 0 and writers.transactions > 200:
            writers.stop()
    table_rows = {key: (row.get("note"), row.get("amount")) for (key,), row in table.control.rows(table.name)}
    assert current == table_rows
    assert batches > 3


def test_a_batch_has_at_most_the_rows_of_its_limit_and_the_batches_have_everything(new_table: Any) -> None:
    table: Table = new_table(partitions=2, barrier_seconds=0)
    for number in range(4):
        table.upsert(*range(10), note=str(number))
    stream = slices(table, maxRowsPerTrigger="7")
    assert stream.max_rows == 7
    start, target, sizes = stream.first(None), stream.last(), []
    # What comes after the target of availableNow is not read, and takes nothing of the limit.
    table.upsert(*range(10), note="later")
    while (end := stream.slice_end(start, target, stream.max_rows)) != start:
        sizes.append(len(rows(stream, start, end)))
        start = end
    assert max(sizes) <= 7
    assert sum(sizes) == 10 + 2 * 30


def test_a_query_begins_with_the_scan_or_at_its_start(new_table: Any) -> None:
    table: Table = new_table(rows=8, initial_scan=True, barrier_seconds=0)
    table.upsert(1)
    wait_until(lambda: sum(end for _, end, _ in table.control.offsets(table.topic).values()) == 9, "no scan")
    whole, changes = slices(table), slices(table, snapshot="never")
    assert len(rows(whole, *whole.bounds())) == 8 + 2
    assert [row["_change_type"] for row in rows(changes, *changes.bounds())] == [
        "update_preimage",
        "update_postimage",
    ]
    late = slices(table, start=format_timestamp(time.time_ns()))
    first = late.first(None)
    assert rows(late, first, late.last()) == []
    at = table.upsert(2)
    sought = slices(table, start=format_timestamp(at))
    assert [row["id"] for row in rows(sought, *sought.bounds())] == [2, 2]
    assert sum(sought.first(None)["next"].values()) == 9


def test_offsets_that_are_gone_and_a_changefeed_that_was_created_again_are_refused(new_table: Any) -> None:
    table: Table = new_table(barrier_seconds=0)
    table.upsert(*range(10))
    stream = slices(table)
    start, end = stream.first(None), stream.last()
    table.control.trim(table.topic, 0, 4)
    with pytest.raises(PositionLostError, match="should have offset 0, and the first one that is left has 4"):
        stream.parts(start, end)
    table.control.drop_changefeed(table.name, "feed")
    with pytest.raises(SetupError, match="has no such changefeed"):
        stream.parts(start, end)
    table.control.add_changefeed(table.name, "feed", virtual_timestamps=True)
    with pytest.raises(PositionLostError, match="dropped and created again"):
        stream.parts(start, end)


def test_messages_that_are_deleted_after_the_plan_are_an_error_and_no_endless_task(
    new_table: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slice_reader, "STREAM_SECONDS", 1.0)
    table: Table = new_table(barrier_seconds=0)
    table.upsert(*range(10))
    stream = slices(table)
    (part,) = stream.parts(*stream.bounds())
    table.control.trim(table.topic, 0, 10)
    with pytest.raises(
        PositionLostError, match="should have offset 0, and the first one that is left has 10"
    ):
        list(stream.read(part))


def test_offsets_of_a_consumer_are_committed_with_the_batch(new_table: Any) -> None:
    table: Table = new_table(barrier_seconds=0)
    table.upsert(*range(5))
    with pytest.raises(SetupError, match="no consumer 'c'"):
        slices(table, consumer="c").first(None)
    table.control.add_consumer(table.topic, "c")
    stream = slices(table, consumer="c")
    end = stream.last()
    assert not any(table.control.committed(table.topic, "c").values())
    stream.commit(end)
    assert table.control.committed(table.topic, "c") == {0: 5}


def test_a_record_that_cannot_be_decoded_stops_the_query_and_is_not_shown(new_table: Any) -> None:
    table: Table = new_table(barrier_seconds=0)
    table.control.write(table.topic, 0, [b"hunter2"])
    stream = slices(table)
    with pytest.raises(DecodeError, match="the record at offset 0 of partition 0 cannot be decoded") as error:
        events(stream, *stream.bounds())
    assert "hunter2" not in str(error.value)


def test_all_modes_and_formats_have_rows(new_table: Any) -> None:
    for mode, format_, kinds in (
        ("UPDATES", "JSON", ["update_postimage"]),
        ("KEYS_ONLY", "JSON", ["update_postimage"]),
        ("NEW_AND_OLD_IMAGES", "DEBEZIUM_JSON", ["insert"]),
    ):
        table: Table = new_table(
            mode=mode, format=format_, barrier_seconds=0, virtual_timestamps=format_ == "JSON"
        )
        table.upsert(1)
        stream = slices(table)
        found = rows(stream, *stream.bounds())
        assert [row["_change_type"] for row in found] == kinds
        assert found[0]["_not_sent"] == (["note", "amount"] if mode == "KEYS_ONLY" else [])
