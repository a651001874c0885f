"""What remains of snapshots after signals, chunks and restarts."""

from __future__ import annotations

import json

from penstock.io.change_streams.incremental.notifications import ScanStatus
from penstock.io.change_streams.incremental.options import initial_request
from penstock.io.change_streams.incremental.progress import ScanResult, SnapshotProgress
from penstock.io.change_streams.incremental.signals import (
    ExecuteSnapshot,
    PauseSnapshot,
    ResumeSnapshot,
    StopSnapshot,
)

ORDERS = ExecuteSnapshot("1", ("public.*",), (("public.orders", "total > 10"),))


def types(reports):
    return [(str(report.type), report.table) for report in reports]


def started(*tables):
    progress, _ = SnapshotProgress().receive(ORDERS)
    return progress.resolved("1", tables)[0]


def test_a_snapshot_reports_its_start_each_table_and_its_end():
    progress, reports = SnapshotProgress().receive(ORDERS)
    assert reports == ()
    progress, reports = progress.resolved("1", ["public.orders", "public.empty", "public.orders"])
    assert [(report.type, report.tables) for report in reports] == [
        ("STARTED", ("public.orders", "public.empty"))
    ]
    progress = progress.advanced("public.orders", "[3]", 3).scanned("public.orders")
    progress, reports = progress.finished("public.orders", ScanStatus.SUCCEEDED)
    assert [(report.rows, report.status) for report in reports] == [(3, "SUCCEEDED")]
    progress, reports = progress.finished("public.empty", ScanStatus.SUCCEEDED)
    assert types(reports) == [("TABLE_SCAN_COMPLETED", "public.empty"), ("COMPLETED", "")]
    assert reports[0].status is ScanStatus.EMPTY
    assert progress == SnapshotProgress()


def test_tables_that_others_have_read_are_finished_together_as_one_after_the_other():
    progress = started("public.a", "public.b", "public.c", "public.d")
    results = {
        "public.a": ScanResult(3),
        "public.b": ScanResult(2, unread=True, condition="id > 5"),
        "public.d": ScanResult(0),
    }
    progress = progress.read_by_scan(results)
    one_by_one, reports = progress, ()
    for table in ("public.a", "public.d"):
        one_by_one, more = one_by_one.finished(table, ScanStatus.SUCCEEDED)
        reports += more
    assert progress.finished_by_scan() == (one_by_one, reports)
    kept = {scan.table: (scan.rows, scan.condition, scan.scanned) for scan in one_by_one.current.tables}
    assert kept == {"public.b": (2, "id > 5", False), "public.c": (0, "", False)}
    assert one_by_one.finished_by_scan() == (one_by_one, ())


def test_the_condition_of_a_table_is_kept_with_its_scan():
    progress = started("public.orders", "public.notes")
    assert [scan.condition for scan in progress.current.tables] == ["total > 10", ""]


def test_names_that_cannot_be_read_are_reported():
    progress, _ = SnapshotProgress().receive(ORDERS)
    problems = {"public.keyless": (ScanStatus.NO_PRIMARY_KEY, "name a surrogate key")}
    progress, reports = progress.resolved("1", [], problems)
    assert types(reports) == [("STARTED", ""), ("TABLE_SCAN_COMPLETED", "public.keyless"), ("COMPLETED", "")]
    assert progress.current is None


def test_a_second_snapshot_waits_for_the_first():
    progress, _ = started("public.orders").receive(ExecuteSnapshot("2", ("public.notes",)))
    assert progress.current.id == "1"
    progress, _ = progress.finished("public.orders", ScanStatus.SUCCEEDED)
    assert progress.current.id == "2"
    assert progress.unresolved is not None


def test_one_request_through_two_channels_is_one_snapshot():
    progress = started("public.orders")
    assert progress.receive(ORDERS) == (progress, ())


def test_a_stop_without_tables_ends_all_snapshots():
    progress, _ = started("public.orders").receive(ExecuteSnapshot("2", ("public.notes",)))
    progress, reports = progress.receive(StopSnapshot("3"))
    assert types(reports) == [("TABLE_SCAN_COMPLETED", "public.orders"), ("ABORTED", ""), ("ABORTED", "")]
    assert progress.snapshots == ()


