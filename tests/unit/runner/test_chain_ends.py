"""The ends of chains: a chain in front of an exchange or of a combiner does what Beam's operations do."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.metrics import Metrics, monitoring_infos
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.portability.api import metrics_pb2
from apache_beam.pvalue import TaggedOutput
from apache_beam.transforms.window import (
    FixedWindows,
    GlobalWindow,
    GlobalWindows,
    TimestampCombiner,
    TimestampedValue,
)
from apache_beam.utils.timestamp import Timestamp
from apache_beam.utils.windowed_value import WindowedValue

from penstock.runner import PySparkRunner
from penstock.runner.harness import chain, chain_ends, chains
from penstock.runner.harness.bundle import PlanContext, StageProcessor
from penstock.runner.planning.graph import build_plan
from penstock.runner.planning.plan import Plan
from penstock.runner.windows.grouping import read_group

MANY = 200
"""More elements than those of which Beam samples each one."""

Build = Callable[[beam.PCollection], Any]
Block = tuple[int, int, bytes]


def plan_of(build: Build) -> Plan:
    """The plan of a pipeline that begins with integers."""
    pipeline = beam.Pipeline(runner=PySparkRunner(), options=PipelineOptions([]))
    build(pipeline | beam.Impulse() | "number" >> beam.Map(lambda data: int(data)).with_output_types(int))
    environment = PySparkRunner().default_environment(pipeline.options)
    return build_plan(pipeline.to_runner_api(default_environment=environment), streaming=False)


def first_stage(build: Build) -> StageProcessor:
    plan = plan_of(build)
    return StageProcessor(PlanContext(plan), plan.stages[0])


def run_bundle(stage: StageProcessor) -> tuple[list[Block], list[metrics_pb2.MonitoringInfo]]:
    """Run a bundle of `MANY` elements; return its output by (edge, target, block), and its metrics."""
    blocks: list[Block] = []
    stage.start(0, 2, lambda *block: blocks.append(block))
    stage.process_all(GlobalWindows.windowed_value(b"%d" % n, Timestamp(n)) for n in range(MANY))
    infos = [metrics_pb2.MonitoringInfo.FromString(info) for info in stage.finish()]
    return blocks, infos


def counters(infos: list[metrics_pb2.MonitoringInfo]) -> dict[Any, int]:
    """The numbers of elements by PCollection, and the users' counters by step."""
    known = {monitoring_infos.ELEMENT_COUNT_URN, monitoring_infos.USER_COUNTER_URN}
    return {
        tuple(sorted(info.labels.items())): monitoring_infos.extract_counter_value(info)
        for info in infos
        if info.urn in known
    }


