"""Transforms are asked before a pipeline starts whether they can do their work."""

from __future__ import annotations

import apache_beam as beam
import pytest

from penstock.preflight import preflight


class Checked(beam.PTransform):
    """Notes that it was asked; raises what it is told to."""

    def __init__(self, asked: list[str], name: str, error: Exception | None = None) -> None:
        super().__init__()
        self._asked = asked
        self._name = name
        self._error = error

    def check_start(self) -> None:
        self._asked.append(f"start of {self._name}")

    def check(self) -> None:
        self._asked.append(self._name)
        if self._error:
            raise self._error

    def expand(self, begin: beam.pvalue.PBegin) -> beam.PCollection:
        return begin | beam.Create([1])


def test_every_transform_that_can_check_is_asked_once_also_inside_others() -> None:
    asked: list[str] = []

    class Outer(beam.PTransform):
        def expand(self, begin: beam.pvalue.PBegin) -> beam.PCollection:
            return begin | "Inner" >> Checked(asked, "inner")

    pipeline = beam.Pipeline()
    _ = pipeline | "Outer" >> Outer()
    _ = pipeline | "Plain" >> Checked(asked, "plain")
    preflight(pipeline)
    assert asked == ["start of inner", "inner", "start of plain", "plain"]


def test_the_start_of_a_pipeline_that_resumes_is_not_checked() -> None:
    asked: list[str] = []
    pipeline = beam.Pipeline()
    _ = pipeline | Checked(asked, "x")
    preflight(pipeline, resuming=True)
    assert asked == ["x"]


def test_an_error_of_a_check_is_raised_unchanged() -> None:
    pipeline = beam.Pipeline()
    _ = pipeline | Checked([], "x", LookupError("no such stream"))
    with pytest.raises(LookupError, match="no such stream"):
        preflight(pipeline)
