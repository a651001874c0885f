"""Random batch pipelines give the same values, windows and timestamps here and on Beam's own runner."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any, TypeAlias

import apache_beam as beam
import pytest
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.runners.portability.fn_api_runner import FnApiRunner
from apache_beam.transforms import trigger, window
from hypothesis import Phase, example, given, settings
from hypothesis import strategies as st

from tests.simulation.batch import run_batch

Pairs: TypeAlias = beam.PCollection
Step: TypeAlias = Callable[[Pairs, str], Pairs]

KEYS = ["", "a", "b", "ключ", "z" * 40]
found: list[Any] = []


class CollectFn(beam.DoFn):
    """Notes each element with its window and timestamp; both runners work in this process."""

    def process(
        self, element: Any, at: Any = beam.DoFn.TimestampParam, within: Any = beam.DoFn.WindowParam
    ) -> None:
        # Beam's runner cuts timestamps to milliseconds between stages, and misses the global window's end by some.
        found.append((element, min(at.micros // 1000, 10**15), str(within)))


def mapped(pairs: Pairs, name: str) -> Pairs:
    return pairs | name >> beam.Map(lambda kv: (kv[0], kv[1] * 2 + 1))


def filtered(pairs: Pairs, name: str) -> Pairs:
    return pairs | name >> beam.Filter(lambda kv: kv[1] % 3 != 0)


def rekeyed(pairs: Pairs, name: str) -> Pairs:
    return pairs | name >> beam.Map(lambda kv: (KEYS[abs(kv[1]) % len(KEYS)], kv[1]))


def flattened(pairs: Pairs, name: str) -> Pairs:
    twin = pairs | f"{name} twin" >> beam.Map(lambda kv: (kv[0], -kv[1]))
    return (pairs, twin) | name >> beam.Flatten()


def reshuffled(pairs: Pairs, name: str) -> Pairs:
    return pairs | name >> beam.Reshuffle()


def grouped(pairs: Pairs, name: str) -> Pairs:
    groups = pairs | name >> beam.GroupByKey()
    return groups | f"{name} sizes" >> beam.MapTuple(
        lambda key, values: (key, len(list(values)) + sum(values))
    )


def summed(pairs: Pairs, name: str) -> Pairs:
    return pairs | name >> beam.CombinePerKey(sum)


def joined(pairs: Pairs, name: str) -> Pairs:
    doubled = pairs | f"{name} other" >> beam.Map(lambda kv: (kv[0], kv[1] * 10))
    both = (pairs, doubled) | name >> beam.CoGroupByKey()
    return both | f"{name} sums" >> beam.MapTuple(lambda key, sides: (key, sum(map(sum, sides))))


def with_list(pairs: Pairs, name: str) -> Pairs:
    values = pairs | f"{name} values" >> beam.Values()
    side = beam.pvalue.AsList(values)
    return pairs | name >> beam.Map(lambda kv, all_: (kv[0], kv[1] + sum(all_) + len(all_)), side)


def with_dict(pairs: Pairs, name: str) -> Pairs:
    totals = pairs | f"{name} totals" >> beam.CombinePerKey(sum)
    side = beam.pvalue.AsDict(totals)
    return pairs | name >> beam.Map(lambda kv, of: (kv[0], kv[1] - of.get(kv[0], 0)), side)


def split(pairs: Pairs, name: str) -> Pairs:
    def by_sign(kv: Any) -> Any:
        yield beam.pvalue.TaggedOutput("even" if kv[1] % 2 == 0 else "odd", kv)

    tagged = pairs | name >> beam.FlatMap(by_sign).with_outputs("even", "odd")
    odd = tagged.odd | f"{name} odd" >> beam.Map(lambda kv: (kv[0], kv[1] + 1))
    return (tagged.even, odd) | f"{name} both" >> beam.Flatten()


def into(windowfn: Any, **options: Any) -> Step:
    return lambda pairs, name: pairs | name >> beam.WindowInto(windowfn, **options)


STEPS: dict[str, Step] = {
    "map": mapped,
    "filter": filtered,
    "rekey": rekeyed,
    "flatten": flattened,
    "reshuffle": reshuffled,
    "group": grouped,
    "sum": summed,
    "join": joined,
    "list": with_list,
    "dict": with_dict,
    "split": split,
    "global": into(window.GlobalWindows()),
    "fixed": into(window.FixedWindows(10)),
    "earliest": into(window.FixedWindows(7), timestamp_combiner=window.TimestampCombiner.OUTPUT_AT_EARLIEST),
    "latest": into(
        window.SlidingWindows(10, 5), timestamp_combiner=window.TimestampCombiner.OUTPUT_AT_LATEST
    ),
    "sessions": into(window.Sessions(4)),
}
WINDOWS = ("global", "fixed", "earliest", "latest", "sessions")
elements = st.tuples(st.sampled_from(KEYS), st.integers(-50, 50), st.integers(0, 60))


def build(pipeline: beam.Pipeline, data: list[tuple[str, int, int]], steps: list[str]) -> None:
    pairs = pipeline | beam.Create(data, reshuffle=False)
    pairs = pairs | "Stamp" >> beam.Map(lambda kvt: window.TimestampedValue((kvt[0], kvt[1]), kvt[2]))
    windows = "global"
    for number, step in enumerate(steps):
        windows = step if step in WINDOWS else windows
        if windows == "sessions" and step in ("list", "dict"):
            continue  # Beam has no side inputs in merging windows
        pairs = STEPS[step](pairs, f"{number} {step}")
    _ = pairs | "Collect" >> beam.ParDo(CollectFn())


def on_beams_runner(data: list[tuple[str, int, int]], steps: list[str]) -> Counter[Any]:
    found.clear()
    with beam.Pipeline(runner=FnApiRunner(), options=PipelineOptions([])) as pipeline:
        build(pipeline, data, steps)
    return Counter(found)


def on_ours(data: list[tuple[str, int, int]], steps: list[str]) -> Counter[Any]:
    found.clear()
    run_batch(lambda pipeline: build(pipeline, data, steps))
    return Counter(found)


@pytest.mark.slow
@settings(max_examples=settings().max_examples * 3 // 10, phases=[Phase.explicit, Phase.generate])
@example([("a", 1, 3), ("a", 2, 5)], ["earliest", "group"])
@example([("a", 1, 3), ("a", 2, 5)], ["latest", "sum"])
@example([("a", 1, 3), ("b", 2, 5)], ["flatten", "group"])
@given(st.lists(elements, max_size=12), st.lists(st.sampled_from(sorted(STEPS)), max_size=5))
def test_random_pipelines_agree_with_beams_own_runner(
    data: list[tuple[str, int, int]], steps: list[str]
) -> None:
    assert on_ours(data, steps) == on_beams_runner(data, steps)


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
def test_triggers_fire_as_on_beams_own_runner(when: Any, mode: str) -> None:
    data = [("a", n, n) for n in range(7)] + [("b", n, n) for n in range(2)]
    STEPS["triggered"] = into(
        window.FixedWindows(100), trigger=when, accumulation_mode=getattr(trigger.AccumulationMode, mode)
    )
    steps = ["triggered", "group"]
    assert on_ours(data, steps) == on_beams_runner(data, steps)
