"""Chains of simple steps do what Beam's operations do. The tests run a stage with chains, and some also without."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.metrics import Metrics, monitoring_infos
from apache_beam.pvalue import TaggedOutput
from apache_beam.transforms.window import (
    FixedWindows,
    GlobalWindow,
    GlobalWindows,
    IntervalWindow,
    TimestampedValue,
)
from apache_beam.utils.timestamp import MAX_TIMESTAMP, MIN_TIMESTAMP, Timestamp
from apache_beam.utils.windowed_value import PaneInfo, PaneInfoTiming, WindowedValue

from penstock.runner.harness import chain
from penstock.runner.harness.simple_steps import simple_function
from tests.unit.runner.chain_stages import (
    MANY,
    CollectFn,
    EachFn,
    calls,
    counted,
    counts,
    elements,
    forget,
    found,
    processor,
    run_bundle,
    user_counters,
    values,
    without_chains,
)


@pytest.fixture(autouse=True)
def nothing_yet() -> None:
    forget()


@pytest.fixture
def passed(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Let most elements stay in chains, and count them. Beam samples many of so few."""
    tally: Counter[str] = Counter()
    settle = chain._Segment.settle

    def settle_and_tally(self: Any, left: int) -> None:
        tally["values"] += self._granted - left
        settle(self, left)

    monkeypatch.setattr(chain._Segment, "settle", settle_and_tally)
    monkeypatch.setattr(chain, "_until_sample", lambda counters: 5)
    return tally


class TenfoldFn(beam.DoFn):
    """A user's DoFn whose calls, of all kinds, are recorded."""

    def __init__(self) -> None:
        self._seen = 0
        self._elements = Metrics.counter("test", "elements")

    def setup(self) -> None:
        calls.append("setup")

    def start_bundle(self) -> None:
        calls.append("start")
        self._seen = 0

    def process(self, element: int) -> Iterator[int]:
        self._seen += 1
        self._elements.inc()
        yield element * 10

    def finish_bundle(self) -> Iterator[WindowedValue]:
        calls.append(("finish", self._seen))
        yield GlobalWindows.windowed_value(-self._seen)

    def teardown(self) -> None:
        calls.append("teardown")


def all_kinds(numbers: beam.PCollection) -> None:
    tagged = (
        numbers
        | "counted" >> beam.Map(counted("before"))
        | "pair" >> beam.Map(lambda n: (n, n % 7))
        | "sum" >> beam.MapTuple(lambda n, rest: n + rest)
        | "two" >> beam.FlatMap(lambda n: [n, -n])
        | "many" >> beam.Filter(lambda n: n % 5)
        | "keys" >> beam.WithKeys(lambda n: n % 3)
        | "values" >> beam.Values()
        | "own" >> beam.ParDo(TenfoldFn())
        | "listed" >> beam.ParDo(EachFn(lambda n: [n] if n % 4 else None))
        | "counted again" >> beam.Map(counted("after"))
        | "split" >> beam.FlatMap(by_size).with_outputs("large", "none", main="small")
    )
    _ = tagged.small | "small" >> beam.Map(lambda n: n) | "collect small" >> beam.ParDo(CollectFn("small"))
    large = tagged.large | "large" >> beam.Map(lambda n: n + 1) | "larger" >> beam.Filter(lambda n: n % 2)
    _ = large | "collect large" >> beam.ParDo(CollectFn("large"))


def by_size(n: int) -> Iterator[Any]:
    if abs(n) < 500:
        yield n
    elif n % 3:
        yield TaggedOutput("large", n)
    else:
        yield TaggedOutput("unknown", n)
        yield TimestampedValue(n, 5)
        yield WindowedValue(n, Timestamp(6), (GlobalWindow(),))


