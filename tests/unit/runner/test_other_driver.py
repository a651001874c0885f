"""A start looks for the driver that took over last: it leaves one that runs alone, and does not wait for a dead one."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import apache_beam as beam
import pytest
from apache_beam.options.pipeline_options import PipelineOptions

from penstock.runner import PySparkRunner
from penstock.runner.driver.other_driver import (
    SILENT_SECONDS_ON_DISK,
    SILENT_SECONDS_ON_OBJECT_STORES,
    refuse_while_another_runs,
    warn_of_another_pipeline,
)
from penstock.runner.protocol import CheckpointError, Coordinator, EpochState, Residual
from penstock.runner.protocol.errors import DriverRunsError
from penstock.runner.store import Checkpoint
from penstock.runner.store.drivers import Answers, DriverNotes, Ended, Pipeline, Process, Started
from penstock.runner.store.object_filesystem import ObjectFileSystem
from penstock.runner.store.requests import Requests, RequestWatch
from tests.support.object_stores.simulated import SimulatedClock, SimulatedRequests, store_of

ELSEWHERE = Process(17, "host-a", "another machine", "1")
SHOP = Pipeline("postgres-to-delta", ("slot nc_delta",))


class Driver:
    """A driver that has taken over a checkpoint and has committed an epoch."""

    def __init__(
        self, checkpoint: Checkpoint, process: Process = ELSEWHERE, steps: tuple[str, ...] = ()
    ) -> None:
        self.checkpoint = checkpoint
        coordinator = Coordinator(checkpoint)
        self.generation = coordinator.take_over().generation
        DriverNotes(checkpoint).note_start(self.generation, Started(process, SHOP))
        residuals = tuple(Residual(step, "id", b"", 0, 0) for step in steps)
        coordinator.commit(coordinator.begin(), EpochState(residuals=residuals))
        self.seconds = 0.0
        self.watch = RequestWatch(checkpoint, self.generation, clock=lambda: self.seconds)

    def start_beside(self, during_a_pause: Callable[[], object] = lambda: None) -> float:
        """Start another driver; `during_a_pause` is what this one does meanwhile. Return the seconds it waited."""
        self.seconds = 0.0

        def pause(seconds: float) -> None:
            self.seconds += seconds
            during_a_pause()

        last = self.checkpoint.last_record()
        refuse_while_another_runs(self.checkpoint, last, clock=lambda: self.seconds, pause=pause)
        return self.seconds


@pytest.fixture
def driver(tmp_path: Path) -> Driver:
    return Driver(Checkpoint.open(f"{tmp_path}/checkpoint"))


def test_a_driver_that_answers_is_left_alone(driver: Driver) -> None:
    with pytest.raises(
        DriverRunsError, match=r"process 17 on host-a runs postgres-to-delta \(slot nc_delta\)"
    ) as error:
        driver.start_beside(driver.watch.look)
    assert driver.seconds <= 1.2
    assert "last commit was 0." in str(error.value)
    assert "--take-over" in str(error.value)


def test_a_driver_that_does_not_answer_is_waited_for_for_the_stated_time(driver: Driver) -> None:
    assert driver.start_beside() == pytest.approx(SILENT_SECONDS_ON_DISK, abs=0.2)
    # The ping is withdrawn: a driver that wakes up later finds nothing to answer.
    assert driver.checkpoint.filesystem.list(f"{driver.checkpoint.folder}/requests") == []


def test_in_an_object_store_the_stated_time_is_longer_than_two_looks_of_the_driver() -> None:
    store = store_of(SimulatedRequests(), SimulatedClock())
    driver = Driver(Checkpoint.open(store.url, filesystem=ObjectFileSystem(store)))
    assert driver.start_beside() == pytest.approx(SILENT_SECONDS_ON_OBJECT_STORES, abs=1.1)
    with pytest.raises(DriverRunsError):
        driver.start_beside(driver.watch.look)
    assert driver.seconds <= 11


def test_a_process_of_this_machine_that_was_killed_is_not_waited_for(tmp_path: Path) -> None:
    program = "from penstock.runner.store.drivers import Process as P; print(P.current(), P.current().began)"
    child = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    _, pid, _, _, began = child.stdout.split()
    killed = replace(Process.current(), id=int(pid), began=began)
    assert Driver(Checkpoint.open(f"{tmp_path}/killed"), killed).start_beside() == 0
    # The process id was given to another program since then.
    reused = replace(Process.current(), began="1")
    assert Driver(Checkpoint.open(f"{tmp_path}/reused"), reused).start_beside() == 0
    with pytest.raises(DriverRunsError):
        alive = Driver(Checkpoint.open(f"{tmp_path}/alive"), Process.current())
        alive.start_beside(alive.watch.look)


@pytest.mark.parametrize("state", ["STOPPED", "FAILED", "CANCELLED"])
def test_a_driver_that_has_noted_its_end_is_not_waited_for(driver: Driver, state: str) -> None:
    DriverNotes(driver.checkpoint).note_end(driver.generation, Ended(state))
    assert driver.start_beside() == 0


def test_a_driver_that_ends_while_it_is_asked_does_not_run(driver: Driver) -> None:
    def end() -> None:
        DriverNotes(driver.checkpoint).note_end(driver.generation, Ended("STOPPED"))
        Requests(driver.checkpoint).delete(driver.generation)

    assert driver.start_beside(end) < 1


def test_a_driver_of_an_earlier_version_and_a_pipeline_that_is_done_are_not_waited_for(
    tmp_path: Path,
) -> None:
    driver = Driver(Checkpoint.open(f"{tmp_path}/checkpoint"))
    Path(driver.checkpoint.folder, "drivers", f"{driver.generation:012d}.started").unlink()
    assert driver.start_beside() == 0
    done = Driver(Checkpoint.open(f"{tmp_path}/done"))
    coordinator = Coordinator(done.checkpoint)
    coordinator.take_over()
    coordinator.commit(coordinator.begin(), EpochState(done=True))
    assert done.start_beside() == 0


def test_of_two_drivers_that_are_always_started_again_the_first_keeps_the_checkpoint(driver: Driver) -> None:
    """Two supervisors: while the first driver runs, each start of the second is refused, and nothing changes."""
    before = driver.checkpoint.record_numbers()
    for _ in range(5):
        with pytest.raises(DriverRunsError):
            driver.start_beside(driver.watch.look)
    assert driver.checkpoint.record_numbers() == before


def test_a_ping_is_answered_while_an_epoch_runs(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.runner.store.requests.SECONDS_ON_DISK", 0.01)
    watch = RequestWatch(driver.checkpoint, driver.generation)
    with watch.answering(), pytest.raises(DriverRunsError):  # this thread is the driver, which is busy
        refuse_while_another_runs(driver.checkpoint, driver.checkpoint.last_record())


def a_start(folder: str, name: str = "", *flags: str) -> None:
    """Start a pipeline with a checkpoint, with options as a program has them."""
    options = PipelineOptions([f"--checkpoint_dir={folder}", "--streaming", *flags], job_name=name)
    pipeline = beam.Pipeline(runner=PySparkRunner(spark=object()), options=options)
    _ = pipeline | beam.Create([1])
    pipeline.run()


def test_the_runner_refuses_a_start_beside_a_driver_that_runs_unless_it_is_told_to_take_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.runner.store.requests.SECONDS_ON_DISK", 0.01)
    driver = Driver(Checkpoint.open(f"{tmp_path}/checkpoint"), Process.current())
    with RequestWatch(driver.checkpoint, driver.generation).answering():
        with pytest.raises(DriverRunsError):
            a_start(driver.checkpoint.folder)
        # The next step of a start wants Spark's context of the object, which is none.
        with pytest.raises(AttributeError):
            a_start(driver.checkpoint.folder, "", "--take_over")


def test_a_checkpoint_of_another_pipeline_is_named_as_such(tmp_path: Path) -> None:
    driver = Driver(Checkpoint.open(f"{tmp_path}/checkpoint"), steps=("Write/Publish/Publish",))
    match = (
        r"is the checkpoint of postgres-to-delta \(slot nc_delta\), and this pipeline is postgres-to-parquet"
    )
    with pytest.raises(CheckpointError, match=match):
        a_start(driver.checkpoint.folder, "postgres-to-parquet")
    # The pipeline itself was edited: the message names its steps.
    with pytest.raises(CheckpointError, match="Write/Publish/Publish"):
        a_start(driver.checkpoint.folder, "postgres-to-delta")


@pytest.mark.parametrize(
    ("name", "warns"), [("postgres-to-parquet", True), ("postgres-to-delta", False), ("", False)]
)
def test_a_checkpoint_that_fits_and_is_of_another_pipeline_is_warned_of(
    driver: Driver, caplog: pytest.LogCaptureFixture, name: str, warns: bool
) -> None:
    warn_of_another_pipeline(driver.checkpoint, driver.checkpoint.last_record(), Pipeline(name, ()))
    expected = "is the checkpoint of postgres-to-delta (slot nc_delta): postgres-to-parquet continues from its position"
    assert (expected in caplog.text) == warns


def test_a_note_that_cannot_be_written_or_read_stops_nothing(
    driver: Driver, caplog: pytest.LogCaptureFixture
) -> None:
    folder = Path(driver.checkpoint.folder, "drivers")
    note = folder / f"{driver.generation:012d}.started"
    for content in ("", "[]", '{"process": 1, "pipeline": 2}'):
        note.write_text(content)
        assert DriverNotes(driver.checkpoint).started(driver.generation) is None
    note.unlink()
    folder.rmdir()
    folder.write_text("no folder")
    DriverNotes(driver.checkpoint).note_end(driver.generation, Ended("FAILED"))
    assert "could not leave a note" in caplog.text


def test_the_next_driver_deletes_the_notes_of_those_before_it(driver: Driver) -> None:
    notes = DriverNotes(driver.checkpoint)
    notes.note_end(driver.generation, Ended("FAILED", "the disk is full"))
    assert notes.ended(driver.generation) == Ended("FAILED", "the disk is full")
    after = Driver(driver.checkpoint)
    assert notes.ended(driver.generation) is None
    assert notes.started(after.generation) == Started(ELSEWHERE, SHOP)


def test_the_last_answers_take_the_place_of_those_before_and_end_with_the_next_driver(driver: Driver) -> None:
    notes = DriverNotes(driver.checkpoint)
    assert notes.answers(driver.generation) == Answers()
    for number in (1, 2, 3):
        notes.note_answers(driver.generation, Answers(number, ({"name": "penstock_slot_lost", "value": 0},)))
    assert notes.answers(driver.generation).at == 3
    folder = Path(driver.checkpoint.folder, "drivers")
    assert len(list(folder.glob("*.answers"))) == 1
    after = Driver(driver.checkpoint)
    assert list(folder.glob("*.answers")) == []
    # A driver that does not know yet that it is superseded.
    notes.note_answers(driver.generation, Answers(4))
    assert notes.answers(after.generation) == Answers()
