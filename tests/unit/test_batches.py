"""Batches of elements: each transform over single elements gives the same with batches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.runners.portability.fn_api_runner import FnApiRunner
from apache_beam.testing.util import assert_that, equal_to

from penstock.batches import ElementBatch, ElementBatchCoder, SingleElements, is_batched
from penstock.errors import DecodeError, UnavailableError
from penstock.io.staging.blocks import RecordRun
from penstock.io.staging.collect import CollectRecordsFn
from penstock.transforms.element_transform import ElementTransform
from tests.support.batches import Elements

TIMED = [("a", 3_000_000), ("bb", 1_000_000), ("", 2_000_000), ("cc", 5_000_000), ("d", 4_000_000)]


class Timed(beam.DoFn):
    def process(self, element: Any, timestamp: Any = beam.DoFn.TimestampParam) -> Any:
        yield element, timestamp.micros


def letters(text: str) -> list[str]:
    """Several outputs for one element, or none."""
    return list(text)


def outputs(source: Elements, *steps: beam.PTransform) -> Callable[[beam.Pipeline], Any]:
    def build(pipeline: beam.Pipeline) -> Any:
        elements = pipeline | source
        for number, step in enumerate(steps):
            elements |= f"Step {number}" >> step
        return elements | SingleElements() | beam.ParDo(Timed())

    return build


def expect(build: Callable[[beam.Pipeline], Any], expected: list[Any]) -> None:
    with beam.Pipeline(FnApiRunner()) as pipeline:
        assert_that(build(pipeline), equal_to(expected))


def test_a_batch_survives_its_coder_and_is_at_its_earliest_time() -> None:
    batch = ElementBatch(["x", ("y", 2)], [7, 5])
    coder = ElementBatchCoder()
    assert coder.decode(coder.encode(batch)) == batch
    assert batch.windowed().timestamp.micros == 5


@pytest.mark.parametrize("size", [1, 2, 100])
def test_single_elements_have_their_own_times(size: int) -> None:
    expect(outputs(Elements(TIMED, size=size).in_batches()), TIMED)


@pytest.mark.parametrize("size", [1, 2, 100])
def test_a_transform_gives_the_same_for_batches_and_for_single_elements(size: int) -> None:
    expected = [(letter, time_us) for text, time_us in TIMED for letter in text]
    steps = ElementTransform(letters, str), ElementTransform(lambda each: [each], str)
    expect(outputs(Elements(TIMED), *steps), expected)
    expect(outputs(Elements(TIMED, size=size).in_batches(), *steps), expected)


def test_a_transform_keeps_batches() -> None:
    pipeline = beam.Pipeline()
    assert is_batched(pipeline | Elements(TIMED).in_batches() | ElementTransform(letters, str))


def refuse_bb(text: str) -> Any:
    yield text  # an output before the error must not come
    if text == "bb":
        raise ValueError("no bb")


@pytest.mark.parametrize("batched", [False, True])
def test_a_bad_element_leaves_its_batch_and_keeps_its_time(batched: bool) -> None:
    source = Elements(TIMED, size=100)
    with beam.Pipeline(FnApiRunner()) as pipeline:
        elements = pipeline | (source.in_batches() if batched else source)
        good, bad = elements | ElementTransform(refuse_bb, str).with_exception_handling()
        assert is_batched(good) is batched
        timed = good | SingleElements() | "Good" >> beam.ParDo(Timed())
        assert_that(timed, equal_to([each for each in TIMED if each[0] != "bb"]), label="good")
        failures = (
            bad | "Bad" >> beam.ParDo(Timed()) | beam.Map(lambda each: (each[0][0], each[0][1][:2], each[1]))
        )
        expected = [("bb", (ValueError, "ValueError('no bb')"), 1_000_000)]
        assert_that(failures, equal_to(expected), label="bad")


def runs_of(elements: list[str], times_us: list[int]) -> tuple[list[RecordRun], list[int]]:
    if "bb" in elements:
        raise ValueError("no bb")
    return [RecordRun("t", None, [each.encode() for each in elements], times_us)], [min(times_us)]


def test_a_bad_element_leaves_its_batch_although_the_batch_is_processed_as_a_whole() -> None:
    with beam.Pipeline(FnApiRunner()) as pipeline:
        elements = pipeline | Elements([*TIMED, ("e", 9_000_000)], size=5).in_batches()
        step = ElementTransform(refuse_bb, str, whole=runs_of).with_exception_handling()
        good, bad = elements | step
        # The batch with the bad element is processed one by one.
        run = RecordRun("t", None, [b"e"], [9_000_000])
        assert_that(
            good | SingleElements(),
            equal_to([*(text for text, _ in TIMED if text != "bb"), run]),
            label="good",
        )
        assert_that(bad | beam.Map(lambda each: each[0]), equal_to(["bb"]), label="bad")


def test_options_of_exception_handling_apply_to_single_elements() -> None:
    with beam.Pipeline(FnApiRunner()) as pipeline:
        elements = pipeline | Elements(TIMED, size=100).in_batches()
        good, bad = elements | ElementTransform(refuse_bb, str).with_exception_handling(exc_class=ValueError)
        assert_that(bad | beam.Map(lambda each: each[0]), equal_to(["bb"]), label="bad")
        assert_that(good, equal_to([text for text, _ in TIMED if text != "bb"]), label="good")


@pytest.mark.parametrize(("error", "fails"), [(UnavailableError("down"), True), (DecodeError("bad"), False)])
def test_an_error_of_a_service_fails_the_bundle_and_is_no_dead_letter(error: Exception, fails: bool) -> None:
    def refuse(text: str) -> list[str]:
        raise error

    def run() -> None:
        with beam.Pipeline(FnApiRunner()) as pipeline:
            elements = pipeline | Elements(TIMED).in_batches()
            elements | ElementTransform(refuse, str).with_exception_handling()

    if not fails:
        run()
        return
    with pytest.raises(Exception, match="down"):
        run()


@pytest.mark.parametrize("batched", [False, True])
def test_a_sink_collects_each_element_of_a_batch_with_its_time(batched: bool) -> None:
    source = Elements([*TIMED, ("e", 9_000_000)], size=4)
    collect = beam.ParDo(CollectRecordsFn(str.encode, lambda text, time_us: f"{time_us % 2_000_000}"))
    with beam.Pipeline(FnApiRunner()) as pipeline:
        blocks = pipeline | (source.in_batches() if batched else source) | collect
        records = blocks | beam.FlatMap(lambda each: [(each[0], *record) for record in each[1].records()])
        expected = [
            (f"{time_us % 2_000_000}", time_us, text.encode()) for text, time_us in [*TIMED, ("e", 9_000_000)]
        ]
        assert_that(records, equal_to(expected))
