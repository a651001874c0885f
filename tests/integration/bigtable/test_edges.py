"""Starts, ends, idle streams, outages and refused requests, on the emulator."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from penstock.errors import DecodeError, UnavailableError
from penstock.io.bigtable import (
    DeleteFamily,
    MutationType,
    PositionLostError,
    ReadFromBigtableChangeStream,
    SetCell,
    SetupError,
    UnknownMutation,
)
from penstock.io.change_streams.watermark import beam_watermark
from penstock_emulators.bigtable import BigtableEmulator, Fault
from tests.integration.emulators.bigtable.client import Mutation, delete_row, set_cell
from tests.support.epochs import Epochs
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.emulator, pytest.mark.long(seconds=5)]
SECOND = 1_000_000_000


def put(table: Any, *keys: bytes, value: bytes = b"x") -> None:
    for key in keys:
        table.client.write(key, set_cell("f", b"q", value))


def commits(table: Any, start: int) -> list[int]:
    """Return the commit timestamps (ns) since `start`, as a reader with an end sees them."""
    records = Epochs(table.reading(start=start, end=time.time_ns())).run_to_the_end()
    return [record.commit_timestamp for record in records]


def keys(records: list[Any]) -> list[bytes]:
    return [record.row_key for record in records]


def until_it_fails(driver: Epochs, seconds: float = 20) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        driver.run(0.1)
    raise AssertionError("the read continues")


def test_the_service_says_how_long_it_keeps_changes(table: Any) -> None:
    (kept,) = table.reading().measure()
    assert (kept.name, kept.labels) == ("penstock_retention_seconds", (("stream", table.id),))
    assert kept.value == 86_400


def test_start_and_end_are_inclusive_and_may_be_the_same_moment(table: Any) -> None:
    start = time.time_ns()
    put(table, b"a", b"b", b"c", b"d")
    _, second, third, _ = commits(table, start)
    assert keys(Epochs(table.reading(start=second, end=third)).run_to_the_end()) == [b"b", b"c"]
    assert keys(Epochs(table.reading(start=second, end=second)).run_to_the_end()) == [b"b"]


def test_the_layout_may_change_between_the_listing_and_the_first_read(table: Any) -> None:
    driver = Epochs(table.reading(start=time.time_ns()))
    put(table, b"a", b"z")
    table.control.split(table.name, b"m")
    table.control.move(table.name, b"z")
    driver.run_until(time.time_ns())
    assert sorted(keys(driver.committed)) == [b"a", b"z"]


def test_a_pending_merge_does_not_prevent_the_end_of_a_bounded_read(table: Any) -> None:
    table.control.split(table.name, b"m")
    start = time.time_ns()
    end = start + SECOND
    put(table, b"a", b"z")
    driver = Epochs(table.reading(start=start, end=end), parts=2)
    driver.run(0.1)
    while time.time_ns() < end:
        table.control.merge(table.name, b"m")
        driver.run(0.1)
        table.control.split(table.name, b"m")
        put(table, b"b", b"y")
        driver.run(0.1)
    read = [record.commit_timestamp for record in driver.run_to_the_end()]
    undisturbed = Epochs(table.reading(start=start, end=end)).run_to_the_end()
    assert sorted(read) == sorted(record.commit_timestamp for record in undisturbed)
    assert len(read) >= 2


def test_a_read_without_an_end_continues_a_bounded_one_amid_splits_and_merges(table: Any) -> None:
    table.control.split(table.name, b"m")
    start = time.time_ns()
    end = start + SECOND
    first = Epochs(table.reading(start=start, end=end), parts=2)
    while time.time_ns() < end + SECOND // 2:
        put(table, b"a", b"m", b"z")
        table.control.merge(table.name, b"m")
        first.run(0.05)
        put(table, b"a", b"m", b"z")
        table.control.split(table.name, b"m")
        first.run(0.05)
    endless = table.reading(start=start)
    first.fn = endless.bounded_fn(endless._settings)
    second = Epochs(endless, 2, stream=first.fn.read_on(first.stream))
    first.run_to_the_end()
    second.run_until(last := time.time_ns())
    undisturbed = Epochs(table.reading(start=start, end=last)).run_to_the_end()
    read = [(record.commit_timestamp, record.row_key) for record in (*first.committed, *second.committed)]
    assert sorted(read) == sorted((record.commit_timestamp, record.row_key) for record in undisturbed)
    for row in (b"a", b"m", b"z"):
        times = [time for time, key in read if key == row]
        assert times == sorted(set(times))
        assert times[0] <= end < times[-1]


def test_an_idle_stream_advances_its_watermark_and_is_split_at_once(table: Any) -> None:
    driver = Epochs(table.reading())
    driver.run(0.5)
    put(table, b"a")
    driver.run_until(time.time_ns())
    assert time.time_ns() - driver.watermark.micros * 1000 < 2 * SECOND
    silent = Epochs(table.reading(heartbeat_seconds=30))
    for _ in range(5):
        silent.run(0.1)
    assert max(silent.seconds_to_stop) < 5, "a cut waits for the next heartbeat"


def test_a_stream_is_kept_open_between_bundles(table: Any) -> None:
    driver = Epochs(table.reading())
    for number in range(10):
        put(table, b"%d" % number)
        driver.run(0.1)
    driver.run_until(time.time_ns())
    assert len(driver.committed) == 10
    assert table.control.statistics(table.name)["streams_opened"] <= 2


def test_a_frozen_watermark_of_the_service_holds_the_reported_one(table: Any) -> None:
    driver = Epochs(table.reading())
    driver.run_until(time.time_ns())
    table.control.freeze_watermark(table.name)
    driver.run(0.3)
    before = driver.watermark
    driver.run(0.5)
    assert driver.watermark.micros - before.micros < 300_000
    table.control.freeze_watermark(table.name, False)
    driver.run_until(time.time_ns())


def test_a_late_record_keeps_its_timestamp(table: Any) -> None:
    start = time.time_ns()
    driver = Epochs(table.reading(start=start))
    driver.run_until(time.time_ns())
    late = start // 1000 + 1
    mutation = set_cell("f", b"q", b"late", 1000).SerializeToString()
    table.control.inject(table.name, b"late", [mutation], commit_us=late)
    while not driver.committed:
        driver.run(0.2, late=True)
    assert beam_watermark(late * 1000) < driver.watermark
    assert [record.commit_timestamp for record in driver.committed] == [late * 1000]


def test_a_commit_timestamp_in_the_future_raises_no_watermark_and_hides_no_later_record(
    table: Any,
) -> None:
    start = time.time_ns()
    driver = Epochs(
        table.reading(start=start, idle_stream_seconds=0)
    )  # every epoch opens its streams by token
    ahead = start // 1000 + 3_600_000_000
    mutation = set_cell("f", b"q", b"ahead", 1000).SerializeToString()
    table.control.inject(table.name, b"ahead", [mutation], commit_us=ahead)
    while not driver.committed:
        driver.run(0.1)
    assert driver.watermark < beam_watermark(ahead * 1000)
    put(table, b"after")
    driver.run_until(time.time_ns())
    assert keys(driver.committed) == [b"ahead", b"after"]
    assert driver.committed[0].commit_timestamp == ahead * 1000


def test_garbage_collection_source_clusters_and_unknown_mutations_are_emitted_unchanged(table: Any) -> None:
    start = time.time_ns()
    unknown = b"\xca\x3e\x01x"
    cell = set_cell("f", b"q", b"v", 1000).SerializeToString()
    at = table.control.inject(table.name, b"row", [cell], cluster="east", tiebreaker=1)
    table.control.inject(table.name, b"row", [cell, unknown], cluster="west", commit_us=at, tiebreaker=2)
    family = Mutation()
    family.delete_from_family.family_name = "f"
    table.control.inject(table.name, b"row", [family.SerializeToString()], garbage_collection=True)
    driver = Epochs(table.reading(start=start))
    while len(driver.committed) < 3:
        driver.run(0.2)
    east, west, garbage = driver.committed
    assert (east.source_cluster_id, east.tiebreaker) == ("east", 1)
    assert (west.source_cluster_id, west.tiebreaker, west.commit_timestamp) == ("west", 2, at * 1000)
    assert west.entries == (SetCell("f", b"q", 1000, b"v"), UnknownMutation(unknown))
    assert (garbage.type, garbage.entries) == (MutationType.GARBAGE_COLLECTION, (DeleteFamily("f"),))


def test_large_values_and_thousands_of_mutations_are_emitted_complete(table: Any) -> None:
    start = time.time_ns()
    big = bytes(range(256)) * 24_000  # 6 MB, above gRPC's default limit even for one message
    table.control.chunk_bytes(table.name, 5 << 20)
    put(table, b"big", value=big)
    table.client.write(b"wide", *[set_cell("f", b"%d" % number, b"v", 1000) for number in range(5000)])
    large, wide = Epochs(table.reading(start=start, end=time.time_ns())).run_to_the_end()
    assert large.entries[0].value == big  # type: ignore[union-attr]
    assert len(wide.entries) == 5000


def test_only_dropped_rows_and_effective_writes_produce_records(table: Any) -> None:
    start = time.time_ns()
    put(table, b"\xff\xff", b"\xff\xffz", b"keep")
    table.client.check_and_write(b"nobody", [set_cell("f", b"q", b"x")])
    assert table.client.write_many([(b"keep", [set_cell("no such family", b"q", b"x")])]) != [0]
    table.client.write(b"nobody", delete_row())
    table.client.drop_rows(b"\xff")
    records = Epochs(table.reading(start=start, end=time.time_ns())).run_to_the_end()
    deleted = [r.row_key for r in records if isinstance(r.entries[0], DeleteFamily)]
    assert sorted(deleted) == [b"\xff\xff", b"\xff\xffz"]
    assert len(records) == 5


def test_a_resumed_read_applies_its_new_filter_from_the_checkpoint_on(table: Any) -> None:
    start = time.time_ns()
    driver = Epochs(table.reading(start=start))
    table.client.write(b"a", set_cell("f", b"q", b"1"), set_cell("g", b"q", b"1"))
    driver.run_until(time.time_ns())
    resumed = Epochs(table.reading(start=start, families=["g"]))
    resumed.residuals = driver.residuals
    table.client.write(b"a", set_cell("f", b"q", b"2"), set_cell("g", b"q", b"2"))
    resumed.run_until(time.time_ns())
    (record,) = resumed.committed
    assert [entry.family for entry in record.entries] == ["g"]


def test_two_pipelines_over_one_stream_each_get_every_change(table: Any) -> None:
    start = time.time_ns()
    put(table, b"a", b"b")
    ends = time.time_ns()
    for _ in range(2):
        assert len(Epochs(table.reading(start=start, end=ends)).run_to_the_end()) == 2


def test_a_row_range_is_read_through_splits_and_merges_across_its_border(table: Any) -> None:
    start = time.time_ns()
    driver = Epochs(table.reading(start=start, row_range=(b"k", b"p")), parts=2)
    for number in range(20):
        put(table, b"a", b"k", b"m%d" % number, b"o", b"p", b"z")
        table.control.split(table.name, b"l") if number % 2 else table.control.set_layout(table.name, [b"j"])
        driver.run(0.1)
        table.control.set_layout(table.name, [] if number % 3 else [b"n"])
    driver.run_until(time.time_ns())
    assert len(driver.committed) == 60
    assert all(b"k" <= key < b"p" for key in keys(driver.committed))


def test_a_multi_cluster_profile_is_refused_by_name(table: Any) -> None:
    profile = f"many-{table.id}"
    table.client.create_profile(profile, None)
    with pytest.raises(SetupError, match=f"{profile!r} .*single-cluster"):
        table.reading(app_profile=profile).check()


@pytest.mark.parametrize("start", [1, -2 * 86_400 * SECOND])
def test_a_start_before_the_stream_is_refused_and_the_error_names_the_fix(table: Any, start: int) -> None:
    moment = start if start > 0 else time.time_ns() + start
    with pytest.raises(PositionLostError, match="later start"):
        driver = Epochs(table.reading(start=moment))
        until_it_fails(driver)


def test_a_position_that_expired_in_an_outage_is_refused_and_the_error_names_the_loss(table: Any) -> None:
    driver = Epochs(table.reading(idle_stream_seconds=0))
    put(table, b"a")
    driver.run_until(time.time_ns())
    put(table, b"b")
    time.sleep(0.05)
    table.control.expire(table.name)
    with pytest.raises(PositionLostError, match="take a new snapshot"):
        until_it_fails(driver)


def test_a_stream_that_is_switched_off_and_on_is_not_taken_for_the_old_one(table: Any) -> None:
    driver = Epochs(table.reading())
    driver.run_until(time.time_ns())
    table.client.configure(0)
    with pytest.raises(SetupError, match="no change stream"):
        until_it_fails(driver)
    table.client.configure(1)
    with pytest.raises(PositionLostError, match="dropped and created again"):
        until_it_fails(driver)


@pytest.mark.parametrize(
    "fault",
    [Fault.WRONG_CHUNK_SIZE, Fault.WRONG_CHUNK_OFFSET, Fault.MISSING_LAST_CHUNK, Fault.INTERRUPTED_CHUNK],
)
def test_a_damaged_value_is_refused_and_nothing_is_skipped(table: Any, fault: Fault) -> None:
    table.control.chunk_bytes(table.name, 100)
    driver = Epochs(table.reading(start=time.time_ns()))
    put(table, b"before", b"big", value=b"x" * 50)
    driver.run_until(time.time_ns())
    table.control.fault(table.name, fault)
    put(table, b"damaged", value=b"x" * 1000)
    with pytest.raises(DecodeError):
        until_it_fails(driver)
    while len(driver.committed) < 3:  # the service has recovered
        driver.run(0.2)
    assert keys(driver.committed) == [b"before", b"big", b"damaged"]


def test_reading_a_dead_emulator_fails_after_the_timeout_and_leaves_no_thread(
    tmp_path: Any, new_table: Callable[..., Any]
) -> None:
    with BigtableEmulator.start() as own:
        from tests.integration.bigtable.conftest import Table

        driver = Epochs(Table(own).reading(unavailable_seconds=1.0, idle_stream_seconds=0))
        driver.run(0.2)
    with pytest.raises(UnavailableError, match="unavailable_seconds=1"):
        until_it_fails(driver)
    wait_until(lambda: not [t for t in threading.enumerate() if "bigtable-reader" in t.name])


def test_a_check_fails_when_the_service_does_not_answer() -> None:
    nobody = ReadFromBigtableChangeStream(
        project="p", instance="i", table="t", emulator_host="localhost:1", unavailable_seconds=0.5
    )
    with pytest.raises(UnavailableError, match="has not answered"):
        nobody.check()
