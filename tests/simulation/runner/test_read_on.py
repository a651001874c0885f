"""A pipeline that is started again with a later end, or without one, reads on after the end that it had."""

from __future__ import annotations

import json
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.transforms.window import FixedWindows

from penstock.errors import SetupError
from penstock.io.files import WriteToJsonLines
from penstock.preflight import preflight
from penstock.runner import PySparkRunner
from penstock.runner.protocol.errors import CheckpointError
from penstock.runner.protocol.record import CommitRecord
from penstock.runner.tasks.epoch import EpochLimits
from tests.conformance.toy_source import LISTS, Lists, ReadFromLists, Record
from tests.simulation.stream import run_stream

pytestmark = pytest.mark.long(seconds=5)

SECOND = 1_000_000_000
START = time.time_ns() // SECOND * SECOND - 100 * SECOND
ENDS = [START + 20 * SECOND, START + 30 * SECOND, None]
LAST = 40
SMALL = EpochLimits(0.05, 6, 64 << 20)


class KilledError(Exception):
    """Takes the place of a kill of the driver."""


@pytest.fixture
def name() -> Iterator[str]:
    """Two lists with a change at each second from 0 to LAST; "low" has few, so it is at an end long before "high"."""
    name = uuid.uuid4().hex
    changes = [Record(START + n * SECOND, f"k{n}") for n in range(LAST + 1)]
    LISTS[name] = Lists(low=changes[::10], high=[each for n, each in enumerate(changes) if n % 10])
    # The service takes 10 ms for an answer, so that an epoch ends before the lists do.
    never = threading.Event()

    def answer_slowly() -> None:
        never.wait(0.01)

    LISTS[name].on_read = answer_slowly
    yield name
    del LISTS[name]


