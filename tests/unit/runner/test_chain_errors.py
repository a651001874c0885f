"""Errors in chains of simple steps: whose they are, and which results and types are checked."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.transforms.window import GlobalWindows
from apache_beam.typehints.typecheck import PerformanceTypeCheckVisitor, TypeCheckVisitor

from tests.unit.runner.chain_stages import (
    MANY,
    CollectFn,
    EachFn,
    calls,
    elements,
    forget,
    processor,
    run_bundle,
    values,
)


@pytest.fixture(autouse=True)
def nothing_yet() -> None:
    forget()


@pytest.mark.parametrize("step", ["number", "two", "keep", "each", "last"])
@pytest.mark.parametrize("count", [0, MANY - 1], ids=["sampled", "in the chain"])
def test_an_exception_has_the_name_of_its_step_and_the_traceback_of_the_user(
    step: str, count: int, caplog: pytest.LogCaptureFixture
) -> None:
    def fails_in(name: str, result: Any) -> Callable[[int], Any]:
        def fail(n: int) -> Any:
            if name == step and n == count:
                raise LookupError(f"no {n}")
            return result(n)

        return fail

    def build(numbers: beam.PCollection) -> None:
        _ = (
            numbers
            | "two" >> beam.FlatMap(fails_in("two", lambda n: iter([n])))
            | "keep" >> beam.Filter(fails_in("keep", lambda n: True))
            | "each" >> beam.ParDo(EachFn(fails_in("each", lambda n: [n])))
            | "last" >> beam.Map(fails_in("last", lambda n: n))
            | beam.ParDo(CollectFn())
        )

    given = [*elements(MANY), GlobalWindows.windowed_value(b"word")]
    with caplog.at_level(logging.ERROR), pytest.raises((LookupError, ValueError)) as failed:
        run_bundle(processor(build), given[: count + 1] if step != "number" else [*given[:count], given[-1]])
    assert f"[while running '{step}']" in str(failed.value)
    assert len([record for record in caplog.records if "while running" in record.getMessage()]) == 1
    if step != "number":
        assert isinstance(failed.value, LookupError)
        assert "raise LookupError" in "".join(traceback.format_exception(failed.value))


def test_an_exception_of_a_generator_belongs_to_its_step_and_not_to_the_one_that_it_feeds() -> None:
    def build(numbers: beam.PCollection) -> None:
        _ = (
            numbers
            | "generator" >> beam.FlatMap(ends_badly)
            | "next" >> beam.Map(lambda n: n)
            | "last" >> beam.Map(lambda n: n)
            | beam.ParDo(CollectFn())
        )

    with pytest.raises(LookupError, match="while running 'generator'"):
        run_bundle(processor(build), elements(MANY))
    assert len(values()) == MANY


def ends_badly(n: int) -> Iterator[int]:
    yield n
    if n == MANY - 1:
        raise LookupError("no more")


def test_an_exception_of_a_later_step_ends_a_generator_before_it_is_reported() -> None:
    def build(numbers: beam.PCollection) -> None:
        _ = numbers | "open" >> beam.ParDo(OpenFn()) | "fail" >> beam.Map(lambda n: 1 // (MANY - 1 - n))

    with pytest.raises(ZeroDivisionError) as failed:
        run_bundle(processor(build), elements(MANY))
    assert "while running 'fail'" in str(failed.value)
    assert calls == ["closed"] * MANY


class OpenFn(beam.DoFn):
    def process(self, element: int) -> Iterator[int]:
        try:
            yield element
        finally:
            calls.append("closed")


@pytest.mark.parametrize("result", ["text", b"bytes", {"a": 1}], ids=["str", "bytes", "dict"])
def test_the_first_result_of_a_dofn_is_checked_as_beam_does(result: Any) -> None:
    def build(numbers: beam.PCollection) -> None:
        _ = (
            numbers
            | beam.Map(lambda n: n)
            | "own" >> beam.ParDo(EachFn(lambda n: result))
            | beam.ParDo(CollectFn())
        )

    with pytest.raises(TypeError, match="from a ParDo or FlatMap is not allowed.*while running 'own'"):
        run_bundle(processor(build), elements(1))


def test_a_dofn_whose_first_call_comes_late_is_checked_then() -> None:
    def build(numbers: beam.PCollection) -> None:
        late = numbers | beam.Filter(lambda n: n >= MANY - 1)
        _ = late | "own" >> beam.ParDo(EachFn(lambda n: "text")) | beam.ParDo(CollectFn())

    with pytest.raises(TypeError, match="from a ParDo or FlatMap is not allowed"):
        run_bundle(processor(build), elements(MANY))


@pytest.mark.parametrize("result", [0, False, 1.5])
def test_a_result_that_is_no_iterable_is_an_error_of_the_step(result: Any) -> None:
    def build(numbers: beam.PCollection) -> None:
        steps = numbers | "own" >> beam.FlatMap(lambda n: result if n == MANY - 1 else [n])
        _ = steps | beam.Map(lambda n: n) | beam.ParDo(CollectFn())

    with pytest.raises(TypeError, match="not iterable.*while running 'own'"):
        run_bundle(processor(build), elements(MANY))


def test_types_are_checked_when_asked_for() -> None:
    def build(numbers: beam.PCollection) -> None:
        wrong = numbers | "wrong" >> beam.Map(lambda n: str(n) if n == MANY - 1 else n).with_output_types(int)
        _ = wrong | beam.Map(lambda n: n) | beam.ParDo(CollectFn())

    # As `Pipeline.run` does with `runtime_type_check`.
    with pytest.raises(Exception, match="Runtime type violation detected within ParDo.wrong"):
        run_bundle(processor(build, TypeCheckVisitor()), elements(MANY))


def test_types_of_sampled_elements_are_checked_when_asked_for() -> None:
    def build(numbers: beam.PCollection) -> None:
        wrong = numbers | "wrong" >> beam.Map(str).with_output_types(int)
        _ = wrong | beam.Map(lambda n: n) | beam.ParDo(CollectFn())

    # As `Pipeline.run` does with `performance_runtime_type_check`.
    with pytest.raises(
        Exception, match="Runtime type violation detected within ParDo.wrong.*while running 'wrong'"
    ):
        run_bundle(processor(build, PerformanceTypeCheckVisitor()), elements(1))
