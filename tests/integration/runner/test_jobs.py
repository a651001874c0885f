"""Job and stage descriptions in Spark's UI, removed shuffle files, and preloaded modules in workers."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.transforms import window
from py4j.java_gateway import JVMView

from penstock.publish import PublishAfterCommit
from penstock.runner import PySparkRunner
from penstock.runner.spark.collect_garbage import GarbageCollector
from penstock.runner.spark.exchange import exchange
from penstock.runner.spark.jvm import SparkJvm
from penstock.runner.spark.session import context_of
from tests.integration.runner.sources import AppendFn, CountFn
from tests.support.waiting import wait_until

pytestmark = pytest.mark.spark


Start = Callable[[], Any]


@pytest.fixture
def start(spark: Any, tmp_path: Path) -> Iterator[Start]:
    """Starts a stream of two exchanges and lets it run for twelve epochs."""
    (tmp_path / "published").mkdir()
    flags = [f"--checkpoint_dir={tmp_path / 'checkpoint'}", "--epoch_seconds=0.05", "--spark_parallelism=2"]
    started = []

    def begin() -> Any:
        pipeline = beam.Pipeline(runner=PySparkRunner(spark), options=PipelineOptions(flags))
        _ = (
            pipeline
            | beam.Create(["a"], reshuffle=False)
            | "Read numbers" >> beam.ParDo(CountFn(200))
            | beam.WindowInto(window.FixedWindows(0.5))
            | "Count them" >> beam.combiners.Count.PerKey()
            | "Spread out" >> beam.Reshuffle()
            | "Publish counts" >> PublishAfterCommit(AppendFn(str(tmp_path / "published")))
        )
        result = pipeline.run()
        started.append(result)
        wait_until(lambda: result.progress().epochs > 12)
        return result

    yield begin
    for result in started:
        result.cancel()


def test_workers_import_beam_at_the_start_and_the_garbage_collector_skips_it(spark: Any) -> None:
    def look(_: Any) -> Iterator[tuple[bool, int, int]]:
        yield "apache_beam" in sys.modules, gc.get_freeze_count(), len(gc.get_objects())

    spark_context = context_of(spark)
    for imported, frozen, watched in spark_context.parallelize(range(2), 2).mapPartitions(look).collect():
        assert imported
        assert frozen > 10 * watched


def test_workers_collect_garbage_within_a_share_of_their_time(spark: Any) -> None:
    def look(_: Any) -> Iterator[str]:
        yield type(sys.modules["pyspark.daemon"].gc).__name__

    names = context_of(spark).parallelize(range(2), 2).mapPartitions(look).collect()
    assert names == [GarbageCollector.__name__] * 2


def _jobs(spark: Any) -> list[Any]:
    """The jobs that Spark knows of."""
    jobs = spark.sparkContext._jsc.sc().statusStore().jobsList(None)
    return [jobs.apply(number) for number in range(jobs.size())]


def _stages(spark: Any, after: int) -> Iterator[tuple[str, list[str]]]:
    """The words for each job of a higher number, and for its stages, in their order."""
    tracker = spark.sparkContext.statusTracker()
    for job in _jobs(spark):
        if job.jobId() <= after:
            continue
        stages = [tracker.getStageInfo(stage) for stage in sorted(tracker.getJobInfo(job.jobId()).stageIds)]
        words = job.description().get() if job.description().isDefined() else ""
        yield words, [stage.name for stage in stages if stage is not None]


def _shuffle_files(spark: Any) -> set[str]:
    folder = Path(spark.sparkContext.getConf().get("spark.local.dir"))
    return {path.name for path in folder.glob("blockmgr-*/*/shuffle_*")}


@pytest.mark.slow
def test_jobs_are_described_with_their_epoch_and_stages_with_their_steps(spark: Any, start: Start) -> None:
    before = max((job.jobId() for job in _jobs(spark)), default=-1)
    stream = start()
    epoch = stream.progress().epoch - 3
    stages = dict(_stages(spark, before))[f"penstock: epoch {epoch}"]
    assert len(stages) == 3
    for level, (words, step) in enumerate(
        zip(stages, ("Read numbers", "Count them", "Spread out"), strict=True)
    ):
        assert words.startswith(f"penstock: epoch {epoch}, level {level + 1} of 3: ")
        assert step in words
    stream.cancel()
    spark.sparkContext.parallelize([1]).count()
    assert any(names and names[0].startswith("count at ") for _, names in _stages(spark, before)), (
        "only ours are renamed"
    )


@pytest.mark.slow
def test_shuffle_files_of_an_epoch_are_removed_after_it_ends(spark: Any, start: Start) -> None:
    before = _shuffle_files(spark)
    stream = start()
    # Two dozen exchanges, and files of the last few: they are deleted in the background.
    wait_until(lambda: len({name.split("_")[1] for name in _shuffle_files(spark) - before}) <= 8)
    stream.stop()
    stream.wait_until_finish(120_000)
    wait_until(lambda: not _shuffle_files(spark) - before)


def _exchanged(spark: Any, frames: list[tuple[int, bytes]]) -> Any:
    context = context_of(spark)
    return exchange(context.parallelize(frames, 2), 2, SparkJvm(context).serializer_of_blocks)


def test_blocks_are_exchanged_without_kryo(spark: Any) -> None:
    frames = [(number % 2, bytes([number % 256]) * (number * 500)) for number in range(300)]
    rdd = _exchanged(spark, frames)
    shuffled = rdd._jrdd.rdd().dependencies().head().rdd()
    serializer = shuffled.dependencies().head().serializer()
    assert serializer.getClass().getSimpleName() == "JavaSerializer"
    assert sorted(rdd.collect()) == sorted(frames)


def test_an_exchange_asks_the_jvm_for_no_class_by_its_name(
    spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    names: list[str] = []
    ask = JVMView.__getattr__

    def asking(view: Any, name: str) -> Any:
        names.append(name)
        return ask(view, name)

    _exchanged(spark, [(0, b"a")])
    rdd = context_of(spark).parallelize([(1, b"b")], 2)
    monkeypatch.setattr(JVMView, "__getattr__", asking)
    assert exchange(rdd, 2).collect() == [(1, b"b")]
    assert names == []


def test_a_context_without_a_jvm_needs_no_calls() -> None:
    jvm = SparkJvm(object())
    assert jvm.serializer_of_blocks is None
    with jvm.naming() as name:
        name("words")
    jvm.delete_shuffles([object()])
