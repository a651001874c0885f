"""The pipeline of the conformance tests of sinks: the source of the kill campaigns, cut into epochs, and one sink.

It runs on the real driver and the real tasks, in this process.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.testing.test_stream import TestStream

from penstock.event import ChangeEvent
from tests.simulation.stream import run_stream
from tests.support.sinks.network import Network
from tests.support.sinks.refused import refusal_faults, write_refused
from tests.support.sinks.source import BAD_NUMBER, WRITERS, Truth, events_of
from tests.support.sinks.target import TargetUnderTest

STATEMENTS = BAD_NUMBER + 4
"""Statements of each writer; the row that targets refuse comes shortly before the end."""
EPOCHS = 3
"""Of equal size."""


@dataclass
class SinkRun:
    """A sink between the source and its target, with its checkpoint in `folder`. Each call is a new driver."""

    target: TargetUnderTest
    network: Network
    folder: Path
    options: dict[str, Any] = field(default_factory=dict)
    epochs: int = EPOCHS

    def __call__(
        self, *, error_output: bool = True, fails_after_sending: bool = False, folder: Path | None = None
    ) -> None:
        """Run the pipeline from its checkpoint to its end.

        `fails_after_sending`: each epoch fails once, when its sink has sent what the epoch before it has committed.
        """
        options = {"roll_seconds": 0, **self.target.options(), **self.options}

        def build(pipeline: beam.Pipeline) -> None:
            numbers = pipeline | self._stream()
            if fails_after_sending:
                marks = str(self.folder / "failed")
                _ = numbers | beam.Reshuffle() | "Fail" >> beam.ParDo(FailOnceFn(marks, self._size))
            events = numbers | beam.FlatMap(events_of_number).with_output_types(ChangeEvent)
            refused = self.target.write(events, error_output=error_output, **options)
            write_refused(refused, str(self.folder / "refused"))

        run_stream(build, folder=folder or self.folder)

    @property
    def _size(self) -> int:
        return STATEMENTS // self.epochs

    def _stream(self) -> TestStream:
        stream = TestStream()
        for first in range(0, STATEMENTS, self._size):
            stream = stream.add_elements(list(range(first, first + self._size)))
        # An epoch without events, so that the last events are sent in an epoch that may fail too.
        return stream.add_elements([STATEMENTS]).advance_watermark_to_infinity()

    def faults(self) -> list[str]:
        """Compare the target and the error outputs with the source."""
        self.network.recover()
        refused = refusal_faults(self.folder / "refused", self.target.error_outputs)
        return self.target.faults(Truth(STATEMENTS)) + refused


def events_of_number(number: int) -> Iterator[ChangeEvent]:
    """Yield the events of a statement of each writer."""
    if number < STATEMENTS:
        for writer in WRITERS:
            yield from events_of({"key": writer, "n": number})


class FailOnceFn(beam.DoFn):
    """Fails at the first element of each epoch, once. A file of `marks` remembers it for the next driver."""

    def __init__(self, marks: str, size: int) -> None:
        self._marks, self._size = Path(marks), size

    def process(self, number: int) -> None:
        self._marks.mkdir(exist_ok=True)
        mark = self._marks / str(number)
        if number % self._size == 0 and not mark.exists():
            mark.touch()
            raise RuntimeError("the driver ends after its sink has sent")


def patched(target: TargetUnderTest) -> Iterator[pytest.MonkeyPatch]:
    """Yield a patch in which the target's network carries the requests."""
    with pytest.MonkeyPatch.context() as patch:
        target.carry(patch)
        yield patch
