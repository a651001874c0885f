"""Random batch pipelines give the same values, windows and timestamps here and on Beam's own runner."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.metrics.metric import MetricResults
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.runners.portability.fn_api_runner import FnApiRunner
from apache_beam.transforms import trigger, window
from hypothesis import Phase, example, given, reject, settings
from hypothesis import strategies as st

from penstock.runner import metrics
from penstock.runner.harness import chain
from tests.conftest import CAMPAIGN
from tests.property.runner.graphs import KEYS, STEPS, Graph, build
from tests.simulation.batch import run_batch

found: list[Any] = []


class CollectFn(beam.DoFn):
    """Records each element with its window and timestamp; both runners run in this process."""

    def __init__(self, name: str) -> None:
        self._name = name

    def process(
        self, element: Any, at: Any = beam.DoFn.TimestampParam, within: Any = beam.DoFn.WindowParam
    ) -> None:
        # Beam's runner cuts timestamps to milliseconds between stages, and misses the global window's end by some.
        found.append((self._name, repr(element), min(at.micros // 1000, 10**15), str(within)))


def on_beams_runner(construct: Callable[[beam.Pipeline], None]) -> tuple[Counter[Any], Counter[str]]:
    """Return the elements, and the users' counters by step and name."""
    found.clear()
    try:
        with beam.Pipeline(runner=FnApiRunner(), options=PipelineOptions([])) as pipeline:
            construct(pipeline)
    except AssertionError as error:
        # Beam's runner may fuse steps so that a stage waits for a side input that only the same stage can make. It ends
        # with bundles that were never run, so there is nothing to compare with.
        if "watermark-pending bundles did not execute" not in str(error):
            raise
        reject()
    return Counter(found), _counters(pipeline.result.metrics())


def on_ours(construct: Callable[[beam.Pipeline], None]) -> tuple[Counter[Any], Counter[str]]:
    """Return the elements, and the users' counters by step and name."""
    found.clear()
    record = run_batch(construct)
    return Counter(found), _counters(metrics.Metrics(metrics.deserialized(record.state.metrics)))


def _counters(results: MetricResults) -> Counter[str]:
    counters: Counter[str] = Counter()
    for each in results.query()["counters"]:
        counters[f"{each.key.step}: {each.key.metric.name}"] += each.committed
    return +counters


@pytest.fixture(scope="module", autouse=True)
def in_chains() -> Iterator[Counter[str]]:
    """Let most elements stay in chains, and count them. Otherwise Beam samples each of so few."""
    tally: Counter[str] = Counter()
    settle = chain._Segment.settle

    def settle_and_tally(self: Any, left: int) -> None:
        tally["elements"] += self._granted - left
        settle(self, left)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(chain, "_until_sample", lambda counters: 3)
        patched.setattr(chain._Segment, "settle", settle_and_tally)
        yield tally


def _data(keys: list[Any]) -> st.SearchStrategy[list[tuple[Any, int, int]]]:
    return st.lists(st.tuples(st.sampled_from(keys), st.integers(-50, 50), st.integers(0, 60)), max_size=12)


@pytest.fixture(scope="module")
def tally(campaign: Any) -> Iterator[Counter[str]]:
    """Count the pipelines that agreed, and how often each step occurred in them; this is evidence of a campaign."""
    steps: Counter[str] = Counter()
    yield steps
    pipelines, with_chains = steps.pop("pipelines", 0), steps.pop("with chains", 0)
    assert with_chains >= pipelines / 2
    campaign.record("differential", pipelines=pipelines, with_chains=with_chains, steps=dict(steps))


@pytest.mark.slow(seconds=15)
@settings(
    max_examples=settings().max_examples * 3 // (10 if CAMPAIGN else 20),
    phases=[Phase.explicit, Phase.generate],
)
@example([("a", 1, 3), ("a", 2, 5)], [("earliest", 0, 0), ("group", 0, 0)])
@example([("a", 1, 3), ("a", 2, 5)], [("latest", 0, 0), ("sum", 0, 0)])
@example([("a", 1, 3), ("b", 2, 5)], [("map", 0, 0), ("flatten", 0, 1), ("group", 0, 0)])
@example([("a", n, n) for n in range(8)], [("fixed", 0, 0), ("state", 0, 0)])
@example(
    [("a", n, n) for n in range(12)], [("chain", 0, 0), ("metered", 0, 0), ("tagged", 0, 0), ("held", 0, 0)]
)
@example(
    [("a", n, n) for n in range(9)], [("fixed", 0, 0), ("batch", 0, 0), ("group", 0, 0), ("batch", 0, 0)]
)
@given(
    st.sampled_from(sorted(KEYS)).flatmap(lambda kind: _data(KEYS[kind])),
    st.lists(st.tuples(st.sampled_from(STEPS), st.integers(0, 5), st.integers(0, 5)), max_size=7),
)
def test_random_graphs_give_the_same_results_on_the_direct_runner(
    tally: Counter[str], in_chains: Counter[str], data: list[tuple[Any, int, int]], graph: Graph
) -> None:
    def construct(pipeline: beam.Pipeline) -> None:
        build(pipeline, data, graph, CollectFn)

    in_chains.clear()
    ours = on_ours(construct)
    chained = ["with chains"] if in_chains["elements"] else []
    assert ours == on_beams_runner(construct)
    tally.update(["pipelines", *chained, *(step for step, _, _ in graph)])


@pytest.mark.parametrize(
    "when",
    [
        trigger.AfterWatermark(early=trigger.AfterCount(2)),
        trigger.Repeatedly(trigger.AfterCount(3)),
        trigger.AfterEach(trigger.AfterCount(2), trigger.AfterWatermark()),
    ],
    ids=["early", "counts", "each"],
)
@pytest.mark.parametrize("mode", ["DISCARDING", "ACCUMULATING"])
def test_triggers_fire_as_on_the_direct_runner(when: Any, mode: str) -> None:
    data = [("a", n, n) for n in range(7)] + [("b", n, n) for n in range(2)]

    def construct(pipeline: beam.Pipeline) -> None:
        pairs = pipeline | beam.Create(data, reshuffle=False)
        stamped = pairs | "Stamp" >> beam.Map(lambda kvt: window.TimestampedValue(kvt[:2], kvt[2]))
        triggered = stamped | beam.WindowInto(
            window.FixedWindows(100),
            trigger=when,
            accumulation_mode=getattr(trigger.AccumulationMode, mode),
        )
        sizes = triggered | beam.GroupByKey() | beam.MapTuple(lambda key, values: (key, sum(values)))
        _ = sizes | beam.ParDo(CollectFn("panes"))

    assert on_ours(construct) == on_beams_runner(construct)
