"""Parked tables in the mode *log*, whose data files the tasks have written before the table refuses them.

The real driver, tasks and checkpoint in this process; the targets are Delta and Iceberg.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from penstock.event import ChangeEvent
from penstock.io.staging.local import LocalStore
from penstock.runner.protocol import EpochFailedError
from tests.simulation.sinks.test_data_files import Delta as DeltaFiles
from tests.simulation.sinks.test_data_files import Iceberg as IcebergFiles
from tests.simulation.sinks.test_data_files import guard
from tests.simulation.sinks.test_parked_tables_on_the_runner import (
    TABLES,
    Delta,
    Iceberg,
    Job,
    epochs,
    parked_changes,
)
from tests.simulation.staging.epochs import Crash, CrashPoint


@pytest.fixture(params=[Delta, Iceberg])
def target(request: Any, tmp_path: Path) -> Any:
    return request.param(tmp_path)


class LogJob(Job):
    """A pipeline to change logs, and what their tables have."""

    def __init__(self, target: Any, events: Sequence[Sequence[ChangeEvent]], folder: Path) -> None:
        super().__init__(target, events, folder, "log")

    def run(self, *arguments: Any, **options: Any) -> Any:
        return super().run(*arguments, **{"layout": "table", **options})

    def log(self, table: str) -> list[tuple[int, str]]:
        """Return time and value of each change in a log, by time."""
        return sorted(
            (row["_commit_timestamp"].timestamp(), str(row["v"] if row["v"] is not None else row["v_number"]))
            for row in self._target.rows(table)
        )

    def left_behind(self) -> set[str]:
        """Return the data files that no commit names, and the parked files."""
        named = {name for table in TABLES for name in self._target.named(table)}
        written = {path.name for path in self._folder.rglob("penstock-*.parquet")}
        return written - named | {path.name for path in self._folder.rglob("*.parked")}


def changes(events: Sequence[Sequence[ChangeEvent]], table: str) -> list[tuple[int, str]]:
    """Return what the log of a table has after the events."""
    return [
        (each.timestamp // 10**9, str(each.after["v"]))
        for epoch in events
        for each in epoch
        if each.source.table == table and each.after
    ]


@pytest.mark.long_cases("Iceberg", seconds=5)
def test_a_refused_log_is_parked_and_has_each_change_once_after_its_resume(
    target: Any, tmp_path: Path
) -> None:
    events = epochs(range(4, 16), 16)
    job = LogJob(target, events, tmp_path)
    job.run_until_parked(6)
    (parked,) = job.remote.parked()
    assert (parked.source, parked.changes) == ("public.bad", 6)
    assert parked.size > sum(path.stat().st_size for path in tmp_path.rglob("*.parked")), (
        "without the data files"
    )
    written = [job.log(table) for table in TABLES]
    assert written == [changes(events[:9], "a"), changes(events[:9], "b"), changes(events[:3], "bad")]
    target.make_text("bad")
    # A start without a request changes nothing, although the table would take the changes now.
    job.run_until_parked(9)
    assert job.log("bad") == changes(events[:3], "bad")
    job.ask("resume")
    assert job.run().state.done
    assert [job.log(table) for table in TABLES] == [changes(events, table) for table in TABLES]
    assert job.left_behind() == set()


@pytest.mark.long_cases("Iceberg", seconds=5)
@pytest.mark.parametrize("action", ["skip", "refill"])
def test_data_files_of_a_skipped_log_are_deleted_and_no_others(
    target: Any, action: str, tmp_path: Path
) -> None:
    events = epochs(range(3, 7), 12)
    job = LogJob(target, events, tmp_path)
    job.run_until_parked(5)  # the last one is a number again
    job.ask(action)
    assert job.run().state.done
    assert [job.log(table) for table in TABLES] == [
        changes(events, "a"),
        changes(events, "b"),
        changes([*events[:2], *events[7:]], "bad"),
    ]
    assert job.left_behind() == set()


@pytest.mark.long_cases("Iceberg", seconds=5)
def test_a_log_that_was_parked_in_another_mode_is_refused_and_loses_nothing(
    target: Any, tmp_path: Path
) -> None:
    events = epochs(range(3, 9), 9)
    job = LogJob(target, events, tmp_path)
    job.run_until_parked(3)
    job.ask("resume")
    current = Job(target, events, tmp_path, "current")
    with pytest.raises(EpochFailedError, match=r"public\.bad was parked while the sink had another mode"):
        current.run()
    target.make_text("bad")
    assert job.run().state.done
    assert job.log("bad") == changes(events, "bad")


@pytest.mark.long_cases("Iceberg", seconds=10)
def test_a_kill_at_any_step_of_parking_and_resuming_loses_and_doubles_no_change(
    target: Any, tmp_path: Path, campaign: Any
) -> None:
    files = DeltaFiles if isinstance(target, Delta) else IcebergFiles
    crash, events = CrashPoint(), epochs(range(3, 7), 7)
    rng, killed = campaign.random("steps"), 0
    for number in range(campaign.size(6, 150)):
        folder = tmp_path / f"{number}"
        job = LogJob(type(target)(folder), events, folder)

        def run(job: LogJob = job) -> None:
            job.run_until_parked(2)
            if parked_changes(job.remote.last()) == 2:
                job._target.make_text("bad")
                job.ask("resume")
            job.run()

        crash.start(rng.randrange(200), rng.random() < 0.5)
        with pytest.MonkeyPatch.context() as patch:

            def guarded(function: Any) -> Any:
                return lambda *given, **named: crash.request(lambda: function(*given, **named))

            guard(patch, guarded, LocalStore, "create", "delete", "sync")
            files.requests(patch, guarded)
            try:
                run()
            except (Crash, EpochFailedError):
                killed += 1
        crash.restart()
        if job.remote.last().state.done:
            continue
        finish(job)
        assert [job.log(table) for table in TABLES] == [changes(events, table) for table in TABLES], number
        assert job.left_behind() == set(), number
    assert killed


def finish(job: LogJob) -> None:
    """Correct the table and resume it until the pipeline is done."""
    for _ in range(5):
        try:
            job.run()
            return
        except EpochFailedError:
            job._target.make_text("bad")
            job.ask("resume")
    raise AssertionError("the pipeline does not end")
