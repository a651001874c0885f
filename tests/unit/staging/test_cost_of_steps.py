"""A sink does no work for each element that changes nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.transforms.window import FixedWindows

from penstock.io.files import WriteToJsonLines


def steps_of_a_sink(output: Path, windowing: beam.PTransform | None) -> set[str]:
    pipeline = beam.Pipeline()
    elements = pipeline | beam.Create(["a"])
    if windowing is not None:
        elements |= windowing
    _ = elements | "Sink" >> WriteToJsonLines(output, table="t")
    proto = pipeline.to_runner_api()
    return {each.unique_name for each in proto.components.transforms.values()}


@pytest.mark.parametrize(
    ("windowing", "assigns"),
    [(None, False), (beam.WindowInto(FixedWindows(10)), True)],
    ids=["global", "fixed"],
)
def test_a_window_is_assigned_only_to_elements_that_are_in_another_one(
    tmp_path: Path, windowing: Any, assigns: bool
) -> None:
    assert ("Sink/Write/Global" in steps_of_a_sink(tmp_path, windowing)) == assigns


def test_the_key_of_an_element_is_not_hashed_for_a_single_shard(tmp_path: Path) -> None:
    def key(element: str) -> str:
        raise AssertionError("one shard needs no key")

    lines = WriteToJsonLines(tmp_path, table="t", key=key)._lines
    assert lines.bucket("a", 0) == "t/1970-01-01T00/00-of-01"
