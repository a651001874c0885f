"""The output watermark of the file sink: unpublished lines hold it back, and no other line does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.transforms.window import FixedWindows

from penstock.io.files import WriteToJsonLines
from tests.panes.book import Step, elements, script, watermark
from tests.simulation.stream import run_stream

counted: list[int] = []

LONG = "x" * 100


@pytest.mark.parametrize("in_order", [False, True])
def test_a_full_file_does_not_let_the_watermark_pass_the_remaining_lines(
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
            | WriteToJsonLines(
                str(tmp_path), table="t", roll_seconds=60, roll_bytes=100, in_event_time_order=in_order
            )
        )
        by_second = published | beam.WindowInto(FixedWindows(1)) | beam.Map(lambda file: ("k", file.records))
        _ = by_second | beam.GroupByKey() | beam.MapTuple(note)

    counted.clear()
    run_stream(build)
    assert sum(counted) == 4


def note(key: str, lines: Any) -> None:
    counted.extend(lines)


happened: list[str] = []

PUBLISHED = "the window of second 5 is closed"


@pytest.mark.parametrize(
    ("roll_seconds", "roll_bytes", "later"),
    [(0, 1 << 20, "b@9"), (10**6, 100, f"{LONG}@9")],
    ids=["due", "full"],
)
def test_in_event_time_order_a_published_line_does_not_hold_the_watermark(
    tmp_path: Path, roll_seconds: float, roll_bytes: int, later: str
) -> None:
    play(tmp_path, [elements("a@5", later), watermark(7), watermark(8)], roll_seconds, roll_bytes)
    assert happened[:2] == [PUBLISHED, "marker"]


def test_in_event_time_order_a_due_file_rolls_as_soon_as_the_watermark_has_passed_its_earliest_line(
    tmp_path: Path,
) -> None:
    play(tmp_path, [elements("a@5"), watermark(4), watermark(5.5), watermark(6.5), watermark(7)], 0, 1 << 20)
    assert happened[:2] == [PUBLISHED, "marker"]


def test_in_event_time_order_a_line_that_is_earlier_than_the_others_holds_the_watermark(
    tmp_path: Path,
) -> None:
    steps = [elements("b@9"), watermark(4), elements("a@5"), watermark(4.5), watermark(6.5)]
    play(tmp_path, steps, 0, 1 << 20)
    assert happened[:2] == [PUBLISHED, "marker"]


def play(folder: Path, steps: list[Step], roll_seconds: float, roll_bytes: int) -> None:
    """Run the steps and then a marker; note the marker, and when the window of the line of second 5 closes."""
    happened.clear()

    def build(p: beam.Pipeline) -> None:
        lines = p | script(*steps, elements("marker@20"))
        _ = lines | beam.Filter(lambda line: line == "marker") | beam.Map(note_marker)
        published = lines | WriteToJsonLines(
            str(folder), table="t", roll_seconds=roll_seconds, roll_bytes=roll_bytes, in_event_time_order=True
        )
        by_second = published | beam.WindowInto(FixedWindows(1)) | beam.Map(lambda file: ("k", file.records))
        _ = by_second | beam.GroupByKey() | beam.ParDo(_NoteFn())

    run_stream(build)


class _NoteFn(beam.DoFn):
    def process(self, element: Any, window: Any = beam.DoFn.WindowParam) -> None:
        if window.start == 5:
            happened.append(PUBLISHED)


def note_marker(line: str) -> None:
    happened.append(line)
