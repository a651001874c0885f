"""The source over gRPC against the test service: failures, lineage, retention, credentials and every format."""

from __future__ import annotations

import itertools
import json
import time
from typing import Any

import pytest

from penstock.errors import DecodeError, PositionLostError, SetupError
from penstock.event import ChangeEvent, Op
from penstock.io.change_streams.undecodable import UndecodableRecord
from penstock.io.ydb import ReadFromYdbChangefeed
from penstock.transforms.formats.ydb_events import EventConverter
from penstock_emulators.ydb import YdbEmulator
from tests.integration.ydb.conftest import MILLISECOND, Table
from tests.support.epochs import Epochs
from tests.support.waiting import wait_until

pytestmark = pytest.mark.slow


def events(records: list[Any]) -> list[ChangeEvent]:
    convert = EventConverter(database="/local")
    return [event for record in records for event in convert(record)]


def of_key(found: list[ChangeEvent], key: int) -> list[Any]:
    return [(event.op, event.after and event.after["note"]) for event in found if event.key == {"id": key}]


def test_changes_of_a_key_stay_in_order_through_splits_and_merges(new_table: Any) -> None:
    table: Table = new_table(partitions=2)
    epochs = Epochs(table.source(), 3)
    active, at = [0, 1], 0
    for number in range(6):
        at = table.upsert(*range(8), note=str(number))
        if number % 2:
            active = [table.control.merge(table.topic, active[0], active[1]), *active[2:]]
        else:
            active = [*table.control.split(table.topic, active[0]), *active[1:]]
        epochs.run(0.05)
    at = table.upsert(*range(8), note="last")
    epochs.run_until(at, 0.1)
    found = events(epochs.committed)
    for key in range(8):
        assert [note for _, note in of_key(found, key)] == [*map(str, range(6)), "last"]


def test_lost_connections_and_stopped_sessions_lose_and_double_nothing(new_table: Any) -> None:
    table: Table = new_table()
    for key in range(200):
        table.upsert(key)
    at = table.upsert(200)
    for status in ("grpc:UNAVAILABLE", "OVERLOADED", "grpc:CANCELLED", "SESSION_EXPIRED"):
        table.control.fail("StreamRead", status, after_messages=23)
    table.control.fail("DescribeTopic", "UNAVAILABLE")
    epochs = Epochs(table.source())
    epochs.run(0.3)
    table.control.stop_partition(0)
    epochs.run_until(at, 0.1)
    assert sorted(event.key["id"] for event in events(epochs.committed) if event.key) == list(range(201))


def test_a_gap_after_retention_fails_loudly(new_table: Any) -> None:
    table: Table = new_table(barrier_seconds=0)
    table.upsert(*range(10))
    # Without parked streams: one of them would have read the records before they are deleted.
    epochs = Epochs(table.source(delivery_seconds=0, idle_stream_seconds=0))
    epochs.run(0.3)
    table.upsert(*range(10))
    table.control.trim(table.topic, 0, 15)
    with pytest.raises(PositionLostError, match="records are lost"):
        epochs.run_until(time.time_ns() + 8 * 10**9, 0.2)


def test_a_changefeed_that_was_created_again_is_not_read_on(new_table: Any) -> None:
    table: Table = new_table()
    epochs = Epochs(table.source(idle_stream_seconds=0))
    epochs.run_until(table.upsert(1), 0.1)
    table.control.drop_changefeed(table.name, "feed")
    with pytest.raises(SetupError, match="does not exist"):
        epochs.run_until(time.time_ns() + 8 * 10**9, 0.2)
    table.control.add_changefeed(table.name, "feed", virtual_timestamps=True)
    again = Epochs(table.source(heartbeat_seconds=0.5))  # other settings: another pool, as a new worker has
    again.residuals = epochs.residuals
    with pytest.raises(PositionLostError, match="created again"):
        again.run(0.2)


def test_ydb_says_how_long_it_keeps_changes(new_table: Any) -> None:
    (kept,) = new_table().source().measure()
    assert (kept.name, kept.value, kept.labels) == (
        "penstock_retention_seconds",
        86_400,
        (("stream", "feed"),),
    )


def test_check_names_the_fix_of_what_is_missing(new_table: Any, service: YdbEmulator) -> None:
    table: Table = new_table()
    described = table.source().check()
    assert (described.table.mode, described.barrier_seconds) == ("NEW_AND_OLD_IMAGES", 0.1)
    names = {"endpoint": service.endpoint, "database": "/local", "table": table.name, "changefeed": "feed"}
    for changed, said in (
        ({"table": "nothing"}, "does not exist"),
        ({"changefeed": "nothing"}, "it has: feed"),
        ({"database": "/other"}, "does not exist"),
    ):
        with pytest.raises(SetupError, match=said):
            ReadFromYdbChangefeed(**{**names, **changed}).check()
    with pytest.raises(SetupError, match="no consumer 'c'"):
        table.source(consumer="c").check()


def test_offsets_of_a_consumer_are_committed_after_their_checkpoint(new_table: Any) -> None:
    table: Table = new_table()
    table.control.add_consumer(table.topic, "c")
    epochs = Epochs(table.source(consumer="c"))
    epochs.run_until(table.upsert(*range(5)), 0.1)
    assert 0 < len(epochs.committed) <= 5
    position = epochs.residuals[0][0].open[0].offset
    epochs.run(0.2)
    wait_until(lambda: table.control.committed(table.topic, "c")[0] >= position, "nothing is committed")


def test_idle_changefeeds_without_barriers_move_the_watermark(new_table: Any) -> None:
    table: Table = new_table(barrier_seconds=0, partitions=2)
    epochs = Epochs(table.source(delivery_seconds=0.5, heartbeat_seconds=0.1), 2)
    epochs.run_until(time.time_ns(), 0.2)