def to_files(name: str, end: int | None, folder: Path) -> Callable[[beam.Pipeline], Any]:
    def build(p: beam.Pipeline) -> None:
        records = p | "Read" >> ReadFromLists(name=name, start=START, end=end)
        numbers = records | beam.Map(lambda record: {"n": (record.commit_timestamp - START) // SECOND})
        _ = numbers | WriteToJsonLines(str(folder / "out"), table="numbers", roll_seconds=0)

    return build


grouped: list[list[str]] = []


def note(key: str, values: Iterable[str]) -> None:
    grouped.append(sorted(values))


def counted(name: str, end: int | None) -> Callable[[beam.Pipeline], Any]:
    def build(p: beam.Pipeline) -> None:
        records = p | "Read" >> ReadFromLists(name=name, start=START, end=end)
        keyed = records | beam.Map(lambda record: ("all", record.key)) | beam.WindowInto(FixedWindows(10))
        _ = keyed | "Count" >> beam.GroupByKey() | beam.MapTuple(note)

    return build


def published(folder: Path) -> list[int]:
    files = sorted((folder / "out").rglob("*.jsonl"))
    return [json.loads(line)["n"] for file in files for line in file.read_text().splitlines()]


def kill_after(epochs: int) -> Callable[[CommitRecord, Path], None]:
    def on_commit(record: CommitRecord, folder: Path) -> None:
        nonlocal epochs
        epochs -= 1
        if epochs < 0:
            raise KilledError

    return on_commit


def run(
    build: Callable[[beam.Pipeline], Any], folder: Path, epochs: int, **options: Any
) -> CommitRecord | None:
    """Run until `epochs` epochs are committed; return the last record if the pipeline ends before."""
    try:
        return run_stream(build, folder=folder, on_commit=kill_after(epochs), limits=SMALL, **options)
    except KilledError:
        return None


def read_endlessly(name: str, folder: Path) -> None:
    deadline = time.monotonic() + 60
    run_stream(
        to_files(name, None, folder),
        folder=folder,
        stop=lambda record: len(published(folder)) > LAST or time.monotonic() > deadline,
    )


@pytest.mark.parametrize(
    "epochs", [2, 1000, *(pytest.param(each, marks=pytest.mark.campaign) for each in (0, 1, 3, 4, 5, 7))]
)
def test_every_change_is_published_once_wherever_the_pipeline_was_killed(
    name: str, tmp_path: Path, epochs: int
) -> None:
    for end in ENDS[:2]:
        run(to_files(name, end, tmp_path), tmp_path, epochs)
        before = published(tmp_path)
        assert all(START + n * SECOND <= end for n in before)
    if epochs == 1000:
        assert sorted(published(tmp_path)) == list(range(31))
    read_endlessly(name, tmp_path)
    assert sorted(published(tmp_path)) == list(range(LAST + 1))


def test_changes_after_the_old_end_come_after_those_before_it(name: str, tmp_path: Path) -> None:
    run(to_files(name, ENDS[0], tmp_path), tmp_path, 3)
    assert len(published(tmp_path)) < 21
    seen: list[set[int]] = []
    deadline = time.monotonic() + 60

    def stop(record: CommitRecord) -> bool:
        seen.append(set(published(tmp_path)))
        return len(seen[-1]) > LAST or time.monotonic() > deadline

    run_stream(to_files(name, None, tmp_path), folder=tmp_path, stop=stop, limits=SMALL)
    assert all(set(range(21)) <= numbers for numbers in seen if max(numbers, default=0) > 20)
    assert seen[-1] == set(range(LAST + 1))


def test_the_same_end_leaves_a_pipeline_that_has_ended_as_it_is(name: str, tmp_path: Path) -> None:
    first = run(to_files(name, ENDS[0], tmp_path), tmp_path, 1000)
    again = run(to_files(name, ENDS[0], tmp_path), tmp_path, 1000)
    assert first is not None
    assert again is not None
    assert again.state == first.state
    assert len(again.state.ended) == 1


@pytest.mark.parametrize("epochs", [2, 1000])
def test_an_earlier_end_is_refused(name: str, tmp_path: Path, epochs: int) -> None:
    run(to_files(name, ENDS[1], tmp_path), tmp_path, epochs)
    with pytest.raises(SetupError, match="was made for a later end.*drain it: run penstock drain"):
        run(to_files(name, ENDS[0], tmp_path), tmp_path, 1)


def test_a_checkpoint_that_does_not_fit_is_told_before_the_start_and_stays_as_it_is(
    name: str, tmp_path: Path
) -> None:
    run(counted(name, ENDS[1]), tmp_path, 2)
    before = {path: path.read_bytes() for path in (tmp_path / "checkpoint").rglob("*") if path.is_file()}

    def checked(build: Callable[[beam.Pipeline], Any]) -> None:
        options = PipelineOptions([f"--checkpoint_dir={tmp_path}/checkpoint"])
        made = beam.Pipeline(runner=PySparkRunner(), options=options)
        build(made)
        preflight(made)

    checked(counted(name, ENDS[1]))
    with pytest.raises(SetupError, match="was made for a later end"):
        checked(counted(name, ENDS[0]))
    with pytest.raises(CheckpointError, match="Count"):
        checked(to_files(name, ENDS[1], tmp_path))
    assert before == {path: path.read_bytes() for path in before}


def test_steps_whose_windows_are_closed_refuse_a_later_end_by_name(name: str, tmp_path: Path) -> None:
    run(counted(name, ENDS[0]), tmp_path, 1000)
    with pytest.raises(CheckpointError, match="all windows are closed, .*: Count. Pass the end that it had"):
        run(counted(name, None), tmp_path, 1)


def test_a_window_across_the_old_end_is_whole_if_that_end_was_not_reached(name: str, tmp_path: Path) -> None:
    grouped.clear()
    run(counted(name, ENDS[1]), tmp_path / "undisturbed", 1000)
    whole = sorted(grouped)
    grouped.clear()
    assert run(counted(name, ENDS[0]), tmp_path, 2) is None
    ended = run(counted(name, ENDS[1]), tmp_path, 1000)
    assert ended is not None
    assert ended.state.done
    assert sorted(grouped) == whole


def test_a_drained_pipeline_refuses_a_later_end(name: str, tmp_path: Path) -> None:
    drained = run(to_files(name, ENDS[0], tmp_path), tmp_path, 1000, draining=lambda: True)
    assert drained is not None
    with pytest.raises(CheckpointError, match="was drained"):
        run(to_files(name, None, tmp_path), tmp_path, 1)