def test_a_chain_has_the_results_and_metrics_of_beams_operations(
    monkeypatch: pytest.MonkeyPatch, passed: Counter[str]
) -> None:
    def run() -> Any:
        found.clear()
        calls.clear()
        stage = processor(all_kinds)
        infos = [run_bundle(stage, elements(MANY)) for _ in range(2)]
        stage.tear_down()
        return (
            list(found),
            list(calls),
            [counts(each) for each in infos],
            [user_counters(each) for each in infos],
        )

    chained, tally = run(), passed["values"]
    assert tally > MANY
    assert chained == without_chains(monkeypatch, run)
    assert passed["values"] == tally
    assert len(chained[2][0]) >= 15
    assert set(chained[3][0]) == {("counted", "before"), ("own", "elements"), ("counted again", "after")}
    assert chained[1][0] == "setup"
    assert chained[1][-1] == "teardown"


def test_a_chain_counts_no_output_that_left_it_early(
    monkeypatch: pytest.MonkeyPatch, passed: Counter[str]
) -> None:
    def build(numbers: beam.PCollection) -> None:
        # Maps only: their outputs are counted together.
        some = numbers | "some" >> beam.Map(third_tagged).with_outputs("third", main="main")
        _ = some.main | "a" >> beam.Map(lambda n: n) | "b" >> beam.Map(lambda n: n) | beam.ParDo(CollectFn())

    def run() -> Any:
        return counts(run_bundle(processor(build), elements(MANY)))

    chained = run()
    assert passed["values"]
    assert chained == without_chains(monkeypatch, run)
    assert len(values()) == 2 * (MANY - len(range(0, MANY, 3)))


def third_tagged(n: int) -> Any:
    return TaggedOutput("third", n) if n % 3 == 0 else n


def test_sampled_elements_of_the_first_segments_do_not_keep_the_later_ones_out_of_the_chain(
    passed: Counter[str],
) -> None:
    stage = processor(
        lambda numbers: (
            numbers
            | beam.FlatMap(lambda n: range(1000))
            | beam.Map(lambda n: n + 1)
            | beam.ParDo(CollectFn())
        )
    )
    run_bundle(stage, elements(2))
    assert len(values()) == 2000
    # Five of six values of the second segment.
    assert passed["values"] > 1600


def test_functions_run_for_one_element_after_the_other() -> None:
    """A step may emit the same object again and again."""

    def build(numbers: beam.PCollection) -> None:
        _ = numbers | beam.ParDo(ReuseFn()) | beam.Map(sum) | beam.Map(lambda n: n) | beam.ParDo(CollectFn())

    run_bundle(processor(build), elements(MANY))
    assert values() == [n + step for n in range(MANY) for step in (0, 1)]


class ReuseFn(beam.DoFn):
    def process(self, element: int) -> Iterator[list[int]]:
        reused = [element, 0]
        yield reused
        reused[1] = 1
        yield reused


def test_a_step_that_does_not_look_at_windows_runs_once_for_an_element_in_several() -> None:
    windows = (IntervalWindow(0, 10), IntervalWindow(5, 15))
    pane = PaneInfo(True, False, PaneInfoTiming.EARLY, 0, -1)

    def build(numbers: beam.PCollection) -> None:
        _ = numbers | beam.Map(counted("once")) | beam.Map(lambda n: n) | beam.ParDo(CollectFn())

    given = [WindowedValue(b"%d" % n, Timestamp(7), windows, pane) for n in range(MANY)]
    infos = run_bundle(processor(build), given)
    assert set(user_counters(infos).values()) == {MANY}
    assert [each[:4] for each in found] == [
        ("main", n, 7_000_000, window) for n in range(MANY) for window in windows
    ]


class WindowedFn(beam.DoFn):
    """Records whole elements."""

    def process(self, element: Any, whole: Any = beam.DoFn.WindowedValueParam) -> Iterator[Any]:
        found.append(
            (element, whole.timestamp_micros, type(whole.windows), list(whole.windows), whole.pane_info)
        )
        yield element