@pytest.fixture(autouse=True)
def in_chains(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let most elements stay in chains. Beam samples many of so few."""
    monkeypatch.setattr(chain, "_until_sample", lambda counters: 5)


@pytest.fixture
def ends(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Count the calls of the functions at the ends of chains."""
    calls: Counter[str] = Counter()
    end_of = chain_ends.chain_end

    def counting(op: Any) -> Any:
        end = end_of(op)
        if end is None:
            return None

        def function() -> Callable[..., None]:
            take = end.function()

            def count(*arguments: Any) -> None:
                calls[end.kind.name] += 1
                take(*arguments)

            return count

        return chain.ChainEnd(end.kind, end.op, function)

    monkeypatch.setattr(chains, "chain_end", counting)
    return calls


class SumFn(beam.CombineFn):
    """A sum whose additions are counted."""

    def create_accumulator(self) -> int:
        return 0

    def add_input(self, accumulator: int, element: int) -> int:
        Metrics.counter("test", "added").inc()
        return accumulator + element

    def merge_accumulators(self, accumulators: Any) -> int:
        return sum(accumulators)

    def extract_output(self, accumulator: int) -> int:
        return accumulator


def counted(pair: Any) -> Any:
    Metrics.counter("test", "emitted").inc()
    return pair


def several_kinds(n: int) -> Iterator[Any]:
    Metrics.counter("test", "calls").inc()
    yield n % 7, n
    if n % 3 == 0:
        yield TimestampedValue((n % 5, n), n + 5)
    if n % 5 == 0:
        yield TaggedOutput("other", n)
    Metrics.counter("test", "ends").inc()


def pairs(numbers: beam.PCollection) -> beam.PCollection:
    return numbers | "pair" >> beam.Map(lambda n: (n % 7, n)) | "counted" >> beam.Map(counted)


def flat(numbers: beam.PCollection) -> beam.PCollection:
    tagged = numbers | "flat" >> beam.FlatMap(several_kinds).with_outputs("other", main="main")
    return tagged.main


def some(numbers: beam.PCollection) -> beam.PCollection:
    return pairs(numbers) | "some" >> beam.Filter(lambda pair: pair[1] % 2)


def in_windows(numbers: beam.PCollection) -> beam.PCollection:
    return pairs(numbers) | "windows" >> beam.WindowInto(FixedWindows(10))


def in_windows_with_times(numbers: beam.PCollection) -> beam.PCollection:
    earliest = beam.WindowInto(FixedWindows(10), timestamp_combiner=TimestampCombiner.OUTPUT_AT_EARLIEST)
    return pairs(numbers) | "windows" >> earliest


BEFORE: dict[str, Callable[[beam.PCollection], beam.PCollection]] = {
    "map": pairs,
    "flat": flat,
    "filter": some,
    "windows": in_windows,
    "windows with times": in_windows_with_times,
}
BEHIND: dict[str, tuple[Callable[[], beam.PTransform], str]] = {
    "group": (beam.GroupByKey, "WRITE"),
    "combine": (lambda: beam.CombinePerKey(SumFn()), "COMBINE"),
    "packed": (lambda: beam.CombinePerKey(sum), "COMBINE"),
    "reshuffle": (beam.Reshuffle, "WRITE"),
}


@pytest.mark.parametrize("behind", BEHIND)
@pytest.mark.parametrize("before", BEFORE)
def test_the_end_of_a_chain_has_the_output_and_the_metrics_of_beams_operations(
    before: str, behind: str, ends: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    transform, kind = BEHIND[behind]

    def run() -> Any:
        stage = first_stage(lambda numbers: BEFORE[before](numbers) | "behind" >> transform())
        outputs = [run_bundle(stage) for _ in range(2)]
        return [(blocks, counters(infos)) for blocks, infos in outputs]

    at_ends = run()
    if kind == "COMBINE" and before.startswith("windows"):
        kind = "COMBINE_IN_WINDOWS"
    assert ends[kind] > MANY / 2
    with monkeypatch.context() as patched:
        patched.setattr(chains, "simple_function", lambda fn: None)
        patched.setattr(chains, "window_function", lambda windowfn: None)
        assert at_ends == run()
    assert at_ends[0] == at_ends[1]
    assert at_ends[0][0]


@pytest.fixture
def only_first_sampled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let Beam sample the sizes of the first ten elements, and of no other by chance."""
    monkeypatch.setattr(random, "randint", lambda low, high: high)


@pytest.mark.usefixtures("only_first_sampled")
@pytest.mark.parametrize("count", [0, MANY - 1], ids=["sampled", "in the chain"])
@pytest.mark.parametrize("behind", ["group", "combine"])
def test_an_exception_at_the_end_of_a_chain_has_the_name_of_the_last_step_as_in_beam(
    behind: str, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def bad(n: int) -> Any:
        # Neither the coder of integers nor a sum takes it.
        return (n % 7, "bad") if n == count else (n % 7, n)

    def message() -> str:
        stage = first_stage(
            lambda numbers: (
                numbers
                | "first" >> beam.Map(lambda n: n)
                | "last" >> beam.Map(bad).with_output_types(tuple[int, int])
                | "behind" >> BEHIND[behind][0]()
            )
        )
        with pytest.raises(TypeError) as caught:
            run_bundle(stage)
        stage.discard()
        return str(caught.value)

    with_end = message()
    assert "last" in with_end
    monkeypatch.setattr(chains, "simple_function", lambda fn: None)
    assert with_end == message()


class AgainFn(beam.DoFn):
    """Emits one `WindowedValue` twice, the second time with another timestamp."""

    def process(self, element: int, at: Any = beam.DoFn.TimestampParam) -> Iterator[Any]:
        emitted = WindowedValue(element, Timestamp(1), (GlobalWindow(),))
        yield emitted
        emitted.timestamp_micros = 5_000_000
        yield emitted


def test_an_element_that_a_user_changes_and_emits_again_is_another_element(ends: Counter[str]) -> None:
    stage = first_stage(
        lambda numbers: (
            numbers
            | beam.ParDo(AgainFn())
            # One step and the end: a chain behind another DoFn needs no second step.
            | "key" >> beam.Map(lambda n: ("all", n)).with_output_types(tuple[str, int])
            | beam.GroupByKey()
        )
    )
    blocks, _ = run_bundle(stage)
    assert ends["WRITE"] == 2 * MANY
    ((_, _, block),) = blocks
    _, _, first_us, last_us, count, _ = read_group(beam.coders.coder_impl.create_InputStream(block))
    assert (first_us, last_us, count) == (1_000_000, 5_000_000, 2 * MANY)
