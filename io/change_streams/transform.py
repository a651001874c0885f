"""The transform that every source inherits."""

from __future__ import annotations

import copy
from dataclasses import fields, replace
from typing import Any, ClassVar

import apache_beam as beam
from apache_beam.transforms.display import DisplayDataItem
from typing_extensions import Self

from penstock.batches import ElementBatch
from penstock.io.change_streams.incremental.notifications import NOTIFICATIONS
from penstock.io.change_streams.lineage import LINEAGE_EVENTS
from penstock.io.change_streams.read_fn import ReadChangeStreamFn
from penstock.io.change_streams.settings import Settings
from penstock.io.change_streams.undecodable import UNDECODABLE, UndecodableRecord


class ReadFromChangeStream(beam.PTransform):
    """The part of a source's transform that follows its arguments."""

    bounded_fn: ClassVar[type[ReadChangeStreamFn]]
    unbounded_fn: ClassVar[type[ReadChangeStreamFn]]
    record_type: ClassVar[type]

    def __init__(self, stream: Any, settings: Settings) -> None:
        super().__init__()
        self._stream = stream
        self._settings = settings
        self._logs: dict[str, beam.PTransform] = {}

    @property
    def stream(self) -> Any:
        """The change stream that is read, with the start as the time that "now" was."""
        return self._stream

    def check(self) -> Any:
        """Ask the service, from this process, whether the stream can be read; return what it said about the stream.

        Raises:
            ChangeStreamError: it cannot be read; the message says why and what to do.
        """
        return self.bounded_fn(self._settings).check(self._stream)

    def check_start(self) -> None:
        """Check, from this process, that reading can begin at the stream's start. Not for a pipeline that resumes.

        Raises:
            ChangeStreamError: it cannot; the message says why and what to do.
        """
        self.bounded_fn(self._settings).check_start(self._stream)

    def with_exception_handling(self) -> Self:
        """Return a copy with two outputs: the records, and the `UndecodableRecord`s.

        Without it, a record that cannot be decoded fails the pipeline; see `penstock.io.change_streams.undecodable`.
        """
        changed = copy.copy(self)
        changed._settings = replace(self._settings, error_output=True)
        return changed

    def in_batches(self) -> Self:
        """Return a copy that emits the records as `ElementBatch`es; see `penstock.batches`.

        The records and their order, timestamps and promises are the same. Other outputs have single elements.
        """
        changed = copy.copy(self)
        changed._settings = replace(self._settings, batches=True)
        return changed

    def for_preview(self) -> Self:
        """Return a copy that reads the same and leaves no trace: it tells the service no position, creates nothing
        there, answers no signal, and writes no lineage events and no notifications.
        """
        changed = copy.copy(self)
        changed._settings = replace(
            self._settings,
            lineage_output=False,
            notification_output=False,
            snapshots=self._settings.snapshots.for_preview(),
        )
        changed._logs = {}
        return changed

    def with_lineage(self, log: beam.PTransform) -> Self:
        """Return a copy that applies `log` to the lineage events; see `penstock.io.change_streams.lineage`.

        The result of the transform stays the same. `log` takes dictionaries with JSON values, such as
        `WriteToJsonLines` does.
        """
        changed = copy.copy(self)
        changed._settings = replace(self._settings, lineage_output=True)
        changed._logs = {**self._logs, LINEAGE_EVENTS: log}
        return changed

    def with_notifications(self, log: beam.PTransform) -> Self:
        """Return a copy that applies `log` to reports about snapshots; see `penstock.io.change_streams.incremental`.

        The result of the transform stays the same. `log` takes dictionaries with JSON values in the layout of
        Debezium's notifications. Sources without incremental snapshots have none.
        """
        changed = copy.copy(self)
        changed._settings = replace(self._settings, notification_output=True)
        changed._logs = {**self._logs, NOTIFICATIONS: log}
        return changed

    def expand(self, pbegin: beam.pvalue.PBegin) -> Any:
        """Read the stream. With exception handling the result is the pair (records, undecodable records)."""
        fn = self.unbounded_fn if self._stream.end is None else self.bounded_fn
        # No Reshuffle, which Create adds by default: it would cost an exchange for one element.
        stream = pbegin | "Stream" >> beam.Create([self._stream], reshuffle=False)
        read = beam.ParDo(fn(self._settings)).with_output_types(
            ElementBatch if self._settings.batches else self.record_type,
            **{UNDECODABLE: UndecodableRecord, LINEAGE_EVENTS: dict[str, Any], NOTIFICATIONS: dict[str, Any]},
        )
        tags = [UNDECODABLE] * self._settings.error_output + list(self._logs)
        if not tags:
            return stream | "Read" >> read
        outputs = stream | "Read" >> read.with_outputs(*tags, main="records")
        for tag, log in self._logs.items():
            events = outputs[tag]
            if _mixes_up_timers(pbegin.pipeline.runner):
                events |= f"{tag.capitalize()}InAnotherStage" >> beam.Reshuffle()
            _ = events | tag.capitalize() >> log
        return (
            (outputs["records"], outputs[UNDECODABLE]) if self._settings.error_output else outputs["records"]
        )

    def display_data(self) -> dict[str, DisplayDataItem]:
        """Return the stream's identity and the limits. Credentials are not part of it."""
        limits = self._settings.limits
        shown = {"identity": self._settings.identity, "heartbeat_seconds": self._settings.heartbeat_ms / 1000}
        shown |= {field.name: getattr(limits, field.name) for field in fields(limits)}
        return {name: DisplayDataItem(value, label=name) for name, value in shown.items()}


def _mixes_up_timers(runner: Any) -> bool:
    """Return whether the runner is one of Beam's local ones, which need the sinks of two outputs in two stages.

    FnApiRunner keeps the timers of a stage in one buffer for each timer name. It gives all timers in it to the first
    step that has a timer of this name. So of two sinks in one stage, one stages its files twice or never. (Beam 2.77,
    `create_buffer_id` and `_collect_written_timers` in `fn_api_runner/fn_runner.py`.) An exchange separates stages.
    """
    # Compare modules and not classes: DirectRunner has several classes and chooses one of them when the pipeline runs.
    return type(runner).__module__.startswith(
        ("apache_beam.runners.portability.fn_api_runner", "apache_beam.runners.direct")
    )
