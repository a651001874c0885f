"""A pipeline that runs elsewhere, as its checkpoint shows it."""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path

import pytest

from penstock.compat import UTC
from penstock.errors import UsageError
from penstock.runner.protocol import Coordinator, EpochState, Publication, StateRun
from penstock.runner.protocol.record import WatermarkKey
from penstock.runner.remote import RemoteJob
from penstock.runner.result import PySparkPipelineResult
from penstock.runner.store import Checkpoint


def test_records_are_shown_with_their_sizes_and_the_lowest_output_watermark(tmp_path: Path) -> None:
    checkpoint = Checkpoint.open(str(tmp_path), clock=lambda: 0, nonces=lambda: "aa")
    coordinator = Coordinator(checkpoint)
    coordinator.take_over()
    marks = {WatermarkKey.output("Read"): 30, WatermarkKey.output("Group"): 20, WatermarkKey.input("x"): 1}
    runs = [StateRun("s", "one", first, last, 1, 100, 0) for first, last in ((0, 3), (4, 7))]
    coordinator.commit(coordinator.begin(), EpochState(state_runs=tuple(runs), watermarks=marks))
    job = RemoteJob.open(str(tmp_path))
    first, last = job.records()
    assert (first.kind, first.epochs, first.watermark_us) == ("initial", 0, None)
    assert (last.kind, last.epochs, last.watermark_us, last.state_bytes) == ("epoch", 1, 20, 100)
    assert last.record_bytes > 100
    assert job.name == "19700101T000000-aa"
    record = job.last()
    assert record is not None
    assert (job.progress(record).watermark_us, job.metrics(record).query()["counters"]) == (20, [])


def test_a_request_stops_the_pipeline_and_a_drain_drains_it() -> None:
    result = PySparkPipelineResult()
    result.obey(())
    assert (result.requested, result.stopping, result.draining) == ("", False, False)
    result.obey({"drain"})
    assert (result.requested, result.stopping, result.draining) == ("drain", False, True)
    result.obey({"stop", "drain"})
    assert (result.requested, result.stopping) == ("stop", True)


def test_a_replaced_record_with_a_large_state_is_shown_without_its_counts(tmp_path: Path) -> None:
    coordinator = Coordinator(Checkpoint.open(str(tmp_path)))
    coordinator.take_over()
    large = EpochState(publications=(Publication("Publish", b"x" * 600_000),))
    coordinator.commit(coordinator.begin(), large)
    job = RemoteJob.open(str(tmp_path))
    assert [(view.publications, view.record_bytes > 600_000) for view in job.records()] == [
        (0, False),
        (1, True),
    ]
    coordinator.commit(coordinator.begin(), EpochState())
    assert [view.publications for view in job.records()] == [0, None, 0]


NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)
SENDS = {
    "To shop/Send": WatermarkKey.carried("To shop/Send"),
    "Dead letters": WatermarkKey.carried("Dead letters"),
}


class Watched:
    """A job whose driver commits one more record of `seconds` after noon each time that the waiting one pauses."""

    def __init__(self, folder: Path, *seconds: float) -> None:
        self._coordinator = Coordinator(Checkpoint.open(str(folder)))
        self._coordinator.take_over()
        self._left, self.clock = list(seconds), 0.0
        self.job = RemoteJob.open(str(folder))

    def commit(self, seconds: float) -> None:
        at = (NOON + timedelta(seconds=seconds) - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(
            microseconds=1
        )
        marks = {SENDS["To shop/Send"]: at, SENDS["Dead letters"]: at - 1_000_000}
        self._coordinator.commit(self._coordinator.begin(), EpochState(watermarks=marks))

    def wait(self, until: datetime, *sinks: str, seconds: float | None = 10.0) -> bool:
        return self.job.wait_until_complete(
            until, sinks=sinks, seconds=seconds, clock=lambda: self.clock, pause=self._pause
        )

    def _pause(self, seconds: float) -> None:
        self.clock += seconds
        if self._left:
            self.commit(self._left.pop(0))


def test_waiting_ends_when_every_sink_is_complete(tmp_path: Path) -> None:
    watched = Watched(tmp_path, -1, 0, 1)
    assert watched.job.complete_until() == {}
    assert watched.wait(NOON)
    assert watched.clock == 3
    assert watched.job.complete_until() == {
        "Dead letters": NOON,
        "To shop/Send": NOON + timedelta(seconds=1),
    }


def test_waiting_for_one_sink_does_not_ask_the_others(tmp_path: Path) -> None:
    watched = Watched(tmp_path, -1, 0, 1)
    assert watched.wait(NOON, "To shop")
    assert watched.clock == 2


def test_waiting_is_given_up_in_time(tmp_path: Path) -> None:
    watched = Watched(tmp_path, -1)
    assert not watched.wait(NOON, seconds=5)
    assert watched.clock == 5


def test_waiting_needs_a_time_zone_and_the_name_of_a_sink(tmp_path: Path) -> None:
    watched = Watched(tmp_path)
    with pytest.raises(UsageError, match="time zone"):
        watched.wait(datetime(2026, 1, 31))
    watched.commit(0)
    with pytest.raises(UsageError, match=r"no sink has the name 'to'; there are Dead letters, To shop/Send"):
        watched.wait(NOON, "to")
