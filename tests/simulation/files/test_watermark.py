"""What is published is never late: the watermark waits for the lines of a lane, whichever of them rolls first."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.transforms.window import FixedWindows

from penstock.io.files import WriteJsonLines
from tests.panes.book import Step, elements, script, watermark
from tests.simulation.stream import run_stream

counted: list[int] = []

LONG = "x" * 100


@pytest.mark.parametrize("in_order", [False, True])
def test_a_file_that_is_full_does_not_let_the_watermark_pass_the_lines_that_it_leaves(
    tmp_path: Path, in_order: bool
) -> None:
    steps: list[Step] = [
        elements("a@5", "b@6"),
        watermark(5.5),
        elements(f"{LONG}@9"),
        watermark(8),
        elements(f"{LONG}@9.5"),
    ]

    def build(p: beam.Pipeline) -> None:
        published = (
            p
            | script(*steps)
            | WriteJsonLines(
                str(tmp_path), table="t", roll_seconds=60, roll_bytes=100, in_event_time_order=in_order
            )
        )
        by_second = published | beam.WindowInto(FixedWindows(1)) | beam.Map(lambda file: ("k", file.lines))
        _ = by_second | beam.GroupByKey() | beam.MapTuple(note)

    counted.clear()
    run_stream(build)
    assert sum(counted) == 4


def note(key: str, lines: Any) -> None:
    counted.extend(lines)
