"""Beam's TestStream: a source whose elements, watermarks and clock are written down beforehand.

Each event is an epoch of its own, and the next one waits until nothing is left to do; the commit record says how
many have been played. Where a pipeline has a script, its processing time is the script's, which begins at 0.

A TestStream that names a service gets its events from there, all of them before the first is played; a driver that
takes over asks again, and must get the same.
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
class Event:
    """One event: encoded elements of a step, watermarks of steps (µs), or how far the clock advances (µs)."""

    step: str = ""
    block: bytes = b""
    watermarks: Mapping[str, int] | None = None
    advance_us: int = 0


class Script:
    """The events of a plan's TestStream, in order; after the last one every watermark is at the end of time.

    How far it has been played, and what its clock says, is in the record's state.
    """

    def __init__(self, context: PlanContext) -> None:
        plan = context.plan
        self._steps = {
            stage.step: context.coder(stage.collection).get_impl()
            for stage in plan.stages
            if stage.origin is Origin.SCRIPT
        }
        self._all = tuple(self._events(plan, context)) if self._steps else ()

    def next_event(self, state: EpochState) -> Event | None:
        """The event to play next; None when all have been played, or there is no script."""
        played = state.test_events_applied
        return self._all[played] if played < len(self._all) else None

    def clock_us(self, state: EpochState) -> int | None:
        """The processing time as the script has it; None when there is none."""
        return state.test_clock_us if self._all else None

    def played(self, state: EpochState, event: Event) -> EpochState:
        """The state with an event played: its watermarks set and its clock advanced."""
        marks = {WatermarkKey.carried(step): mark for step, mark in (event.watermarks or {}).items()}
        return replace(
            state,
            watermarks={**state.watermarks, **marks},
            test_events_applied=state.test_events_applied + 1,
            test_clock_us=state.test_clock_us + event.advance_us,
        )

    def _events(self, plan: Plan, context: PlanContext) -> Iterator[Event]:
        payload = api.TestStreamPayload.FromString(plan.script)
        coder = context.coder_by_id(payload.coder_id)
        us = 1 if payload.endpoint.url else 1000  # the payload counts milliseconds, a service microseconds
        for event in _written_down(payload, [step.rpartition("/")[2] for step in self._steps]):
            kind = event.WhichOneof("event")
            if kind == "element_event":
                (step,) = self._named(event.element_event.tag)
                yield Event(step=step, block=self._block(step, coder, event.element_event, us))
            elif kind == "watermark_event":
                mark = event.watermark_event
                yield Event(watermarks=dict.fromkeys(self._named(mark.tag), mark.new_watermark * us))
            else:
                yield Event(advance_us=event.processing_time_event.advance_duration * us)
        yield Event(watermarks=dict.fromkeys(self._steps, MAX_TIMESTAMP.micros))

    def _named(self, tag: str) -> list[str]:
        """The steps of a tag; of a watermark without one, all."""
        tagged = [step for step in self._steps if step.endswith(f"/{tag}")]
        return tagged or list(self._steps)

    def _block(
        self, step: str, coder: Coder, event: api.TestStreamPayload.Event.AddElements, us: int
    ) -> bytes:
        encode = self._steps[step].encode_nested
        return b"".join(
            encode(_placed(coder.decode(element.encoded_element), element.timestamp * us))
            for element in event.elements
        )


def _placed(value: object, at_us: int) -> WindowedValue:
    """An element in the global window, which is that of every TestStream; a holder brings its own time and pane."""
    if isinstance(value, WindowedValueHolder):
        held = value.windowed_value
        return WindowedValue(held.value, held.timestamp, (GlobalWindow(),), held.pane_info)
    return WindowedValue(value, Timestamp(micros=at_us), (GlobalWindow(),))


def _written_down(
    payload: api.TestStreamPayload, outputs: Sequence[str]
) -> Sequence[api.TestStreamPayload.Event]:
    """The events of the payload, or those of its service until that ends."""
    if not payload.endpoint.url:
        return payload.events
    with grpc.insecure_channel(payload.endpoint.url) as channel:
        asked = interactive.EventsRequest(output_ids=outputs)
        return tuple(services.TestStreamServiceStub(channel).Events(asked))
