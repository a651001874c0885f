"""What the pages say about a job, from plain values."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from penstock.io.change_streams.frontier import Scan, Slowest
from penstock.parked import ParkedTable
from penstock.telemetry.state import Condition, JobState
from penstock.telemetry.status import PipelineStatus
from penstock.ui.view import Answer, JobView, LetterGroup, Table, by_urgency, counted, sink_of

NOW = 1_000_000.0


def status(at: float = NOW, *, lag: float = 1.0, changes: int = 0, **more: Any) -> PipelineStatus:
    counters = {"changes": changes, **more.pop("counters", {})}
    return PipelineStatus(at, 1, more.pop("committed_at", at), at - lag, None, None, counters, **more)


def job(condition: Condition = Condition.RUNNING, *samples: PipelineStatus, **more: Any) -> JobView:
    state = JobState(condition, more.pop("text", str(condition)))
    return JobView(
        NOW, more.pop("key", "k"), more.pop("folder", "/cp/orders"), state, samples=samples, **more
    )


def test_a_job_far_behind_says_which_partition_holds_it_and_what_that_waits_for() -> None:
    stuck = job(Condition.RUNNING, status(lag=2700, slowest=Slowest("partition c", 0, ("partition b",))))
    assert (stuck.label, stuck.level) == ("behind", "warn")
    assert stuck.warnings == [
        "the watermark is 45 min behind, held by partition c, which waits for partition b"
    ]


def test_a_snapshot_is_the_reason_of_a_lag() -> None:
    reading = job(Condition.RUNNING, status(lag=2700, slowest=Slowest("p", 0), scans=(Scan("t", 1, 10),)))
    assert reading.warnings == ["the watermark is 45 min behind: not finished are snapshots of 1 table"]


def test_a_parked_table_is_a_warning_with_its_reason_and_the_command_that_continues_it() -> None:
    since_us = round((NOW - 600) * 1e6)
    table = ParkedTable(
        "lake/orders", "public.orders", "the column v is text.", since_us, 1200, 5000, False, b""
    )
    parked = job(Condition.RUNNING, status(parked=(table,)), job_file="jobs/a b.yaml")
    assert parked.level == "warn"
    assert parked.warnings == [
        "public.orders is parked for 10 min, 1,200 changes (5,000 bytes) wait: the column v is text. Correct it, then: "
        "penstock tables 'jobs/a b.yaml' resume public.orders"
    ]
    resuming = job(Condition.RUNNING, status(parked=(replace(table, resuming=True),)))
    assert resuming.warnings == [
        "public.orders is resuming: 1,200 changes (5,000 bytes) are still to be written to lake/orders"
    ]


def test_a_job_that_does_not_run_has_no_lag_and_no_pace() -> None:
    stopped = job(Condition.STOPPED, status(NOW - 1, lag=2700), status(lag=2700))
    assert (stopped.lag, stopped.pace, stopped.level, stopped.warnings) == (None, None, "ended", [])


def test_the_pace_is_of_the_last_minute() -> None:
    samples = (
        status(NOW - 600, changes=0),
        status(NOW - 20, changes=60_000),
        status(NOW - 10, changes=60_500),
        status(NOW, changes=61_000),
    )
    assert job(Condition.RUNNING, *samples).pace == 50.0
    assert job(Condition.RUNNING, samples[0], samples[-1]).pace is None


def test_the_charts_of_a_stopped_job_end_with_its_last_commit() -> None:
    ran = [status(at) for at in (10.0, 11.0)]
    stopped = job(Condition.STOPPED, *ran, status(NOW, committed_at=11.0))
    assert stopped.while_it_ran == ran
    assert stopped.seen_until == 11.0


def test_refusals_and_a_wrong_clock_are_warnings() -> None:
    refused = {"refused_partitions": 2, "longest_refusal_seconds": 90}
    found = job(Condition.RUNNING, status(lag=-5, counters=refused)).warnings
    assert found[0] == "the service refuses 2 partitions, the first for 90.0 s"
    assert "ahead of this computer's clock" in found[1]


def test_dead_letters_that_no_replay_has_taken_are_a_warning() -> None:
    waiting = LetterGroup("Orders", 1, "too long", 5, 2)
    assert job(Condition.RUNNING, letters=(waiting,)).warnings == [
        "3 changes could not be processed: see the dead letters"
    ]
    assert job(Condition.RUNNING, letters=(LetterGroup("Orders", 1, "too long", 5, 5),)).warnings == []
    assert job(Condition.RUNNING, letters=(waiting,), oldest_letter=NOW - 3600 * 30).warnings == [
        "3 changes could not be processed, the oldest 30.0 h ago: see the dead letters"
    ]


@pytest.mark.parametrize(
    ("name", "value", "unit", "shown"),
    [
        ("penstock_slot_retained_bytes", 12_345_678.0, "By", "12,345,678 bytes"),
        ("penstock_retention_seconds", 604800.0, "s", "168.0 h"),
        ("penstock_oldest_dead_letter_timestamp_seconds", 0.0, "s", "1970-01-01 00:00:00Z"),
        ("penstock_dead_letter_files", 1234.0, "1", "1,234"),
    ],
)
def test_an_answer_of_a_service_has_its_unit(name: str, value: float, unit: str, shown: str) -> None:
    assert Answer(NOW, name, "", "", value, unit).shown == shown


def test_the_lag_of_a_table_is_the_gauge_of_the_commits_that_are_known() -> None:
    samples = [
        status(NOW - 700, newest_changes={"idle": NOW - 720, "people": NOW - 720, "orders": NOW - 720}),
        status(NOW - 650, newest_changes={"idle": NOW - 651, "people": NOW - 720, "orders": NOW - 720}),
        status(NOW - 10, newest_changes={"idle": NOW - 651, "people": NOW - 70, "orders": NOW - 12}),
    ]
    assert job(Condition.RUNNING, *samples).tables == [
        Table("people", NOW - 70, 60.0),
        Table("orders", NOW - 12, 2.0),
        Table("idle", NOW - 651, None),
    ]
    assert job(Condition.RUNNING).tables == []


def test_jobs_that_need_a_person_come_first_and_the_slowest_of_them() -> None:
    jobs = [
        job(Condition.DONE, key="done"),
        job(Condition.RUNNING, status(), key="well"),
        job(Condition.RUNNING, status(lag=100), key="behind"),
        job(Condition.RUNNING, status(lag=900), key="far behind"),
        job(Condition.FAILED, key="failed", text="failed: no primary key"),
    ]
    ordered = by_urgency(jobs)
    assert [each.key for each in ordered] == ["failed", "far behind", "behind", "well", "done"]
    assert counted(ordered) == [
        ("bad", "failed", 1),
        ("warn", "behind", 2),
        ("ok", "running", 1),
        ("ended", "done", 1),
    ]


def lines(view: JobView) -> list[str]:
    return [each.line for each in view.commands]


def test_the_commands_fit_the_state_of_the_job() -> None:
    file = "/jobs/my job.yaml"
    letters = (LetterGroup("Orders", 1, "too long", 5, 0),)
    assert lines(job(Condition.RUNNING, job_file=file, has_signals=True, letters=letters)) == [
        "penstock stop '/jobs/my job.yaml'",
        "penstock drain '/jobs/my job.yaml'",
        "penstock snapshot '/jobs/my job.yaml' --table 'SCHEMA.TABLE'",
        "penstock dead-letters replay '/jobs/my job.yaml'",
        "penstock status '/jobs/my job.yaml'",
    ]
    assert lines(job(Condition.FAILED, job_file="job.yaml")) == [
        "penstock run job.yaml",
        "penstock status job.yaml",
    ]
    assert lines(job(Condition.DONE)) == ["penstock status /cp/orders"]
    assert lines(job(Condition.UNREADABLE)) == []


def test_a_job_without_a_job_file_is_continued_by_a_command_that_the_page_does_not_know() -> None:
    continues = next(each for each in job(Condition.STOPPED).commands if "Continue" in each.text)
    assert continues.line == ""


@pytest.mark.parametrize(("us", "seconds"), [(None, None), (1_500_000, 1.5)])
def test_a_sink_is_complete_until_a_time_if_that_is_known(us: int | None, seconds: float | None) -> None:
    class Step:
        step, complete_us, waiting, counters = "Write", us, 0, {"staged_files": 1}

    assert sink_of(Step()).complete == seconds
