"""The check of events before a sink keeps few of them, however many a bundle has."""

from __future__ import annotations

from typing import Any

from apache_beam.transforms.window import GlobalWindow
from apache_beam.utils.timestamp import Timestamp

from penstock.event import ChangeEvent, Kind
from penstock.io.columnar.check import TOGETHER, TOGETHER_BYTES, _CheckFn
from tests.unit.formats.events import event_of, schema_of

SCHEMA = schema_of({"id": Kind.INT64}, text=Kind.STRING)


def emitted(events: list[ChangeEvent]) -> list[int]:
    """Return how many events the step emits at each event, and at the end of the bundle."""
    fn = _CheckFn("a table", "current", divides=False)
    fn.start_bundle()
    found = [list(fn.process(each, Timestamp(n), GlobalWindow())) for n, each in enumerate(events)]
    found.append(list(fn.finish_bundle()))
    every: list[Any] = [value for part in found for value in part]
    assert [each.value for each in every] == events, "all, in their order"
    assert [each.timestamp for each in every] == [Timestamp(n) for n in range(len(events))]
    return [len(part) for part in found]


def events_of(number: int, text: str) -> list[ChangeEvent]:
    return [event_of(SCHEMA, after={"id": n, "text": text}) for n in range(number)]


def test_a_bundle_of_many_events_is_emitted_while_it_comes() -> None:
    counts = emitted(events_of(2 * TOGETHER + 3, "x"))
    assert [count for count in counts if count] == [TOGETHER, TOGETHER, 3]


def test_large_events_are_emitted_a_few_at_a_time() -> None:
    assert max(emitted(events_of(20, "x" * (TOGETHER_BYTES // 4)))) <= 5
