"""The first step of a staged sink: it collects elements into blocks of records."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import apache_beam as beam
from apache_beam.metrics import Metrics
from apache_beam.transforms.window import GlobalWindows, TimestampedValue
from apache_beam.utils.timestamp import Timestamp
from apache_beam.utils.windowed_value import WindowedValue

from penstock.batches import ElementBatch
from penstock.io.staging.blocks import BLOCK_RECORDS, BucketRun, RecordBlock, RecordRun
from penstock.io.staging.file_stager import FileStager
from penstock.io.staging.metrics import NAMESPACE
from penstock.pace import Pace, current_pace

BLOCK_BYTES = 256 * 1024
"""A bundle emits its blocks when all of them together have this many bytes."""

HELD_BYTES = 96 << 20
"""The same for a bundle that stages whole files, if its files do not become full before."""


def in_global_window(elements: beam.PCollection[Any]) -> beam.PCollection[Any]:
    """Return the elements in the global window.

    State and timers of a sink are kept per window, and a file or batch must not end with a window of the input.
    """
    # Elements of a source are there already. To assign the window again would cost a call and two objects for each.
    if isinstance(elements.windowing.windowfn, GlobalWindows):
        return elements
    return elements | "Global" >> beam.WindowInto(GlobalWindows())


@dataclass(slots=True)
class _Collected:
    """Records of a bucket in order, with their event times."""

    times_us: list[int] = field(default_factory=list)
    records: list[bytes] = field(default_factory=list)
    bytes: int = 0

    def blocks(self) -> Iterator[RecordBlock]:
        """Yield the records in blocks of a limited size, so that they are not copied as a whole."""
        start, records = 0, self.records
        while start < len(records):
            end = start + BLOCK_RECORDS
            # Two blocks may be in two files, and an empty record belongs to one before it; see `BucketRun`.
            while end < len(records) and not records[end]:
                end += 1
            yield RecordBlock.joined(self.times_us[start:end], records[start:end])
            start = end

    def staged(self, stager: FileStager) -> RecordBlock:
        """Stage the records as a file."""
        return RecordBlock((min(self.times_us),), (), b"", stager.stage(self.blocks(), len(self.records)))


class WholeFiles:
    """Files that the collecting step stages itself, while its reader catches up (`penstock.pace`).

    In a backlog a bundle has enough records for whole files. Then they need not pass through the exchange and the state
    of the next step. A file is staged when it has a quarter more than `file_bytes`, or at the end of the bundle when it
    has a quarter of them. So after a full file at least a quarter remains, and a backlog has no small files.
    """

    def __init__(self, stager: FileStager, file_bytes: int) -> None:
        self.stager = stager
        self.max_bytes = file_bytes + file_bytes // 4
        self.min_bytes = file_bytes // 4


@beam.typehints.with_output_types(tuple[str, RecordBlock])
class CollectRecordsFn(beam.DoFn):
    """Element, or batch of elements, to (bucket, block of records). A block holds what one bundle has for a bucket.

    In a batch, a `RecordRun` and a `BucketRun` are records that are encoded already.

    Order: the records of a bucket keep the order of the bundle's elements. What repeats: everything, with the bundle.
    Watermark: a block has the earliest event time of its records. State: at most `BLOCK_BYTES` of records, until the
    bundle ends; `HELD_BYTES` with `whole_files`, while the reader catches up.

    Args:
        encode: a function from an element to its record.
        bucket: a function from an element and its event time, in µs since 1970, to its bucket.
        places: a function from a `RecordRun` to the buckets of its records; None: there are none.
        closes: buckets that get no records any more, and of which a checkpoint may have open files. They are closed in
            the epoch of the records that come now, and so are not published after them.
        whole_files: how this step stages files itself; None: it does not.
    """

    def __init__(
        self,
        encode: Callable[[Any], bytes],
        bucket: Callable[[Any, int], str],
        *,
        places: Callable[[RecordRun], Iterable[BucketRun]] | None = None,
        closes: Sequence[str] = (),
        whole_files: WholeFiles | None = None,
    ) -> None:
        self._encode = encode
        self._bucket = bucket
        self._places = places
        self._closes = tuple(closes)
        self._whole_files = whole_files
        self._collected: dict[str, _Collected] = {}
        self._bytes = 0
        self._holds = False
        self._counter = Metrics.counter(NAMESPACE, "staged_records")

    def start_bundle(self) -> None:
        self._collected, self._bytes, self._holds = {}, 0, False
        if self._whole_files is not None:
            self._whole_files.stager.start()

    def process(
        self, element: Any, timestamp: Any = beam.DoFn.TimestampParam
    ) -> list[TimestampedValue] | None:
        before = self._bytes
        changed = set()
        if type(element) is ElementBatch:
            for each, event_us in zip(element.elements, element.times_us, strict=True):
                if type(each) is BucketRun:
                    changed.add(self._add(*each))
                elif type(each) is RecordRun and self._places is not None:
                    for run in self._places(each):
                        changed.add(self._add(*run))
                else:
                    changed.add(self._add(self._bucket(each, event_us), (event_us,), (self._encode(each),)))
        else:
            event_us = timestamp.micros
            changed.add(self._add(self._bucket(element, event_us), (event_us,), (self._encode(element),)))
        if self._whole_files is not None and (pace := current_pace()) is not None and pace.catches_up:
            return self._hold(self._whole_files, pace, self._bytes - before, changed)
        # The limit is for all buckets together: many buckets with few records each need as much memory as one.
        # Each output has the timestamp of an element of this bundle, so the watermark has not passed it.
        return self._outputs() if self._bytes >= BLOCK_BYTES else None

    def _add(self, bucket: str, times_us: Sequence[int], records: Sequence[bytes]) -> str:
        collected = self._collected.get(bucket)
        if collected is None:
            collected = self._collected[bucket] = _Collected()
        size = sum(map(len, records))
        collected.times_us.extend(times_us)
        collected.records.extend(records)
        collected.bytes += size
        self._bytes += size
        return bucket

    def _hold(
        self, files: WholeFiles, pace: Pace, added_bytes: int, changed: Iterable[str]
    ) -> list[TimestampedValue] | None:
        """Keep what was collected, except files that are full now; `changed` are the buckets that have grown."""
        self._holds = True
        pace.held_bytes += added_bytes
        if self._bytes >= HELD_BYTES:
            return self._outputs()
        full = [bucket for bucket in changed if self._collected[bucket].bytes >= files.max_bytes]
        return self._outputs(full) if full else None

    def finish_bundle(self) -> Iterator[WindowedValue]:
        # This stages files, which are durable before an output names them.
        outputs = self._outputs()
        if self._whole_files is not None:
            self._whole_files.stager.finish()
        for each in outputs:
            yield GlobalWindows.windowed_value(each.value, each.timestamp)

    def _outputs(self, buckets: Sequence[str] | None = None) -> list[TimestampedValue]:
        """Return what was collected for some buckets, or for all, and forget it."""
        collected = {bucket: self._collected.pop(bucket) for bucket in buckets or tuple(self._collected)}
        self._bytes -= sum(each.bytes for each in collected.values())
        self._counter.inc(sum(len(each.records) for each in collected.values()))
        outputs = [
            TimestampedValue((bucket, block), Timestamp(micros=block.earliest_us))
            for bucket, each in collected.items()
            for block in self._blocks(each)
        ]
        if outputs:
            earliest = min(each.timestamp for each in outputs)
            outputs += [TimestampedValue((bucket, RecordBlock.empty()), earliest) for bucket in self._closes]
        return outputs

    def _blocks(self, collected: _Collected) -> Iterable[RecordBlock]:
        files = self._whole_files
        if self._holds and files is not None and collected.bytes >= files.min_bytes:
            return [collected.staged(files.stager)]
        return collected.blocks()
