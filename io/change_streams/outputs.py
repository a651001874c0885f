"""What `process` emits for the records that a reader has claimed: single outputs, or batches of records.

outputs = outputs_of(stream, "penstock.io.spanner", batches=True, error_output=False)
yield from outputs.of(records)  # after each claim
yield from outputs.rest()       # before the call returns or reports a watermark
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

from apache_beam.metrics import Metrics
from apache_beam.pvalue import TaggedOutput
from apache_beam.transforms.window import GlobalWindow
from apache_beam.utils.windowed_value import WindowedValue
from apache_beam.utils.windowed_value import create as windowed_value

from penstock.batches import MAX_ELEMENTS, ElementBatch
from penstock.errors import DecodeError
from penstock.io.change_streams.incremental.notifications import NOTIFICATIONS, NotificationRecord
from penstock.io.change_streams.lazy_records import is_lazy, joined
from penstock.io.change_streams.undecodable import UNDECODABLE, UndecodableRecord

_WINDOWS = (GlobalWindow(),)
"""The windows of every output: a read is the first transform of its pipeline, so its input is not windowed."""


def at_time(nanos: int, value: Any) -> WindowedValue:
    """Return an output with an event time in nanoseconds."""
    # Rounded down to microseconds. `beam_watermark` rounds down too, so no record is below its watermark.
    # Beam turns a TimestampedValue into the value that `windowed_value` returns. A TimestampedValue and its Timestamp
    # take ten times as long: Timestamp checks the types of its arguments and divides in Python. (Beam 2.77,
    # `utils/windowed_value.py`; `_OutputHandler` in `runners/common.py` accepts both.)
    return windowed_value(value, nanos // 1000, _WINDOWS)


def outputs_of(stream: Any, namespace: str, *, batches: bool, error_output: bool) -> Outputs:
    """Return the outputs of one `process` call. `namespace`: of the source's metrics.

    `batches`: records come as `ElementBatch`es. `error_output`: see `undecodable`.
    """
    output = _output_of(stream, namespace, error_output)
    return _BatchOutputs(output) if batches else Outputs(output)


def _output_of(stream: Any, namespace: str, error_output: bool) -> Callable[[Any], Any]:
    """Return the function from a record to its output; see `undecodable` for the rule.

    It raises a DecodeError if a record cannot be decoded and there is no error output.
    """

    def output(record: Any) -> Any:
        kind = type(record)  # not `isinstance`: this runs for each record
        if kind is NotificationRecord:
            return TaggedOutput(NOTIFICATIONS, at_time(record.commit_timestamp, record.document))
        if kind is not UndecodableRecord:
            return windowed_value(record, record.commit_timestamp // 1000, _WINDOWS)
        if not error_output:
            raise DecodeError(
                f"{stream}: a record at {record.position} cannot be decoded: {record.reason}. To continue without "
                "such records, take the error output: with_exception_handling() of the transform"
            )
        Metrics.counter(namespace, UNDECODABLE).inc()
        return TaggedOutput(
            UNDECODABLE, at_time(record.commit_timestamp, replace(record, stream=str(stream)))
        )

    return output


class Outputs:
    """The outputs of one `process` call, from the records that it has claimed."""

    def __init__(self, output: Callable[[Any], Any]) -> None:
        """`output` returns the output of a single record."""
        self._output = output

    def of(self, records: Sequence[Any]) -> Iterable[Any]:
        """Return what is to be emitted now; the rest may wait until `rest` is called."""
        return map(self._output, records)

    def rest(self) -> Iterable[Any]:
        """Return the outputs that wait. To be called before the call returns or reports a watermark."""
        return ()


class _BatchOutputs(Outputs):
    """Records as `ElementBatch`es. Everything else is emitted at once, as a single output."""

    def __init__(self, output: Callable[[Any], Any]) -> None:
        super().__init__(output)
        self._parts: list[Sequence[Any]] = []
        self._single: list[Any] = []
        self._times_us: list[int] = []

    def of(self, records: Sequence[Any]) -> Iterable[Any]:
        if is_lazy(records):
            if not records:
                return ()
            # A list of them would make them all, so they stay what they are.
            before = self.rest() if records.is_batch else ()
            self._single = []
            self._parts.append(records)
            self._times_us += records.times_us
            return [*before, *self.rest()] if records.is_batch else self._enough()
        others = []
        if not _NOT_BATCHED.isdisjoint(map(type, records)):
            others = [self._output(record) for record in records if type(record) in _NOT_BATCHED]
            records = [record for record in records if type(record) not in _NOT_BATCHED]
        # Invariant: single records go to the last part, a list that grows until lazy records follow it.
        if records and not self._single:
            self._parts.append(self._single)
        self._single += records
        self._times_us += [record.commit_timestamp // 1000 for record in records]
        return [*others, *self._enough()] if others else self._enough()

    def _enough(self) -> Iterable[Any]:
        return self.rest() if len(self._times_us) >= MAX_ELEMENTS else ()

    def rest(self) -> Iterable[Any]:
        if not self._parts:
            return ()
        elements: Any = joined(self._parts)  # it is read like a list
        batch = ElementBatch(elements, self._times_us)
        self._parts, self._single, self._times_us = [], [], []
        return (batch.windowed(),)


_NOT_BATCHED = frozenset({NotificationRecord, UndecodableRecord})
"""Records that go to other outputs."""