def windows_of_all_kinds(numbers: beam.PCollection) -> None:
    in_fixed = numbers | "fixed" >> beam.WindowInto(FixedWindows(10, 3)) | beam.Map(lambda n: n)
    in_fixed = in_fixed | beam.Filter(lambda n: n % 5) | "see" >> beam.ParDo(WindowedFn())
    in_global = in_fixed | "one" >> beam.Map(counted("one")) | "global" >> beam.WindowInto(GlobalWindows())
    _ = in_global | "two" >> beam.FlatMap(lambda n: [n, n]) | "see again" >> beam.ParDo(WindowedFn())


@pytest.mark.parametrize("first", [-30, 0, 1, 9_999_999, MIN_TIMESTAMP, MAX_TIMESTAMP - MANY])
@pytest.mark.parametrize("several", [0, 3], ids=["one window", "some in two windows"])
def test_windowinto_assigns_what_beam_assigns(
    first: Any, several: int, monkeypatch: pytest.MonkeyPatch, passed: Counter[str]
) -> None:
    pane = PaneInfo(True, False, PaneInfoTiming.EARLY, 0, -1)

    def given() -> Iterator[WindowedValue]:
        for n in range(MANY):
            at = Timestamp.of(first) + n * 0.7
            windows = (
                (IntervalWindow(0, 10), IntervalWindow(5, 15))
                if several and n % several == 0
                else (GlobalWindow(),)
            )
            yield WindowedValue(b"%d" % n, at, windows, pane)

    def run() -> Any:
        found.clear()
        infos = run_bundle(processor(windows_of_all_kinds), given())
        return list(found), counts(infos), user_counters(infos)

    assert run() == without_chains(monkeypatch, run)
    assert len(found) > 2 * MANY
    assert passed["values"] > MANY


class Unhashable(type):
    def __eq__(cls, other: object) -> bool:
        return cls is other


class Odd(metaclass=Unhashable):
    pass


def odd_of(n: int) -> Odd:
    return Odd()


class Declared:
    """The declared type of elements that are `Odd`."""


class OddCoder(beam.coders.Coder):
    def encode(self, value: Odd) -> bytes:
        return b""

    def decode(self, encoded: bytes) -> Odd:
        return Odd()

    def is_deterministic(self) -> bool:
        return True


class Subclass(TaggedOutput):
    pass


def tagged_by_a_subclass(n: int) -> Iterator[Any]:
    yield n
    yield Subclass("side", n)


def test_an_output_of_a_subclass_of_taggedoutput_goes_to_its_tag(monkeypatch: pytest.MonkeyPatch) -> None:
    def build(numbers: beam.PCollection) -> None:
        outputs = numbers | beam.FlatMap(tagged_by_a_subclass).with_outputs("side", main="main")
        _ = (
            outputs.main
            | "a" >> beam.Map(lambda n: n)
            | "b" >> beam.Map(lambda n: n)
            | beam.ParDo(CollectFn())
        )
        _ = outputs.side | "side" >> beam.ParDo(CollectFn("side"))

    def run() -> Any:
        found.clear()
        infos = run_bundle(processor(build), elements(MANY))
        return list(found), counts(infos)

    assert run() == without_chains(monkeypatch, run)
    assert values("side") == list(range(MANY))
    assert values() == list(range(MANY))


def test_a_class_that_cannot_be_hashed_may_be_the_class_of_an_element() -> None:
    # Neither Beam's default coder nor pickle can take one.
    beam.coders.registry.register_coder(Declared, OddCoder)

    def build(numbers: beam.PCollection) -> None:
        odd = numbers | beam.Map(odd_of).with_output_types(Declared)
        _ = odd | beam.Map(lambda each: type(each).__name__) | beam.ParDo(CollectFn())

    run_bundle(processor(build), elements(MANY))
    assert values() == ["Odd"] * MANY


