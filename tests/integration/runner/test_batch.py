"""Batch pipelines on Spark give Beam's answers."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import apache_beam as beam
import pytest
from apache_beam.io.restriction_trackers import OffsetRange, OffsetRestrictionTracker
from apache_beam.metrics import Metrics, MetricsFilter
from apache_beam.metrics.monitoring_infos import ELEMENT_COUNT_URN, extract_counter_value
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.testing.util import assert_that, equal_to
from apache_beam.transforms import trigger, userstate, window
from apache_beam.transforms.core import RestrictionProvider
from apache_beam.utils.timestamp import Duration, Timestamp

from penstock.runner import PySparkRunner, UnsupportedPipelineError
from tests.integration.runner.sources import CountFn

pytestmark = pytest.mark.spark


@pytest.fixture
def pipeline(spark: Any) -> beam.Pipeline:
    return beam.Pipeline(runner=PySparkRunner(spark), options=PipelineOptions(["--spark_parallelism=3"]))


def test_values_are_grouped_by_key_across_a_flatten_and_a_reshuffle(pipeline: beam.Pipeline) -> None:
    with pipeline as p:
        left = p | "left" >> beam.Create([("a", 1), ("b", 2), ("a", 3)])
        right = p | "right" >> beam.Create([("a", 10)])
        grouped = (left, right) | beam.Flatten() | beam.Reshuffle() | beam.GroupByKey()
        assert_that(
            grouped | beam.MapTuple(lambda k, v: (k, sorted(v))), equal_to([("a", [1, 3, 10]), ("b", [2])])
        )


@pytest.mark.slow
def test_each_tagged_output_receives_its_own_elements(pipeline: beam.Pipeline) -> None:
    def by_parity(n: int) -> Iterator[Any]:
        yield beam.pvalue.TaggedOutput("odd", n) if n % 2 else n

    with pipeline as p:
        out = p | beam.Create(range(6)) | beam.FlatMap(by_parity).with_outputs("odd", main="even")
        assert_that(out.even, equal_to([0, 2, 4]), label="even")
        assert_that(out.odd | beam.CombineGlobally(sum).without_defaults(), equal_to([9]), label="odd")


@pytest.mark.slow
def test_fixed_windows_are_combined_separately_and_results_have_the_window_end_as_timestamp(
    pipeline: beam.Pipeline,
) -> None:
    def stamped(
        kv: Any, at: Any = beam.DoFn.TimestampParam, w: Any = beam.DoFn.WindowParam
    ) -> tuple[Any, ...]:
        return (*kv, float(w.start), at == w.max_timestamp())

    with pipeline as p:
        sums = (
            p
            | beam.Create(range(25))
            | beam.Map(lambda n: window.TimestampedValue(("k", 1), n))
            | beam.WindowInto(window.FixedWindows(10))
            | beam.CombinePerKey(sum)
            | beam.Map(stamped)
        )
        assert_that(sums, equal_to([("k", 10, 0.0, True), ("k", 10, 10.0, True), ("k", 5, 20.0, True)]))


@pytest.mark.slow
def test_a_reshuffle_keeps_timestamps_windows_and_elements(pipeline: beam.Pipeline) -> None:
    def shown(n: int, at: Any = beam.DoFn.TimestampParam, w: Any = beam.DoFn.WindowParam) -> tuple[Any, ...]:
        return n, float(at), float(w.start)

    with pipeline as p:
        kept = (
            p
            | beam.Create([1, 12, 12])
            | beam.Map(lambda n: window.TimestampedValue(n, n))
            | beam.WindowInto(window.FixedWindows(10))
            | beam.Reshuffle()
            | beam.Map(shown)
        )
        assert_that(kept, equal_to([(1, 1.0, 0.0), (12, 12.0, 10.0), (12, 12.0, 10.0)]))


class _Halves(RestrictionProvider):
    def initial_restriction(self, element: int) -> OffsetRange:
        return OffsetRange(0, element)

    def create_tracker(self, restriction: OffsetRange) -> OffsetRestrictionTracker:
        return OffsetRestrictionTracker(restriction)

    def restriction_size(self, element: int, restriction: OffsetRange) -> int:
        return restriction.size()

    def split(self, element: int, restriction: OffsetRange) -> list[OffsetRange]:
        return list(restriction.split(max(1, element // 2)))


class _CountUpFn(beam.DoFn):
    def process(
        self, element: int, names: Any, tracker: Any = beam.DoFn.RestrictionParam(_Halves())
    ) -> Iterator[Any]:
        for n in range(tracker.current_restriction().start, element):
            if not tracker.try_claim(n):
                return
            yield names[element], n
            if n % 3 == 2:
                tracker.defer_remainder(Duration(micros=1000))
                return


@pytest.mark.slow
def test_a_bounded_splittable_dofn_with_a_side_input_is_read_to_its_end_when_it_defers(
    pipeline: beam.Pipeline,
) -> None:
    with pipeline as p:
        names = p | "Names" >> beam.Create([(4, "four"), (7, "seven")])
        counted = p | beam.Create([4, 7]) | beam.ParDo(_CountUpFn(), beam.pvalue.AsDict(names))
        assert_that(
            counted, equal_to([(name, n) for e, name in ((4, "four"), (7, "seven")) for n in range(e)])
        )


class _RunningSumFn(beam.DoFn):
    TOTAL = userstate.CombiningValueStateSpec("total", sum)
    END = userstate.TimerSpec("end", userstate.TimeDomain.WATERMARK)

    def process(
        self,
        element: tuple[str, int],
        total: Any = beam.DoFn.StateParam(TOTAL),
        end: Any = beam.DoFn.TimerParam(END),
    ) -> None:
        total.add(element[1])
        end.set(Timestamp(100))

    @userstate.on_timer(END)
    def flush(self, key: Any = beam.DoFn.KeyParam, total: Any = beam.DoFn.StateParam(TOTAL)) -> Iterator[Any]:
        yield key, total.read()


def test_state_is_kept_per_key_and_timers_fire_at_the_end(pipeline: beam.Pipeline) -> None:
    with pipeline as p:
        sums = p | beam.Create([("a", 1), ("b", 5), ("a", 2)]) | beam.ParDo(_RunningSumFn())
        assert_that(sums, equal_to([("a", 3), ("b", 5)]))


def _count(n: int) -> int:
    Metrics.counter("test", "seen").inc()
    Metrics.distribution("test", "sizes").update(n)
    return n


@pytest.mark.slow
def test_metrics_of_all_tasks_add_up(spark: Any) -> None:
    p = beam.Pipeline(runner=PySparkRunner(spark), options=PipelineOptions(["--spark_parallelism=2"]))
    _ = p | beam.Create(range(10)) | beam.Reshuffle() | beam.Map(_count)
    result = p.run()
    assert result.wait_until_finish() == "DONE"
    found = result.metrics().query()
    assert [c.committed for c in found["counters"]] == [10]
    (sizes,) = (d.committed for d in found["distributions"])
    assert (sizes.count, sizes.sum, sizes.min, sizes.max) == (10, 45, 0, 9)
    times = result.monitoring_metrics().query(MetricsFilter().with_step("Map(_count)"))["counters"]
    assert "metric:ptransform_execution_time:total_msecs:v1" in [time.key.metric.name for time in times]
    counts = [i for i in result.monitoring_metrics().monitoring_infos() if i.urn == ELEMENT_COUNT_URN]
    assert [extract_counter_value(i) for i in counts].count(10) >= 3


def test_a_users_exception_arrives_with_its_type_its_step_and_the_workers_traceback(spark: Any) -> None:
    p = beam.Pipeline(runner=PySparkRunner(spark), options=PipelineOptions([]))
    _ = p | beam.Create([1, 0]) | "Divide" >> beam.Map(lambda n: 1 // n)
    with pytest.raises(ZeroDivisionError, match="Divide") as caught:
        p.run().wait_until_finish()
    assert "lambda n: 1 // n" in caught.value.__notes__[0]


class _SizeOptions(PipelineOptions):
    @classmethod
    def _add_argparse_args(cls, parser: Any) -> None:
        parser.add_value_provider_argument("--size", type=int, default=7)


class _SizeFn(beam.DoFn):
    def __init__(self, size: Any) -> None:
        self._size = size

    def process(self, element: str) -> Iterator[tuple[str, int]]:
        yield element, self._size.get()


@pytest.mark.parametrize(("flags", "size"), [([], 7), (["--size=9"], 9)], ids=["default", "given"])
def test_a_dofn_gets_the_value_of_an_option_when_it_runs(spark: Any, flags: list[str], size: int) -> None:
    with beam.Pipeline(runner=PySparkRunner(spark), options=PipelineOptions(flags)) as p:
        provided = p.options.view_as(_SizeOptions).size
        assert_that(p | beam.Create(["a"]) | beam.ParDo(_SizeFn(provided)), equal_to([("a", size)]))


class Order(NamedTuple):
    """As a notebook or a script defines it: see `in_main`."""

    item: str
    pieces: int


class OrderError(Exception):
    """As a notebook or a script defines it."""


@pytest.fixture
def in_main(monkeypatch: pytest.MonkeyPatch) -> None:
    for each in (Order, OrderError):
        monkeypatch.setattr(each, "__module__", "__main__")
        monkeypatch.setattr(sys.modules["__main__"], each.__name__, each, raising=False)


def test_elements_may_be_of_a_class_that_the_users_script_defines(
    pipeline: beam.Pipeline, in_main: None
) -> None:
    doubled = beam.Map(lambda order: Order(order.item, order.pieces * 2))
    with pipeline as p:
        orders = p | beam.Create([Order("tea", 1), Order("jam", 2)]) | beam.Reshuffle() | doubled
        assert_that(orders, equal_to([Order("tea", 2), Order("jam", 4)]))


def test_a_dofn_may_be_of_a_module_that_only_the_driver_finds(
    pipeline: beam.Pipeline, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "beside_the_script.py").write_text("def doubled(n):\n    return n * 2\n")
    monkeypatch.syspath_prepend(tmp_path)
    beside = importlib.import_module("beside_the_script")
    with pipeline as p:
        assert_that(p | beam.Create([1, 2]) | beam.Map(beside.doubled), equal_to([2, 4]))


def test_an_exception_that_the_users_script_defines_arrives_with_its_type(
    pipeline: beam.Pipeline, in_main: None
) -> None:
    def refuse(n: int) -> None:
        raise OrderError("no tea")

    _ = pipeline | beam.Create([1]) | beam.Map(refuse)
    with pytest.raises(OrderError, match="no tea"):
        pipeline.run().wait_until_finish()


@pytest.mark.slow
def test_side_inputs_sessions_and_triggers_run_on_spark(pipeline: beam.Pipeline) -> None:
    numbers = pipeline | beam.Create([1, 2, 3, 20, 21]) | beam.Map(lambda n: window.TimestampedValue(n, n))
    total = beam.pvalue.AsSingleton(numbers | beam.CombineGlobally(sum))
    squares = beam.pvalue.AsDict(numbers | "Squares" >> beam.Map(lambda n: (n, n * n)))
    with_sides = numbers | "With sides" >> beam.Map(lambda n, s, d: (n, s, d[n]), total, squares)
    assert_that(with_sides, equal_to([(n, 47, n * n) for n in (1, 2, 3, 20, 21)]), "sides")
    keyed = numbers | beam.Map(lambda n: ("k", n))
    sessions = (
        keyed
        | beam.WindowInto(window.Sessions(10))
        | "Sessions" >> beam.GroupByKey()
        | "Sort" >> beam.MapTuple(lambda key, values: (key, sorted(values)))
    )
    assert_that(sessions, equal_to([("k", [1, 2, 3]), ("k", [20, 21])]), "sessions")
    early = keyed | "Early" >> beam.WindowInto(
        window.FixedWindows(100),
        trigger=trigger.AfterWatermark(early=trigger.AfterCount(1)),
        accumulation_mode=trigger.AccumulationMode.ACCUMULATING,
    )
    sums = (
        early | "Panes" >> beam.GroupByKey() | "Sum" >> beam.MapTuple(lambda key, values: (key, sum(values)))
    )
    assert_that(sums, equal_to([("k", 47), ("k", 47)]), "triggers")


def test_a_transform_that_streams_cannot_run_is_refused_by_name_before_the_start(spark: Any) -> None:
    p = beam.Pipeline(runner=PySparkRunner(spark))
    endless = p | beam.Create(["a"]) | beam.ParDo(CountFn(10, 10))
    _ = (
        p
        | "main" >> beam.Create([1])
        | "Looks aside" >> beam.Map(lambda n, all_: n, beam.pvalue.AsList(endless))
    )
    with pytest.raises(
        UnsupportedPipelineError, match="Looks aside: its side input .* would never be complete"
    ):
        p.run()
