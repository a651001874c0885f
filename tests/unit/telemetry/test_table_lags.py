"""The lag of a table is known when it changes, and only for a limited number of tables."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from apache_beam.metrics import monitoring_infos
from apache_beam.metrics.cells import GaugeData

from penstock.io.postgres.metrics import PostgresMetrics
from penstock.io.postgres.record import ChangeKind, LogRecord, Table
from penstock.runner.driver.merge_reports import metrics_after
from penstock.runner.metrics import Metrics, deserialized
from penstock.table_times import MOST_TABLES, OTHER, limited
from penstock.telemetry.measurements import TABLE_IDLE_SECONDS, TableLags, measure_tables

NAMESPACE = "penstock.tables.postgres"


def measured(lags: TableLags[tuple[str, str]], committed_at: float, **times: float) -> dict[str, float]:
    """The lags that are exported after a commit; `times` are of the newest changes."""
    counters = [(NAMESPACE, table, round(time * 1000)) for table, time in times.items()]
    found = measure_tables(lags, committed_at, [*counters, ("penstock.io.postgres", "records", 7)])
    return {dict(m.labels)["table"]: m.value for m in found if m.name == "penstock_table_lag_seconds"}


def test_a_tables_lag_is_the_age_of_its_newest_change_at_its_commit() -> None:
    lags: TableLags[tuple[str, str]] = TableLags()
    measured(lags, 1000.0, orders=900.0, people=900.0)
    assert measured(lags, 1010.0, orders=1009.0, people=900.0) == {"orders": pytest.approx(1.0)}
    # A table that does not change keeps the lag of its last change, and does not seem to fall behind.
    assert measured(lags, 1100.0, orders=1009.0, people=1070.0) == {
        "orders": pytest.approx(1.0),
        "people": pytest.approx(30.0),
    }


def test_the_changes_before_a_restart_are_not_late() -> None:
    assert measured(TableLags(), 5000.0, orders=900.0) == {}


def test_a_table_without_changes_for_long_has_no_lag() -> None:
    lags: TableLags[tuple[str, str]] = TableLags()
    measured(lags, 1000.0, orders=900.0)
    assert measured(lags, 1010.0, orders=1009.0)
    assert measured(lags, 1010.0 + TABLE_IDLE_SECONDS, orders=1009.0) == {}


def test_tables_above_the_limit_share_one_name_with_their_newest_time() -> None:
    times = {f"t{number:03d}": number for number in range(MOST_TABLES + 3)}
    found = limited(times)
    assert len(found) == MOST_TABLES + 1
    assert found[OTHER] == MOST_TABLES + 2
    assert found["t000"] == 0
    # Applied to its own result, as the driver does, it changes nothing.
    assert limited(found) == found


def reported(times: dict[str, int], step: str = "Read") -> Any:
    """The report of a task with gauges of tables."""
    infos = [
        monitoring_infos.int64_user_gauge(NAMESPACE, table, GaugeData(time, time), ptransform=step)
        for table, time in times.items()
    ]
    return SimpleNamespace(metrics=[info.SerializeToString() for info in infos])


def test_a_record_keeps_no_more_tables_than_the_limit_however_many_workers_report() -> None:
    many = {f"t{number:03d}": number for number in range(MOST_TABLES)}
    more = {f"s{number:03d}": number for number in range(MOST_TABLES)}
    before = metrics_after((), [reported(many), reported(many, "Other read")])
    kept = Metrics(deserialized(metrics_after(before, [reported(more)]))).query()["gauges"]
    found = {(each.key.step, each.key.metric.name): each.committed.value for each in kept}
    assert len(found) == MOST_TABLES + 1 + MOST_TABLES
    assert found["Read", OTHER] == MOST_TABLES - 1
    assert ("Read", "s049") in found
    assert ("Other read", "t049") in found


def test_a_reader_notes_the_newest_change_of_each_table() -> None:
    orders, people = (Table(1, "public", name, "DEFAULT", ()) for name in ("orders", "people"))

    def change(table: Table | None, ms: int) -> LogRecord:
        return LogRecord(ChangeKind.INSERT, ms * 1_000_000, None, 1, 1, True, table)

    metrics = PostgresMetrics(None)  # type: ignore[arg-type]
    metrics.claimed([change(orders, 1), change(orders, 2), change(people, 3), change(None, 4)], None)
    metrics.claimed([change(orders, 5)], None)
    assert metrics.table_times_ms() == {"public.orders": 5, "public.people": 3}
