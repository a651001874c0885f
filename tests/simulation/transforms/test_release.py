"""Values of one timestamp that arrive in several epochs, for each transform with a buffer."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.io.restriction_trackers import OffsetRange, OffsetRestrictionTracker
from apache_beam.transforms.core import RestrictionProvider
from apache_beam.utils.timestamp import Duration

from penstock.event import ChangeEvent
from penstock.transforms import AssembleTransactions, Barriers, MaterializeRows, OrderByKey, ShardByKey
from tests.simulation.stream import run_stream
from tests.simulation.transforms.scripts import NoteFn, event, seen, stamped


class OneEventPerEpochFn(beam.DoFn, RestrictionProvider):
    """Emits one event in each epoch. The watermark passes all of them in the epoch of the last one."""

    def __init__(self, events: Sequence[ChangeEvent]) -> None:
        super().__init__()
        self._events = events

    def initial_restriction(self, element: int) -> OffsetRange:
        return OffsetRange(0, len(self._events))

    def create_tracker(self, restriction: OffsetRange) -> OffsetRestrictionTracker:
        return OffsetRestrictionTracker(restriction)

    def restriction_size(self, element: int, restriction: OffsetRange) -> int:
        return int(restriction.size())

    @beam.DoFn.unbounded_per_element()
    def process(self, element: int, tracker: Any = beam.DoFn.RestrictionParam()) -> Iterator[Any]:
        number = tracker.current_restriction().start
        if tracker.try_claim(number):
            yield stamped(self._events[number])
            if number + 1 < len(self._events):
                tracker.defer_remainder(Duration(0))


def order_by_key(events: Any) -> Any:
    return events | OrderByKey()


def materialize_rows(events: Any) -> Any:
    return events | MaterializeRows()


def assemble_transactions(events: Any) -> Any:
    return events | AssembleTransactions() | beam.FlatMap(lambda transaction: transaction.events)


def barriers(events: Any) -> Any:
    records = events | ShardByKey(1) | Barriers(shards=1)
    return records | beam.Values() | beam.Filter(lambda record: not record.is_barrier)


@pytest.mark.parametrize("apply", [order_by_key, materialize_rows, assemble_transactions, barriers])
def test_events_of_one_time_that_arrive_in_several_epochs_are_all_emitted(
    apply: Callable[[Any], Any],
) -> None:
    events = [event(1, 1_000_000, sequence=number, State=f"s{number}") for number in range(3)]
    seen.clear()

    def build(pipeline: beam.Pipeline) -> Any:
        read = beam.ParDo(OneEventPerEpochFn(events)).with_output_types(ChangeEvent)
        return apply(pipeline | beam.Create([0], reshuffle=False) | read) | "Note" >> beam.ParDo(NoteFn())

    run_stream(build)
    emitted = [getattr(element, "event", element) for element, _ in seen]
    assert [each.version for each in emitted] == [each.version for each in events]
