"""The progress that a running pipeline shows."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import pytest

from penstock.io.change_streams.flat import FlatFrontier, FlatPosition
from penstock.io.change_streams.frontier import Scan, Slowest, TableMove
from penstock.io.change_streams.incremental.options import initial_request
from penstock.io.change_streams.incremental.progress import SnapshotProgress
from penstock.io.postgres.position import Position
from penstock.telemetry.status import PipelineStatus, as_fields, as_json, as_line, pipeline_status, rate


@dataclass
class FakeFrontier:
    readable: tuple[str, ...]
    waiting: tuple[str, ...]


@dataclass
class SlowFrontier(FakeFrontier):
    slowest: Slowest


@dataclass
class FakeResidual:
    restriction: Any


@dataclass
class FakeProgress:
    epochs: int = 7
    committed_us: int | None = 999_500_000
    watermark_us: int | None = 998_000_000
    residuals: tuple[FakeResidual, ...] = field(default_factory=tuple)
    complete_us: dict[str, int | None] = field(default_factory=dict)


COUNTERS = [
    ("penstock.io.spanner", "changes", 40),
    ("penstock.io.spanner", "records", 30),
    ("penstock.io.spanner", "splits", 2),
    ("penstock.io.bigtable", "splits", 3),
    ("penstock.io.bigtable", "changes", 12),
    ("penstock.io.spanner", "requests", 99),
    ("users.own", "splits", 1000),
]


def status(**changed: Any) -> PipelineStatus:
    base = PipelineStatus(
        at=1000.0,
        epochs=7,
        committed_at=999.5,
        watermark=998.0,
        open=3,
        waiting=1,
        counters={"changes": 2500},
    )
    return replace(base, **changed)


def test_partitions_of_all_dealt_frontiers_are_counted_each_once() -> None:
    residuals = (
        FakeResidual(FakeFrontier(("a", "b"), ("c",))),
        FakeResidual(FakeFrontier(("d",), ("c",))),
        FakeResidual("the restriction of some other source"),
    )
    seen = pipeline_status(1000.0, FakeProgress(residuals=residuals), [])
    assert (seen.open, seen.waiting) == (3, 1)


def test_a_source_without_partitions_shows_none() -> None:
    seen = pipeline_status(1000.0, FakeProgress(residuals=(FakeResidual(5),)), [])
    assert seen.open is None
    assert "partitions" not in as_line(seen, seen)


def test_counters_of_our_sources_are_added_up_and_those_of_users_left_out() -> None:
    assert pipeline_status(1000.0, FakeProgress(), COUNTERS).counters == {
        "changes": 52,
        "records": 30,
        "splits": 5,
    }


def test_the_lag_is_the_watermark_behind_now_and_negative_when_the_clock_of_this_computer_is_behind() -> None:
    assert pipeline_status(1000.0, FakeProgress(), []).lag == pytest.approx(2.0)
    assert status(watermark=1000.5).lag == -0.5
    assert status(watermark=None).lag is None


def test_beams_lowest_watermark_is_shown_as_unknown_and_the_highest_as_the_end() -> None:
    lowest, highest = (
        pipeline_status(1000.0, FakeProgress(watermark_us=mark), [])
        for mark in (-9_223_372_036_854_775_000, 9_223_372_036_854_775_000)
    )
    assert (lowest.watermark, highest.watermark) == (None, None)
    assert "watermark -" in as_line(lowest, lowest)
    assert as_fields(lowest, lowest)["watermark"] is None
    assert "| all input is read |" in as_line(highest, highest)
    assert as_fields(highest, highest)["watermark"] == "end"


def test_the_newest_change_of_each_table_is_shown() -> None:
    counters = [
        ("penstock.tables.postgres", "public.orders", 998_500),
        ("penstock.io.postgres", "records", 1),
    ]
    now = pipeline_status(1000.0, FakeProgress(), counters)
    assert as_fields(now, now)["newest_changes"] == {"public.orders": "1970-01-01T00:16:38.500Z"}


def test_times_until_which_targets_are_complete_are_shown_by_sink() -> None:
    times = {"Write": 998_000_000, "New": None}
    now = pipeline_status(1000.0, FakeProgress(complete_us=times), [])
    assert as_fields(now, now)["complete_until"] == {
        "Write": "1970-01-01T00:16:38.000Z",
        "New": None,
    }


def test_the_rate_is_changes_over_the_time_between_two_statuses() -> None:
    assert rate(status(at=990.0, counters={"changes": 500}), status()) == pytest.approx(200.0)


def test_a_single_status_has_no_rate() -> None:
    assert rate(status(), status()) == 0.0


def test_records_count_where_a_source_counts_no_rows() -> None:
    assert status(counters={"records": 5}).changes == 5


def test_the_line_has_rate_total_watermark_partitions_and_checkpoint() -> None:
    counters = {"changes": 2500, "splits": 4, "merges": 2, "moves": 1}
    line = as_line(status(at=990.0, counters={"changes": 500}), status(counters=counters))
    assert line == (
        "200 changes/s | 2,500 in all | watermark 2.0 s behind | partitions 3 open, 1 waiting | "
        "4 splits, 2 merges, 1 moves | 7 epochs | checkpoint 0.5 s ago"
    )


def test_the_line_before_the_first_commit_has_no_watermark_and_no_checkpoint() -> None:
    fresh = PipelineStatus(1000.0, 0, None, None, None, None, {})
    assert as_line(fresh, fresh) == "0 changes/s | 0 in all | watermark - | 0 epochs"


@pytest.mark.parametrize(("lag", "text"), [(119.0, "119.0 s"), (120.0, "2 min"), (7200.0, "2.0 h")])
def test_long_spans_are_shown_in_larger_units(lag: float, text: str) -> None:
    assert f"watermark {text} behind" in as_line(status(), status(watermark=1000.0 - lag))


def test_the_json_line_is_one_object_with_times_in_rfc_3339() -> None:
    event = json.loads(as_json(status(at=990.0, counters={"changes": 500}), status()))
    assert event == {
        "time": "1970-01-01T00:16:40.000Z",
        "event": "progress",
        "changes_per_second": 200.0,
        "snapshot": None,
        "watermark": "1970-01-01T00:16:38.000Z",
        "complete_until": {},
        "newest_changes": {},
        "parked_tables": [],
        "moved_tables": [],
        "watermark_lag_seconds": 2.0,
        "open_partitions": 3,
        "waiting_partitions": 1,
        "slowest_partition": None,
        "slowest_partition_waits_for": [],
        "refused_partitions": 0,
        "longest_refusal_seconds": 0,
        "epochs": 7,
        "last_checkpoint": "1970-01-01T00:16:39.500Z",
        "changes": 2500,
        "dead_letters": 0,
        "records": 0,
        "splits": 0,
        "merges": 0,
        "moves": 0,
    }


def test_unknown_values_are_null_in_json() -> None:
    fresh = PipelineStatus(1000.0, 0, None, None, None, None, {})
    fields = as_fields(fresh, fresh)
    assert [name for name, value in fields.items() if value is None] == [
        "snapshot",
        "watermark",
        "watermark_lag_seconds",
        "open_partitions",
        "waiting_partitions",
        "slowest_partition",
        "last_checkpoint",
    ]


def test_a_clock_that_was_set_back_is_shown_as_such() -> None:
    day_later = status(watermark=1000.0 + 86_400, committed_at=1000.0 + 7200)
    line = as_line(day_later, day_later)
    assert "watermark 24.0 h ahead of this computer's clock" in line
    assert "checkpoint 2.0 h ahead of this computer's clock" in line
    assert as_fields(day_later, day_later)["watermark_lag_seconds"] == -86_400


def test_clocks_that_differ_by_less_than_a_second_show_no_lag() -> None:
    assert "watermark 0.0 s behind" in as_line(status(), status(watermark=1000.5))


def test_the_line_names_the_partition_that_holds_the_watermark_and_what_it_waits_for() -> None:
    part = SlowFrontier(
        ("a",), ("m",), Slowest("partition m", 5, ("partition a", "partition b", "partition c"))
    )
    other = SlowFrontier(("z",), (), Slowest("partition z", 9))
    progress = FakeProgress(watermark_us=900_000_000, residuals=(FakeResidual(other), FakeResidual(part)))
    seen = pipeline_status(1000.0, progress, [])
    assert seen.slowest == part.slowest
    held = "held by partition m, which waits for partition a and partition b and 1 more"
    assert f"watermark 100.0 s behind, {held} |" in as_line(seen, seen)
    assert as_fields(seen, seen)["slowest_partition_waits_for"] == [
        "partition a",
        "partition b",
        "partition c",
    ]
    assert "held by" not in as_line(seen, replace(seen, watermark=995.0)), "a small lag needs no reason"


def test_of_partitions_at_one_time_the_one_that_is_read_is_the_reason() -> None:
    waiting = SlowFrontier((), ("m",), Slowest("m", 5, ("a",)))
    read = SlowFrontier(("a",), (), Slowest("a", 5))
    residuals = (FakeResidual(waiting), FakeResidual(read))
    assert pipeline_status(1000.0, FakeProgress(residuals=residuals), []).slowest == Slowest("a", 5)


def test_the_line_says_how_many_partitions_the_service_refuses() -> None:
    counters = [
        ("penstock.io.spanner", "refused_partitions", 2),
        ("penstock.io.spanner", "longest_refusal_seconds", 75),
    ]
    seen = pipeline_status(1000.0, FakeProgress(), counters)
    assert "the service has refused 2 partitions, the first for 75.0 s" in as_line(seen, seen)


def test_tables_that_joined_and_left_are_shown_in_the_order_of_time() -> None:
    moves = TableMove("orders", True, 900_000_000_000), TableMove("refunds", False, 800_000_000_000)
    residuals = tuple(FakeResidual(SimpleNamespace(table_moves=(move,))) for move in moves)
    now = pipeline_status(1000.0, FakeProgress(residuals=residuals), [])
    assert as_fields(now, now)["moved_tables"] == [
        {"table": "refunds", "event": "left", "at": "1970-01-01T00:13:20.000Z"},
        {"table": "orders", "event": "joined", "at": "1970-01-01T00:15:00.000Z"},
    ]


def test_a_snapshot_shows_table_rows_share_and_the_time_that_is_left() -> None:
    scans = (Scan("shop.orders", 2_000, 10_000), Scan("shop.items", 0, 4_000), Scan("shop.users", 0, 0))
    before = replace(status(), at=998.0, scans=(Scan("shop.orders", 1_000, 10_000),))
    line = as_line(before, replace(status(), scans=scans))
    assert "| snapshot shop.orders 2,000 of about 10,000 rows (20 %), 2 more tables | watermark" in line
    known = replace(status(), scans=scans[:2])
    # 8,000 and 4,000 rows at 500 a second.
    assert "(20 %), 1 more table, 24.0 s left |" in as_line(before, known)
    fields = as_fields(before, known)["snapshot"]
    assert fields["tables"][0] == {
        "table": "shop.orders",
        "rows": 2_000,
        "estimated_rows": 10_000,
        "percent": 20,
    }
    assert (fields["rows_per_second"], fields["seconds_left"]) == (500.0, 24)


def test_a_snapshot_without_estimates_shows_rows_and_an_estimate_that_is_too_low_is_not_the_end() -> None:
    unknown = replace(status(), scans=(Scan("orders", 7, 0),))
    assert "| snapshot orders 7 rows |" in as_line(unknown, unknown)
    table = as_fields(unknown, unknown)["snapshot"]["tables"][0]
    assert (table["estimated_rows"], table["percent"]) == (None, None)
    low = replace(status(), scans=(Scan("orders", 700, 7),))
    assert "(99 %)" in as_line(low, low)
    assert as_fields(status(), status())["snapshot"] is None


def test_the_scans_of_all_sources_are_taken() -> None:
    position = Position(0, 0, "system", snapshots=SnapshotProgress().with_initial(initial_request()))
    request = position.snapshots.current
    assert request is not None
    progress, _ = position.snapshots.resolved(request.id, {"shop.orders": 10})
    frontier = FlatFrontier({"slot": FlatPosition(list(position._replace(snapshots=progress)), 0)}, None)
    seen = pipeline_status(0.0, FakeProgress(residuals=(FakeResidual(frontier), FakeResidual(None))), [])
    assert seen.scans == (Scan("shop.orders", 0, 10),)
