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

from penstock.attempt import Attempt
from penstock.event import ChangeEvent
from penstock.runner.protocol.loop import Epoch
from penstock.runner.protocol.record import CommitRecord, EpochState
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
    _sent: list[Any] = field(default_factory=list)

    def __call__(
        self,
        *,
        error_output: bool = True,
        fails_after_sending: bool = False,
        folder: Path | None = None,
        retries: int = 0,
    ) -> None:
        """Run the pipeline from its checkpoint to its end.

        `fails_after_sending`: the driver ends once after each publication, before the commit that would say so.
        `retries`: how often an epoch that failed is tried again.
        """
        options = {"roll_seconds": 0, **self.target.options(), **self.options}

        def build(pipeline: beam.Pipeline) -> None:
            events = pipeline | self._stream() | beam.FlatMap(events_of_number).with_output_types(ChangeEvent)
            refused = self.target.write(events, error_output=error_output, **options)
            write_refused(refused, str(self.folder / "refused"))

        faulty = self._fail_after_sending if fails_after_sending else lambda epoch: epoch
        run_stream(build, folder=folder or self.folder, faulty=faulty, retries=retries)

    def _stream(self) -> TestStream:
        stream, size = TestStream(), STATEMENTS // self.epochs
        for first in range(0, STATEMENTS, size):
            stream = stream.add_elements(list(range(first, first + size)))
        return stream.advance_watermark_to_infinity()

    def _fail_after_sending(self, epoch: Epoch) -> Epoch:
        def run(record: CommitRecord, attempt: Attempt) -> EpochState | None:
            state = epoch(record, attempt)
            # A driver that takes over finds the same publications in its record.
            if (sent := record.state.publications) and sent not in self._sent:
                self._sent.append(sent)
                raise RuntimeError("the driver ends after its sink has sent")
            return state

        return run

    def faults(self) -> list[str]:
        """Compare the target and the error outputs with the source."""
        self.network.recover()
        refused = refusal_faults(self.folder / "refused", self.target.error_outputs)
        return self.target.faults(Truth(STATEMENTS)) + refused


def events_of_number(number: int) -> Iterator[ChangeEvent]:
    """Yield the events of a statement of each writer."""
    for writer in WRITERS:
        yield from events_of({"key": writer, "n": number})


def patched(target: TargetUnderTest) -> Iterator[pytest.MonkeyPatch]:
    """Yield a patch in which the target's network carries the requests."""
    with pytest.MonkeyPatch.context() as patch:
        target.carry(patch)
        yield patch
