"""A pipeline that runs elsewhere, as its checkpoint shows it."""

from __future__ import annotations

from pathlib import Path

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
