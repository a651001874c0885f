"""Beam's batched DoFns give the same results here and on Beam's own runner, and get whole batches from each other."""

# Without `from __future__ import annotations`: Beam takes the types of batches from annotations, and not from strings.

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import apache_beam as beam
import numpy as np
import pyarrow as pa
import pytest
from apache_beam.metrics import Metrics
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.pvalue import AsSingleton, TaggedOutput
from apache_beam.runners.portability.fn_api_runner import FnApiRunner
from apache_beam.transforms.window import FixedWindows, TimestampedValue

from tests.simulation.batch import run_batch
from tests.simulation.stream import run_stream

NUMBERS = 50

found: list[Any] = []
batches: list[Any] = []
"""The lengths of the batches that DoFns got, by the name of the DoFn."""

Build = Callable[[beam.Pipeline], Any]


class CollectFn(beam.DoFn):
    """Records elements with their type, timestamp and window."""

    def process(
        self, element: Any, at: Any = beam.DoFn.TimestampParam, within: Any = beam.DoFn.WindowParam
    ) -> None:
        found.append((repr(element), min(at.micros // 1000, 10**15), str(within)))


class BatchFn(beam.DoFn):
    """Adds one to numbers, in batches only."""

    def __init__(self, name: str) -> None:
        self._name = name

    def process_batch(self, batch: np.ndarray) -> Iterator[np.ndarray]:
        batches.append((self._name, len(batch)))
        Metrics.counter("test", self._name).inc(len(batch))
        yield batch + 1

    def infer_output_type(self, input_type: Any) -> Any:
        return np.int64


class EitherFn(beam.DoFn):
    """Doubles numbers, alone or in batches."""

    def process(self, element: np.int64) -> Iterator[np.int64]:
        batches.append(("either", 1))
        yield element * 2

    def process_batch(self, batch: np.ndarray) -> Iterator[np.ndarray]:
        batches.append(("either", len(batch)))
        yield batch * 2

    def infer_output_type(self, input_type: Any) -> Any:
        return np.int64


class ToBatchFn(beam.DoFn):
    @beam.DoFn.yields_batches
    def process(self, element: np.int64) -> Iterator[np.ndarray]:
        yield np.array([element, element + 100], dtype=np.int64)

    def infer_output_type(self, input_type: Any) -> Any:
        return np.int64


class ToElementsFn(beam.DoFn):
    @beam.DoFn.yields_elements
    def process_batch(self, batch: np.ndarray) -> Iterator[int]:
        yield from map(int, batch)

    def infer_output_type(self, input_type: Any) -> Any:
        return int


class SplitFn(beam.DoFn):
    """Emits batches of even numbers, and of odd ones with a tag."""

    def process_batch(self, batch: np.ndarray) -> Iterator[np.ndarray]:
        yield batch[batch % 2 == 0]
        yield TaggedOutput("odd", batch[batch % 2 == 1])  # type: ignore[misc]

    def infer_output_type(self, input_type: Any) -> Any:
        return np.int64


class AddFn(beam.DoFn):
    """Adds a side input, and the begin of the window."""

    def process_batch(
        self, batch: np.ndarray, other: int, within: Any = beam.DoFn.WindowParam
    ) -> Iterator[np.ndarray]:
        yield batch + other + within.start.micros // 1_000_000

    def infer_output_type(self, input_type: Any) -> Any:
        return np.int64


class Row(NamedTuple):
    number: int
    name: str


class TableFn(beam.DoFn):
    """Keeps the rows with even numbers, as tables of Arrow."""

    def __init__(self, name: str) -> None:
        self._name = name

    def process_batch(self, batch: pa.Table) -> Iterator[pa.Table]:
        batches.append((self._name, batch.num_rows, id(batch)))
        yield batch

    def infer_output_type(self, input_type: Any) -> Any:
        return input_type


def numbers(pipeline: beam.Pipeline, values: Any = range(NUMBERS)) -> beam.PCollection:
    created = pipeline | beam.Create([np.int64(value) for value in values], reshuffle=False)
    stamped = created | "stamp" >> beam.Map(lambda n: TimestampedValue(n, int(n) % 30))
    return stamped | "typed" >> beam.Map(lambda n: n).with_output_types(np.int64)


def between_steps(pipeline: beam.Pipeline) -> None:
    after = numbers(pipeline) | "a" >> beam.ParDo(BatchFn("a")) | beam.ParDo(EitherFn())
    _ = after | "b" >> beam.ParDo(BatchFn("b")) | beam.ParDo(CollectFn())


def from_elements_to_elements(pipeline: beam.Pipeline) -> None:
    made = numbers(pipeline) | beam.ParDo(ToBatchFn()) | "a" >> beam.ParDo(BatchFn("a"))
    plain = made | beam.ParDo(ToElementsFn()) | "half" >> beam.Map(lambda n: n // 2)
    pairs = plain | "odd" >> beam.Filter(lambda n: n % 2) | beam.Map(lambda n: (n % 3, n))
    _ = pairs | beam.GroupByKey() | beam.MapTuple(lambda key, of: (key, sorted(of))) | beam.ParDo(CollectFn())


def with_tags(pipeline: beam.Pipeline) -> None:
    parts = numbers(pipeline) | beam.ParDo(SplitFn()).with_outputs("odd", main="even")
    _ = parts.even | "even" >> beam.ParDo(BatchFn("even")) | "collect even" >> beam.ParDo(CollectFn())
    _ = parts.odd | "odd" >> beam.Map(lambda n: -n) | "collect odd" >> beam.ParDo(CollectFn())


def with_two_consumers(pipeline: beam.Pipeline) -> None:
    made = numbers(pipeline) | "a" >> beam.ParDo(BatchFn("a"))
    _ = made | "b" >> beam.ParDo(BatchFn("b")) | "collect b" >> beam.ParDo(CollectFn())
    _ = made | "alone" >> beam.Map(lambda n: n * 3) | "collect alone" >> beam.ParDo(CollectFn())


def in_windows_with_a_side_input(pipeline: beam.Pipeline) -> None:
    side = AsSingleton(pipeline | "side" >> beam.Create([1000]))
    windowed = numbers(pipeline) | beam.WindowInto(FixedWindows(10))
    typed = windowed | "typed again" >> beam.Map(lambda n: n).with_output_types(np.int64)
    _ = typed | beam.ParDo(AddFn(), side) | beam.ParDo(CollectFn())


def tables(pipeline: beam.Pipeline) -> None:
    rows = numbers(pipeline) | "rows" >> beam.Map(lambda n: Row(int(n), f"n{n}")).with_output_types(Row)
    kept = rows | "a" >> beam.ParDo(TableFn("a")) | "b" >> beam.ParDo(TableFn("b"))
    _ = kept | beam.Map(lambda row: (row.number, row.name)) | beam.ParDo(CollectFn())


PIPELINES: list[Build] = [
    between_steps,
    from_elements_to_elements,
    with_tags,
    with_two_consumers,
    in_windows_with_a_side_input,
    tables,
]


def collected(run: Callable[[], Any]) -> Counter[Any]:
    found.clear()
    batches.clear()
    run()
    return Counter(found)


def on_beams_runner(build: Build) -> None:
    with beam.Pipeline(runner=FnApiRunner(), options=PipelineOptions([])) as pipeline:
        build(pipeline)


@pytest.mark.parametrize("build", PIPELINES, ids=lambda build: build.__name__)
def test_batched_dofns_give_the_results_of_beams_runner(build: Build) -> None:
    ours = collected(lambda: run_batch(build))
    assert ours == collected(lambda: on_beams_runner(build))
    assert ours


@pytest.mark.parametrize("build", PIPELINES, ids=lambda build: build.__name__)
def test_batched_dofns_run_in_streams(build: Build) -> None:
    assert collected(lambda: run_stream(build)) == collected(lambda: on_beams_runner(build))


def test_batches_stay_whole_from_step_to_step() -> None:
    collected(lambda: run_batch(between_steps))
    lengths = {name: [length for of, length in batches if of == name] for name in ("a", "either", "b")}
    assert lengths["a"] == lengths["either"] == lengths["b"]
    assert max(lengths["a"]) > 1


def test_a_table_of_arrow_is_one_object_from_step_to_step() -> None:
    collected(lambda: run_batch(tables))
    by_step = [[(rows, table) for of, rows, table in batches if of == name] for name in ("a", "b")]
    assert by_step[0] == by_step[1]
    assert max(rows for rows, _ in by_step[0]) > 1
