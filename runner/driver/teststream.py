"""Beam's TestStream: a source whose elements, watermarks and processing time are listed in the program.

Each event takes one epoch. The driver applies an event when earlier epochs left no work; the record counts
the events that were applied. In a pipeline with a TestStream the events set the processing time, which
begins at 0.

A TestStream with the address of a service reads its events from that service, all of them before the first is
applied. A driver that takes over reads them again, and must get the same events.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import grpc
from apache_beam.coders import Coder
from apache_beam.portability.api import beam_interactive_api_pb2 as interactive
from apache_beam.portability.api import beam_interactive_api_pb2_grpc as services
from apache_beam.portability.api import beam_runner_api_pb2 as api
from apache_beam.testing.test_stream import WindowedValueHolder
from apache_beam.transforms.window import GlobalWindow
from apache_beam.utils.timestamp import MAX_TIMESTAMP, Timestamp
from apache_beam.utils.windowed_value import WindowedValue

from penstock.runner.harness.bundle import PlanContext
from penstock.runner.planning.plan import Origin, Plan
from penstock.runner.protocol.record import EpochState, WatermarkKey


@dataclass(frozen=True, slots=True)
class TestStreamEvent:
    """One event: encoded elements of a step, watermarks of steps (µs), or how far the clock advances (µs)."""

    __test__ = False  # pytest collects classes whose names begin with "Test"

    step: str = ""
    block: bytes = b""
    watermarks: Mapping[str, int] | None = None
    advance_us: int = 0


class TestStreamSource:
    """The events of a plan's TestStream, in order. A last event sets every watermark to the end of time.

    The number of applied events and the time of the clock are in the record's state.
    """

    __test__ = False

    def __init__(self, context: PlanContext) -> None:
        plan = context.plan
        self._steps = {
            stage.step: context.coder(stage.collection).get_impl()
            for stage in plan.stages
            if stage.origin is Origin.TEST_STREAM
        }
        # Read eagerly: the number of events must be known to tell when the last one was applied.
        self._all_events = tuple(self._events(plan, context)) if self._steps else ()

    def next_event(self, state: EpochState) -> TestStreamEvent | None:
        """Return the next event; None if all were applied, or if there is no TestStream."""
        applied = state.test_events_applied
        # Events are found by their number, so that a driver that takes over continues with the same event.
        return self._all_events[applied] if applied < len(self._all_events) else None

    def clock_us(self, state: EpochState) -> int | None:
        """Return the processing time of the TestStream; None if there is no TestStream."""
        return state.test_clock_us if self._all_events else None

    def apply(self, state: EpochState, event: TestStreamEvent) -> EpochState:
        """Return the state with the watermarks set and the clock advanced; a task emits the elements."""
        moved = {WatermarkKey.carried(step): us for step, us in (event.watermarks or {}).items()}
        return replace(
            state,
            watermarks={**state.watermarks, **moved},
            test_events_applied=state.test_events_applied + 1,
            test_clock_us=state.test_clock_us + event.advance_us,
        )

    def _events(self, plan: Plan, context: PlanContext) -> Iterator[TestStreamEvent]:
        payload = api.TestStreamPayload.FromString(plan.script)
        coder = context.coder_by_id(payload.coder_id)
        us = 1 if payload.endpoint.url else 1000  # the payload counts milliseconds, a service microseconds
        for event in _events_of(payload, [step.rpartition("/")[2] for step in self._steps]):
            kind = event.WhichOneof("event")
            if kind == "element_event":
                (step,) = self._steps_of(event.element_event.tag)
                yield TestStreamEvent(step=step, block=self._block(step, coder, event.element_event, us))
            elif kind == "watermark_event":
                watermark = event.watermark_event
                yield TestStreamEvent(
                    watermarks=dict.fromkeys(self._steps_of(watermark.tag), watermark.new_watermark * us)
                )
            else:
                yield TestStreamEvent(advance_us=event.processing_time_event.advance_duration * us)
        # Beam closes a TestStream implicitly: without this event the pipeline would never be done.
        yield TestStreamEvent(watermarks=dict.fromkeys(self._steps, MAX_TIMESTAMP.micros))

    def _steps_of(self, tag: str) -> list[str]:
        """The steps of a tag. A watermark without a tag is for all steps."""
        # A step is named "<transform>/<tag>" (`planning/phases.py`), so the end of the name identifies the output.
        tagged = [step for step in self._steps if step.endswith(f"/{tag}")]
        return tagged or list(self._steps)

    def _block(
        self, step: str, coder: Coder, event: api.TestStreamPayload.Event.AddElements, us: int
    ) -> bytes:
        encode = self._steps[step].encode_nested
        return b"".join(
            encode(_windowed(coder.decode(element.encoded_element), element.timestamp * us))
            for element in event.elements
        )


def _windowed(value: object, at_us: int) -> WindowedValue:
    """An element in the global window, as every TestStream has it. A holder has its own timestamp and pane."""
    if isinstance(value, WindowedValueHolder):
        held = value.windowed_value
        return WindowedValue(held.value, held.timestamp, (GlobalWindow(),), held.pane_info)
    return WindowedValue(value, Timestamp(micros=at_us), (GlobalWindow(),))


def _events_of(
    payload: api.TestStreamPayload, outputs: Sequence[str]
) -> Sequence[api.TestStreamPayload.Event]:
    """The events of the payload, or all events of its service."""
    if not payload.endpoint.url:
        return payload.events
    with grpc.insecure_channel(payload.endpoint.url) as channel:
        request = interactive.EventsRequest(output_ids=outputs)
        return tuple(services.TestStreamServiceStub(channel).Events(request))