def test_a_record_that_is_not_json_goes_to_the_error_output(new_table: Any) -> None:
    table: Table = new_table()
    table.upsert(1)
    table.control.write(table.topic, 0, [b"{"])
    at = table.upsert(2)
    with pytest.raises(DecodeError, match="cannot be decoded"):
        table.read_until(at)
    epochs = Epochs(table.source().with_exception_handling())
    epochs.run_until(at, 0.1)
    (bad,) = [each for each in epochs.committed if isinstance(each, UndecodableRecord)]
    assert (bad.partition, bad.data) == ("0", b"{")
    assert len(epochs.committed) == 3


ALL_MODES = ("KEYS_ONLY", "UPDATES", "NEW_IMAGE", "OLD_IMAGE", "NEW_AND_OLD_IMAGES")
CHANGEFEEDS = [
    *(("JSON", mode, stamps) for mode in ALL_MODES for stamps in (True, False)),
    # YDB has no mode UPDATES in this format, and always virtual timestamps.
    *(("DEBEZIUM_JSON", mode, True) for mode in ALL_MODES if mode != "UPDATES"),
]


@pytest.mark.parametrize(("format", "mode", "stamps"), CHANGEFEEDS)
def test_every_mode_and_format_is_read(new_table: Any, format: str, mode: str, stamps: bool) -> None:
    barriers = 0.1 if format == "JSON" else 0
    table: Table = new_table(
        mode=mode,
        format=format,
        virtual_timestamps=stamps,
        barrier_seconds=barriers,
        rows=1,
        initial_scan=True,
    )
    table.upsert(1, note="a")
    table.control.commit([["replace", table.name, [1], {"note": "b"}]])
    at, _ = table.control.commit([["erase", table.name, [1]]])
    found = events(table.read_until(at * MILLISECOND, delivery_seconds=0, heartbeat_seconds=0.1))
    ops = [event.op for event in found if event.key == {"id": 1}]
    created = Op.CREATE if mode == "NEW_AND_OLD_IMAGES" else Op.UPDATE
    assert ops == [created, Op.UPDATE, Op.DELETE]
    (scanned,) = [event for event in found if event.key == {"id": 0}]
    assert scanned.op is (Op.READ if stamps else created)
    if mode in ("NEW_IMAGE", "NEW_AND_OLD_IMAGES", "UPDATES"):
        assert scanned.after == {"id": 0, "note": "old", "amount": 0}
        row = next(event for event in found if event.op is Op.UPDATE and event.after.get("note") == "b")
        assert row.after == {"id": 1, "note": "b", "amount": None}, "a reset replaces the whole row"
    versions = [event.version for event in found if event.key == {"id": 1}]
    assert versions == sorted(set(versions))


def test_the_dynamodb_format_is_read(service: YdbEmulator) -> None:
    control = service.control
    name = f"docs{next(_NUMBERS)}"
    control.create_table(name, {"id": "Utf8", "n": "DyNumber", "b": "String"}, ["id"])
    control.add_changefeed(name, "feed", format="DYNAMODB_STREAMS_JSON", mode="NEW_AND_OLD_IMAGES")
    control.commit([["upsert", name, ["k"], {"n": "1.5", "b": b"\x00"}]])
    control.commit([["upsert", name, ["k"], {"n": None}]])
    at, _ = control.commit([["erase", name, ["k"]]])
    source = ReadFromYdbChangefeed(
        endpoint=service.endpoint, database="/local", table=name, changefeed="feed", delivery_seconds=0
    )
    epochs = Epochs(source)
    epochs.run_until(at * MILLISECOND, 0.1)
    created, updated, deleted = events(epochs.committed)
    assert [each.op for each in (created, updated, deleted)] == [Op.CREATE, Op.UPDATE, Op.DELETE]
    assert updated.after == {"id": "k", "n": None, "b": b"\x00"}
    assert (str(updated.before["n"]), deleted.after) == ("1.5", None)


def test_schema_changes_change_the_schema_of_later_records(new_table: Any) -> None:
    table: Table = new_table(schema_changes=True, partitions=2)
    epochs = Epochs(table.source(), 2)
    epochs.run_until(table.upsert(1), 0.1)
    table.control.alter_table(table.name, {"price": "Double", "note": None})
    at, _ = table.control.commit([["upsert", table.name, [1], {"price": 1.5}]])
    epochs.run_until(at * MILLISECOND, 0.1)
    found = events(epochs.committed)
    assert [event.op for event in found].count(Op.SCHEMA) == 2, "one in each partition"
    first, last = [event for event in found if event.key == {"id": 1}]
    assert first.schema.names == ("id", "note", "amount")
    assert last.schema.names == ("id", "amount", "price")
    assert last.after == {"id": 1, "amount": 1, "price": 1.5}


def test_the_user_of_a_change_is_read(new_table: Any) -> None:
    table: Table = new_table(user_sids=True)
    at, _ = table.control.commit([["upsert", table.name, [1], {"note": "x"}]], user="root@builtin")
    (found,) = events(table.read_until(at * MILLISECOND))
    assert found.user == "root@builtin"


def test_a_start_and_an_end_are_inclusive(new_table: Any) -> None:
    table: Table = new_table(partitions=2)
    table.upsert(1, 2)
    first = table.upsert(3, 4)
    last = table.upsert(5, 6)
    # Transactions of one millisecond have one commit time.
    while table.upsert(7, 8) == last:
        continue
    found = Epochs(table.source(start=first, end=last), 2).run_to_the_end(0.1)
    keys = sorted(json.loads(record.data)["key"][0] for record in found)
    assert set(keys) >= {3, 4, 5, 6}
    assert all(first <= record.commit_timestamp <= last for record in found)


_NUMBERS = itertools.count()
