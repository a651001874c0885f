"""The state after a rewind, what is refused before it, and the note that keeps drivers away meanwhile."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from penstock.attempt import Attempt
from penstock.errors import UsageError
from penstock.parked import ParkedTable
from penstock.rewind import RewindPlan, TableRewind
from penstock.runner.driver.rewound_state import check_rewindable, rewound_state
from penstock.runner.protocol import Coordinator, EpochState, Publication, Residual
from penstock.runner.protocol.complete import complete_until_us
from penstock.runner.protocol.errors import CheckpointError, SupersededError
from penstock.runner.protocol.record import EarliestTimers, ParkedPublications, StateRun, WatermarkKey
from penstock.runner.rewind import Rewind
from penstock.runner.store.checkpoint import Checkpoint
from penstock.runner.store.drivers import DriverNotes
from penstock.runner.store.rewind_note import BegunRewind, RewindNote

READ, PUBLISH = "Read", "Write/Publish"
PARKED = ParkedPublications(PUBLISH, ParkedTable("t", "public.t", "denied", 1, 1, 1, False, b""))
STATE = EpochState(
    residuals=(Residual(READ, "id", b"", 900, 0),),
    publications=(Publication(PUBLISH, b"batch"),),
    state_runs=(StateRun("Roll", "name.run", 0, 127, 1, 1, 1),),
    timers=(EarliestTimers("Roll", 0, 127, processing_us=5),),
    watermarks={WatermarkKey.output(READ): 900, WatermarkKey.carried(PUBLISH): 900},
    observed_watermarks={WatermarkKey.carried(PUBLISH): 800},
    fired_impulses={"Impulse": (READ,)},
    schemas={"Roll": {"key": "bytes"}},
    metrics=(b"counter",),
)


def test_the_source_begins_at_the_time_and_everything_that_comes_again_is_dropped() -> None:
    residual = Residual(READ, "id", b"from 700", 700, 0)
    after = rewound_state(STATE, residual, 700)
    assert after.residuals == (residual,)
    assert (after.publications, after.state_runs, after.timers) == ((), (), ())
    assert set(after.watermarks.values()) == {700}
    assert not after.observed_watermarks
    kept = (after.fired_impulses, after.schemas, after.metrics)
    assert kept == (STATE.fired_impulses, STATE.schemas, STATE.metrics)
    # What the target has now is known: publications wait for nothing.
    assert complete_until_us(after) == {PUBLISH: 700}


@pytest.mark.parametrize(
    ("changes", "to_us", "reason"),
    [
        # Publications wait, so the target has only what the epoch before has brought.
        ({}, 801, "they are until 1970-01-01T00:00:00.000800000Z"),
        ({"watermarks": {}}, 700, "it is not known until when"),
        ({"draining": True}, 700, "has ended or was drained"),
        ({"parked": (PARKED,)}, 700, "tables are parked: t"),
    ],
)
def test_a_state_that_would_lose_changes_is_refused(changes: dict[str, Any], to_us: int, reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        check_rewindable(replace(STATE, **changes), to_us)
    check_rewindable(STATE, 800)


def test_no_driver_runs_while_a_rewind_has_not_ended_and_its_first_plan_stays(tmp_path: Path) -> None:
    note = RewindNote(Checkpoint.open(str(tmp_path)))
    note.refuse()
    begun = BegunRewind(
        1_000_000, "Write/", RewindPlan(900_000, (TableRewind("t", 3, 5), TableRewind("log")))
    )
    note.write(begun)
    note.write(replace(begun, asked_us=2))
    assert note.read() == begun
    with pytest.raises(CheckpointError, match="penstock rewind JOB --to 1970-01-01T00:00:01.000000000Z"):
        note.refuse()
    note.delete()
    note.refuse()


class _Target:
    """A target that counts how often it goes back."""

    def __init__(self) -> None:
        self.calls: list[Attempt] = []

    def plan_rewind(self, job: str, to_us: int) -> RewindPlan:
        return RewindPlan(to_us, ())

    def rewind(self, attempt: Attempt, plan: RewindPlan) -> None:
        self.calls.append(attempt)


def rewind_of(checkpoint: Checkpoint) -> Rewind:
    """Return a rewind of a checkpoint after its last record."""
    coordinator = Coordinator(checkpoint)
    coordinator.take_over()
    last = coordinator.commit(coordinator.begin(), replace(STATE, state_runs=(), publications=()))
    begun = BegunRewind(700, "Write/", RewindPlan(700, ()))
    after = rewound_state(last.state, Residual(READ, "id", b"from 700", 700, 0), 700)
    return Rewind(begun, "", False, after, last, checkpoint, _Target())


def test_the_target_goes_back_before_the_record_and_under_its_ledger(tmp_path: Path) -> None:
    checkpoint = Checkpoint.open(str(tmp_path))
    rewind = rewind_of(checkpoint)
    rewind.perform()
    (attempt,) = rewind.fn.calls  # type: ignore[attr-defined]
    last = checkpoint.last_record()
    assert last is not None
    assert last.state == rewind.state
    assert (attempt.generation, attempt.epoch) == (last.generation, last.number)
    RewindNote(checkpoint).refuse()


def test_a_driver_that_takes_over_while_the_note_is_written_keeps_its_target(tmp_path: Path) -> None:
    checkpoint = Checkpoint.open(str(tmp_path))
    rewind = rewind_of(checkpoint)

    def take_over(step: str) -> None:
        if step == "noted":
            Coordinator(checkpoint).take_over()

    with pytest.raises(SupersededError):
        rewind.perform(take_over)
    assert not rewind.fn.calls  # type: ignore[attr-defined]


def test_of_two_rewinds_at_the_same_moment_only_the_one_with_the_note_changes_the_target(
    tmp_path: Path,
) -> None:
    checkpoint = Checkpoint.open(str(tmp_path))
    rewind = rewind_of(checkpoint)
    RewindNote(checkpoint).write(replace(rewind.begun, plan=RewindPlan(650, ())))
    with pytest.raises(UsageError, match="another rewind has begun"):
        rewind.perform()
    assert not rewind.fn.calls  # type: ignore[attr-defined]


def test_a_job_that_has_run_since_the_plan_was_made_is_not_put_back(tmp_path: Path) -> None:
    checkpoint = Checkpoint.open(str(tmp_path))
    rewind = rewind_of(checkpoint)
    Coordinator(checkpoint).take_over()
    with pytest.raises(UsageError, match="the job has run since"):
        rewind.perform()
    assert not rewind.fn.calls  # type: ignore[attr-defined]
    RewindNote(checkpoint).refuse()


def test_the_note_is_the_last_thing_that_is_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint = Checkpoint.open(str(tmp_path))
    rewind = rewind_of(checkpoint)

    def killed(self: DriverNotes, generation: int, ended: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(DriverNotes, "note_end", killed)
    with pytest.raises(KeyboardInterrupt):
        rewind.perform()
    assert RewindNote(checkpoint).read() == rewind.begun