@pytest.mark.slow
def test_sampled_sizes_are_as_many_as_beams(monkeypatch: pytest.MonkeyPatch) -> None:
    def build(numbers: beam.PCollection) -> None:
        _ = numbers | "a" >> beam.Map(lambda n: n) | "b" >> beam.Map(lambda n: n) | beam.ParDo(CollectFn())

    def samples() -> list[int]:
        infos = run_bundle(processor(build), elements(20_000))
        sizes = [info for info in infos if info.urn == monitoring_infos.SAMPLED_BYTE_SIZE_URN]
        return [monitoring_infos.extract_distribution(info)[0] for info in sizes]

    chained, plain = samples(), without_chains(monkeypatch, samples)
    assert len(chained) == len(plain)
    assert len([count for count in chained if count]) == 4
    # Beam takes the first ten, and then 10 ln(n / 10): here 86, more or less.
    assert all(45 < count < 150 for count in chained if count), chained


class TimedFn(beam.DoFn):
    def process(self, element: Any, at: Any = beam.DoFn.TimestampParam) -> None: ...


class BatchedFn(beam.DoFn):
    def process_batch(self, batch: list[int]) -> Iterator[list[int]]: ...


def test_dofns_that_use_more_than_the_element_are_not_simple() -> None:
    assert simple_function(TimedFn()) is None
    assert simple_function(BatchedFn()) is None
    assert simple_function(beam.Map(lambda element, at=beam.DoFn.TimestampParam: at).fn) is None
    assert simple_function(beam.Map(lambda element, other=1: other).fn) is None
    assert simple_function(TenfoldFn()) is not None


def test_metrics_of_a_generator_that_continues_belong_to_its_step() -> None:
    def build(numbers: beam.PCollection) -> None:
        _ = (
            numbers
            | "outer" >> beam.FlatMap(counting)
            | "inner" >> beam.FlatMap(counting)
            | beam.ParDo(CollectFn())
        )

    infos = run_bundle(processor(build), elements(MANY))
    assert user_counters(infos) == {("outer", "continued"): MANY, ("inner", "continued"): MANY}


def counting(n: int) -> Iterator[int]:
    yield n
    Metrics.counter("test", "continued").inc()


def test_a_long_run_of_steps_is_several_chains(passed: Counter[str]) -> None:
    def build(numbers: beam.PCollection) -> None:
        for step in range(40):
            numbers = numbers | f"step {step}" >> beam.FlatMap(lambda n: [n + 1])
        _ = numbers | beam.ParDo(CollectFn())

    infos = run_bundle(processor(build), elements(MANY))
    assert values() == [n + 40 for n in range(MANY)]
    assert set(counts(infos).values()) == {MANY, 0} or set(counts(infos).values()) == {MANY}
    assert passed["values"] > 10 * MANY


@pytest.mark.slow
def test_a_very_long_run_of_steps_does_not_nest_calls_of_python_code_too_deeply() -> None:
    def build(numbers: beam.PCollection) -> None:
        # Beam's `BundleProcessor` itself fails with 250.
        for step in range(180):
            numbers = numbers | f"step {step}" >> beam.FlatMap(lambda n: [n + 1])
        _ = numbers | beam.ParDo(CollectFn())

    run_bundle(processor(build), elements(3))
    assert values() == [180, 181, 182]


def test_a_chain_behind_another_dofn_counts_its_input() -> None:
    def build(numbers: beam.PCollection) -> None:
        timed = numbers | "timed" >> beam.Map(lambda n, at=beam.DoFn.TimestampParam: n)
        _ = (
            timed
            | "a" >> beam.Map(counted("a"))
            | "b" >> beam.Filter(lambda n: n % 2)
            | beam.ParDo(CollectFn())
        )

    infos = run_bundle(processor(build), elements(MANY))
    assert values() == list(range(1, MANY, 2))
    assert sorted(itertools.islice(counts(infos).values(), 9)) == sorted(
        [MANY, MANY, MANY, MANY, MANY // 2, 0]
    )
    assert user_counters(infos) == {("a", "a"): MANY}
