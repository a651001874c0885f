"""The first step of a staged sink: it collects elements into blocks of records."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import apache_beam as beam
from apache_beam.metrics import Metrics
from apache_beam.transforms.window import GlobalWindows, TimestampedValue
from apache_beam.utils.timestamp import Timestamp
from apache_beam.utils.windowed_value import WindowedValue

from penstock.batches import ElementBatch
from penstock.io.staging.blocks import RecordBlock, RecordRun
from penstock.io.staging.metrics import NAMESPACE

Place = tuple[str, Sequence[int], Sequence[bytes]]
"""A bucket, and the event times and records that belong to it."""

BLOCK_BYTES = 256 * 1024
"""A bundle emits its blocks when all of them together have this many bytes."""


def in_global_window(elements: beam.PCollection[Any]) -> beam.PCollection[Any]:
    """Return the elements in the global window.

    State and timers of a sink are kept per window, and a file or batch must not end with a window of the input.
    """
    # Elements of a source are there already. To assign the window again would cost a call and two objects for each.
    if isinstance(elements.windowing.windowfn, GlobalWindows):
        return elements
    return elements | "Global" >> beam.WindowInto(GlobalWindows())


@beam.typehints.with_output_types(tuple[str, RecordBlock])
class CollectRecordsFn(beam.DoFn):
    """Element, or batch of elements, to (bucket, block of records). A block holds what one bundle has for a bucket.

    In a batch, a `RecordRun` is records that are encoded already.

    Order: the records of a bucket keep the order of the bundle's elements. What repeats: everything, with the bundle.
    Watermark: a block has the earliest event time of its records. State: at most `BLOCK_BYTES` of records, until the
    bundle ends.

    Args:
        encode: a function from an element to its record.
        bucket: a function from an element and its event time, in µs since 1970, to its bucket.
        places: a function from a run to the buckets of its records; None: there are no runs.
        closes: buckets that get no records any more, and of which a checkpoint may have open files. They are closed in
            the epoch of the records that come now, and so are not published after them.
    """

    def __init__(
        self,
        encode: Callable[[Any], bytes],
        bucket: Callable[[Any, int], str],
        *,
        places: Callable[[RecordRun], Iterable[Place]] | None = None,
        closes: Sequence[str] = (),
    ) -> None:
        self._encode = encode
        self._bucket = bucket
        self._places = places
        self._closes = tuple(closes)
        self._records: dict[str, tuple[list[int], list[bytes]]] = {}
        self._bytes = 0
        self._counter = Metrics.counter(NAMESPACE, "staged_records")

    def start_bundle(self) -> None:
        self._records, self._bytes = {}, 0

    def process(
        self, element: Any, timestamp: Any = beam.DoFn.TimestampParam
    ) -> list[TimestampedValue] | None:
        if type(element) is ElementBatch:
            for each, event_us in zip(element.elements, element.times_us, strict=True):
                if type(each) is RecordRun and self._places is not None:
                    for place in self._places(each):
                        self._add(*place)
                else:
                    self._add(self._bucket(each, event_us), (event_us,), (self._encode(each),))
        else:
            event_us = timestamp.micros
            self._add(self._bucket(element, event_us), (event_us,), (self._encode(element),))
        # The limit is for all buckets together: many buckets with few records each need as much memory as one.
        # Each output has the timestamp of an element of this bundle, so the watermark has not passed it.
        return self._blocks() if self._bytes >= BLOCK_BYTES else None

    def _add(self, bucket: str, times_us: Sequence[int], records: Sequence[bytes]) -> None:
        found = self._records.get(bucket)
        if found is None:
            found = self._records[bucket] = ([], [])
        found[0].extend(times_us)
        found[1].extend(records)
        self._bytes += sum(map(len, records))

    def finish_bundle(self) -> Iterator[WindowedValue]:
        for each in self._blocks():
            yield GlobalWindows.windowed_value(each.value, each.timestamp)

    def _blocks(self) -> list[TimestampedValue]:
        records, self._records, self._bytes = self._records, {}, 0
        self._counter.inc(sum(len(times_us) for times_us, _ in records.values()))
        blocks = {bucket: RecordBlock.joined(*each) for bucket, each in records.items()}
        found = [
            TimestampedValue((bucket, block), Timestamp(micros=block.earliest_us))
            for bucket, block in blocks.items()
        ]
        if found:
            earliest = min(each.timestamp for each in found)
            found += [TimestampedValue((bucket, RecordBlock.empty()), earliest) for bucket in self._closes]
        return found