def test_a_stop_names_the_table_that_is_read_or_one_that_waits():
    progress = started("public.a", "public.b", "public.c")
    progress, reports = progress.receive(StopSnapshot("2", ("public.a",)))
    assert types(reports) == [("TABLE_SCAN_COMPLETED", "public.a")]
    progress, _ = progress.receive(StopSnapshot("3", ("public.c",)))
    assert progress.current.names == ("public.b",)


def test_a_pause_stays_until_a_resume_and_through_a_restart():
    progress, reports = started("public.a").receive(PauseSnapshot("2"))
    assert types(reports) == [("PAUSED", "")]
    stored = SnapshotProgress.from_document(json.loads(json.dumps(progress.document())))
    assert stored.paused
    progress, reports = stored.receive(ResumeSnapshot("3"))
    assert types(reports) == [("RESUMED", "")]
    assert not progress.paused


def test_progress_is_the_same_after_it_was_stored():
    progress = started("public.orders", "public.notes").advanced("public.orders", '["ä"]', 5)
    progress = progress.with_repairs("public.orders", ["[1]"]).with_channel("file", [3, ["a"]])
    stored = SnapshotProgress.from_document(json.loads(json.dumps(progress.document())))
    assert stored.document() == progress.document()
    assert stored.current == progress.current


def test_a_notification_has_debeziums_layout():
    (report,) = SnapshotProgress().receive(ORDERS)[0].resolved("1", ["public.orders"])[1]
    assert report.document("shop", 1_700_000_000_123_456_789) == {
        "id": "1",
        "aggregate_type": "Incremental Snapshot",
        "type": "STARTED",
        "additional_data": {"stream": "shop", "data_collections": "public.orders"},
        "timestamp": 1_700_000_000_123,
    }


def test_an_estimate_of_the_rows_is_kept_and_a_document_of_an_earlier_version_has_none() -> None:
    progress = SnapshotProgress().with_initial(initial_request())
    request = progress.current
    assert request is not None
    known, _ = progress.resolved(request.id, {"s.orders": 10_000, "s.items": 0})
    assert [(scan.table, scan.rows, scan.estimate) for scan in known.scans] == [
        ("s.orders", 0, 10_000),
        ("s.items", 0, 0),
    ]
    stored = json.loads(json.dumps(known.document()))
    assert SnapshotProgress.from_document(stored) == known
    (((*_, tables),), _, _) = stored
    assert [len(table) for table in tables] == [7, 6]
    tables[0].pop()
    assert SnapshotProgress.from_document(stored).scans[0].estimate == 0


def test_tables_that_join_are_one_request_behind_the_others():
    progress, reports = resolved_orders().followed({"public.a.b": "", "public.c": "x > 1"}, [], "new")
    assert reports == ()
    assert progress.current.id == "1"
    request = progress.snapshots[-1].request
    assert request == ExecuteSnapshot("new", (r"public\.a\.b", r"public\.c"), ((r"public\.c", "x > 1"),))
    again, _ = progress.followed({"public.d": ""}, [], "new")
    assert [snapshot.id for snapshot in again.snapshots] == ["1", "new", "new-2"]
    third, _ = again.followed({"public.e": ""}, [], "new")
    assert third.snapshots[-1].id == "new-3"


def test_a_table_that_left_is_not_read_any_more_wherever_it_waits():
    progress, _ = resolved_orders().followed({"public.c": "", "public.d": ""}, [], "new")
    progress, reports = progress.followed({}, ["public.orders", "public.c"], "later")
    assert [snapshot.request.tables for snapshot in progress.snapshots] == [(r"public\.d",)]
    assert [report.type.value for report in reports] == ["TABLE_SCAN_COMPLETED", "ABORTED"]
    rejoined, _ = progress.followed({"public.c": ""}, [], "new")
    assert [snapshot.id for snapshot in rejoined.snapshots] == ["new", "new-2"]
    assert resolved_orders().followed({}, [], "x") == (resolved_orders(), ())


def resolved_orders():
    progress, _ = SnapshotProgress().receive(ExecuteSnapshot("1", ("public.orders",)))
    return progress.resolved("1", ["public.orders"])[0]
