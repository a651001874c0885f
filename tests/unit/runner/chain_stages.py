"""One stage of a pipeline in this process, with chains of simple steps or without, and the elements that it emits."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.metrics import Metrics, monitoring_infos
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.portability.api import metrics_pb2
from apache_beam.transforms.window import GlobalWindows
from apache_beam.utils.timestamp import Timestamp
from apache_beam.utils.windowed_value import WindowedValue

from penstock.runner import PySparkRunner
from penstock.runner.harness import chains
from penstock.runner.harness.bundle import PlanContext, StageProcessor
from penstock.runner.planning.graph import build_plan

MANY = 200
"""More elements than those of which Beam samples each one."""

found: list[Any] = []
calls: list[Any] = []


def forget() -> None:
    """Forget what earlier stages have done."""
    found.clear()
    calls.clear()


class CollectFn(beam.DoFn):
    """Records elements with their timestamp, windows and pane. It is no simple step."""

    def __init__(self, name: str = "main") -> None:
        self._name = name

    def process(
        self,
        element: Any,
        at: Any = beam.DoFn.TimestampParam,
        within: Any = beam.DoFn.WindowParam,
        pane: Any = beam.DoFn.PaneInfoParam,
    ) -> None:
        found.append((self._name, element, at.micros, within, pane))


def processor(build: Callable[[beam.PCollection], Any], visitor: Any = None) -> StageProcessor:
    """Return the processor of the first stage, which gets the elements of `elements`."""
    pipeline = beam.Pipeline(runner=PySparkRunner(), options=PipelineOptions([]))
    build(pipeline | beam.Impulse() | "number" >> beam.Map(lambda data: int(data)).with_output_types(int))
    if visitor:
        pipeline.visit(visitor)
    environment = PySparkRunner().default_environment(pipeline.options)
    plan = build_plan(pipeline.to_runner_api(default_environment=environment), streaming=False)
    return StageProcessor(PlanContext(plan), plan.stages[0])


def elements(count: int) -> Iterator[WindowedValue]:
    for number in range(count):
        yield GlobalWindows.windowed_value(b"%d" % number, Timestamp(number))


def run_bundle(stage: StageProcessor, given: Any) -> list[metrics_pb2.MonitoringInfo]:
    stage.start(0, 1, lambda edge, target, block: None)
    try:
        stage.process_all(given)
    except BaseException:
        stage.discard()
        raise
    return [metrics_pb2.MonitoringInfo.FromString(info) for info in stage.finish()]


def values(name: str = "main") -> list[Any]:
    return [value for of, value, *_ in found if of == name]


def counts(infos: list[metrics_pb2.MonitoringInfo]) -> dict[str, int]:
    """The numbers of elements by PCollection."""
    return {
        info.labels["PCOLLECTION"]: monitoring_infos.extract_counter_value(info)
        for info in infos
        if info.urn == monitoring_infos.ELEMENT_COUNT_URN
    }


def user_counters(infos: list[metrics_pb2.MonitoringInfo]) -> dict[tuple[str, str], int]:
    return {
        (info.labels["PTRANSFORM"], info.labels["NAME"]): monitoring_infos.extract_counter_value(info)
        for info in infos
        if info.urn == monitoring_infos.USER_COUNTER_URN
    }


def without_chains(monkeypatch: pytest.MonkeyPatch, run: Callable[[], Any]) -> Any:
    with monkeypatch.context() as patched:
        patched.setattr(chains, "simple_function", lambda fn: None)
        return run()


class EachFn(beam.DoFn):
    """Emits what it is given: no generator, so Beam checks its first result."""

    def __init__(self, results: Callable[[int], Any]) -> None:
        self._results = results

    def process(self, element: int) -> Any:
        return self._results(element)


def counted(name: str) -> Callable[[Any], Any]:
    def count(element: Any) -> Any:
        Metrics.counter("test", name).inc()
        return element

    return count
