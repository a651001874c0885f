"""Shows a pipeline that runs elsewhere, or has stopped, from its checkpoint folder, and sends requests to its driver.

    job = RemoteJob.open("/data/checkpoints/orders")
    job.complete_until()
    job.request("stop")

It creates and changes only requests. Beam is imported when residuals or metrics are asked for: that takes two seconds,
which `penstock stop` need not spend.
"""

from __future__ import annotations

import functools
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any

from penstock.compat import UTC
from penstock.complete import wait_until_complete
from penstock.parked import ParkedTable, TableAction, TableRequest, matching
from penstock.runner.protocol.complete import complete_until_us
from penstock.runner.protocol.record import CommitRecord, WatermarkKey, WatermarkKind
from penstock.runner.protocol.record_codec import decode_record
from penstock.runner.store.checkpoint import Checkpoint
from penstock.runner.store.drivers import Answers, DriverNotes, Ended, Started
from penstock.runner.store.requests import Request, Requests
from penstock.runner.store.table_requests import TableRequests

if TYPE_CHECKING:
    from penstock.runner.driver.residuals import Residuals, ResidualView
    from penstock.runner.metrics import Metrics


@dataclass(frozen=True, slots=True)
class RecordView:
    """One commit record, for people. Times are microseconds since 1970, sizes are bytes.

    `watermark_us` is the lowest output watermark of all steps that read and of all groupings; None before the first.
    `state_bytes` is the size of the state runs that the record names. The counts and `state_bytes` are None if they are
    not known any more: the record has been replaced, and its side file is deleted.
    """

    number: int
    kind: str
    generation: int
    writer: str
    epochs: int
    committed_us: int
    watermark_us: int | None
    residuals: int | None
    publications: int | None
    state_runs: int | None
    state_bytes: int | None
    record_bytes: int
    draining: bool
    done: bool


@dataclass(frozen=True, slots=True)
class SinkView:
    """One step that publishes after a commit, as of a record.

    `watermark_us`: everything below it has reached the step. `complete_us`: the target has everything below it; None
    if that is not known. `waiting`: publications of the record, which the next epoch runs; the publications of all
    earlier records are published. `counters` are of all steps of the same transform.
    """

    step: str
    watermark_us: int
    complete_us: int | None
    waiting: int
    counters: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class RemoteProgress:
    """The progress at a record, in the form of `PySparkPipelineResult.progress`."""

    epochs: int
    committed_us: int | None
    watermark_us: int | None
    residuals: Sequence[ResidualView]
    complete_us: Mapping[str, int | None] = field(default_factory=dict)
    parked: Sequence[ParkedTable] = ()


class RemoteJob:
    """One checkpoint folder."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._checkpoint = checkpoint
        self._requests, self._notes = Requests(checkpoint), DriverNotes(checkpoint)
        self._table_requests = TableRequests(checkpoint)

    @classmethod
    def open(cls, folder: str) -> RemoteJob:
        """Open the checkpoint in a folder, a path or a URL.

        Raises:
            CheckpointError: there is no checkpoint, or it cannot be read.
        """
        return cls(Checkpoint.existing(folder))

    @staticmethod
    def below(folder: str) -> list[str]:
        """Return `folder` if it is a checkpoint, otherwise the checkpoints directly in it, sorted by name.

        Raises:
            OSError, PenstockError: the folder cannot be listed.
        """
        return Checkpoint.below(folder)

    @property
    def folder(self) -> str:
        """The folder, without options of its URL."""
        return self._checkpoint.folder

    @property
    def name(self) -> str:
        """The name that the job got when its checkpoint was created."""
        return self._checkpoint.job

    def records(self) -> list[RecordView]:
        """Return the records that the folder still has, the oldest first; the driver deletes old ones."""
        return [_view(record, size, known) for record, size, known in self._records()]

    def history(self, above: int = 0) -> list[CommitRecord]:
        """Return the complete records with a number above `above`, the oldest first.

        The driver deletes the side files of replaced records, and the records themselves later.
        """
        return [record for record, _, known in self._records(above) if known]

    def _records(self, above: int = 0) -> Iterator[tuple[CommitRecord, int, bool]]:
        """Yield each record with its size, and whether its lists are known."""
        for number in (each for each in self._checkpoint.record_numbers() if each > above):
            try:
                data = self._checkpoint.read_record(number)
            except FileNotFoundError:  # deleted since the list was made
                continue
            record = decode_record(data, source=f"record {number}")
            try:
                record, known = self._checkpoint.with_lists(record), True
            # A newer record has replaced this one, and the driver has deleted its side file.
            except FileNotFoundError:
                known = False
            yield record, len(data), known

    def last(self) -> CommitRecord | None:
        """Return the last record; None in a new checkpoint."""
        return self._checkpoint.last_record()

    def progress(self, record: CommitRecord, pipeline: Any = None) -> RemoteProgress:
        """Return the progress at a record; its residuals only with the Beam `pipeline`, which has their coders."""
        residuals = _residuals(record, pipeline) if pipeline is not None else ()
        complete_us = complete_until_us(record.state)
        parked = [each.table for each in record.state.parked]
        return RemoteProgress(
            record.epochs, record.committed_us, _watermark(record), residuals, complete_us, parked
        )

    def metrics(self, record: CommitRecord) -> Metrics:
        """Return the users' metrics at a record."""
        from penstock.runner.metrics import Metrics, deserialized

        return Metrics(deserialized(record.state.metrics))

    def sinks(self, record: CommitRecord) -> list[SinkView]:
        """Return the steps that publish after a commit. `record` has them once elements have reached them."""
        state = record.state
        waiting = Counter(each.transform for each in state.publications)
        counters = self.metrics(record).query()["counters"]
        return [
            SinkView(
                step,
                state.watermarks[WatermarkKey.carried(step)],
                complete_us,
                waiting[step],
                _counters_beside(step, counters),
            )
            for step, complete_us in complete_until_us(state).items()
        ]

    def complete_until(self) -> dict[str, datetime | None]:
        """Return for each sink, by the name of its step that publishes, until when its target is complete.

        The target has every change with an event time below (not at) the time, except dead letters, and gets no more of
        them. The time never falls, except if an older copy of the checkpoint is restored, and it moves while the source
        is idle. None: not known yet, or all input was read. Empty: no epoch is committed.

        Raises:
            CheckpointError: the folder cannot be read.
        """
        record = self.last()
        times = complete_until_us(record.state) if record else {}
        return {
            step: None if us is None else datetime.fromtimestamp(us / 1e6, UTC) for step, us in times.items()
        }

    def wait_until_complete(
        self,
        until: datetime,
        *,
        sinks: Sequence[str] = (),
        seconds: float | None = None,
        on_look: Callable[[Mapping[str, datetime | None]], None] = lambda complete: None,
        clock: Callable[[], float] = time.monotonic,
        pause: Callable[[float], None] = time.sleep,
    ) -> bool:
        """Wait until the targets have every change with an event time below `until`; return whether they have.

        `sinks` are parts of names of steps that publish, such as ``Write orders``; all sinks if there are none. False:
        `seconds` have passed, or the job has ended and reads nothing more. None waits without a limit, also for a job
        that has failed, because it may be started again. `on_look` gets the times of the sinks that count, about once a
        second.

        Raises:
            UsageError: `until` has no time zone, or no sink has a given name.
            CheckpointError: the folder cannot be read.
        """
        return wait_until_complete(
            self.complete_until,
            until,
            what="sink",
            names=sinks,
            seconds=seconds,
            has_ended=self.has_ended,
            on_look=on_look,
            clock=clock,
            pause=pause,
        )

    def has_ended(self) -> bool:
        """Return whether all input was read and published, up to an end or by a drain. There will be no more records.

        Raises:
            CheckpointError: the folder cannot be read.
        """
        record = self.last()
        return record is not None and record.state.done

    def request(self, what: str, generation: int) -> None:
        """Ask the driver of a generation to ``stop`` or to ``drain``."""
        self._requests.put(generation, Request(what))

    def requested(self, generation: int) -> list[str]:
        """Return the requests that the driver of a generation has not yet obeyed."""
        return sorted(self._requests.of(generation))

    def parked(self, name: str = "") -> list[ParkedTable]:
        """Return the parked tables; with `name` only tables that have it in the target or in the source.

        Raises:
            CheckpointError: the folder cannot be read.
        """
        record = self.last()
        found = [each.table for each in record.state.parked] if record else []
        return matching(found, name) if name else found

    def request_table(self, action: str, table: ParkedTable) -> None:
        """Ask the driver that runs, or the next one, to ``resume``, ``refill`` or ``skip`` a parked table."""
        for request in self._about(action, table):
            self._table_requests.put(request)

    def requested_table(self, action: str, table: ParkedTable) -> bool:
        """Return whether a request about a table has not been obeyed."""
        return any(map(self._table_requests.has, self._about(action, table)))

    def _about(self, action: str, table: ParkedTable) -> list[TableRequest]:
        record = self.last()
        return [
            # With the time: a request that comes late must not reach a table that was parked again since.
            TableRequest(each.transform, table.name, table.since_us, TableAction(action))
            for each in (record.state.parked if record else ())
            if (each.table.name, each.table.since_us) == (table.name, table.since_us)
        ]

    def started(self, generation: int) -> Started | None:
        """Return which process the driver of a generation is, and its pipeline; None if it has left no note."""
        return self._notes.started(generation)

    def answers(self, generation: int) -> Answers:
        """Return what services have answered to the driver of a generation; only a driver with metrics asks them."""
        return self._notes.answers(generation)

    def ended(self, generation: int) -> Ended | None:
        """Return how the driver of a generation has ended; None if it runs, or was killed."""
        return self._notes.ended(generation)


# A page asks for the progress of many jobs again and again, and a plan takes a third of a second.
@functools.lru_cache(maxsize=64)
def _residuals_of(pipeline: Any) -> tuple[Residuals, frozenset[str]]:
    """Return what decodes the residuals of a pipeline, and the names of its steps."""
    from penstock.runner.driver.residuals import Residuals
    from penstock.runner.harness.bundle import PlanContext
    from penstock.runner.planning.graph import build_plan

    plan = build_plan(pipeline.to_runner_api(), streaming=True)
    return Residuals(PlanContext(plan)), frozenset(stage.step for stage in plan.stages)


def _residuals(record: CommitRecord, pipeline: Any) -> Sequence[ResidualView]:
    # The program may have lost a step since the record was written, and then nothing decodes its residuals.
    known, names = _residuals_of(pipeline)
    return known.views(tuple(each for each in record.state.residuals if each.transform in names))


def _counters_beside(step: str, counters: Sequence[Any]) -> dict[str, int]:
    """Return the counters of the transform that `step` is the last part of, added up by name."""
    # A sink is one transform: `Write/Collect`, `Write/Roll` and `Write/Publish/Publish` count for one target.
    parts = step.split("/")
    whole = "/".join(parts[: max(1, len(parts) - 2)]) + "/"
    sums: Counter[str] = Counter()
    for each in counters:
        if f"{each.key.step}/".startswith(whole):
            sums[each.key.metric.name] += each.committed or 0
    return dict(sums)


def _watermark(record: CommitRecord) -> int | None:
    outputs = (us for key, us in record.state.watermarks.items() if key.kind is WatermarkKind.OUTPUT)
    return min(outputs, default=None)


def _view(record: CommitRecord, size: int, lists_known: bool) -> RecordView:
    state = record.state
    # Two entries may name one file, each for a part of its key groups.
    state_bytes = sum({run.name: run.size for run in state.state_runs}.values())
    return RecordView(
        number=record.number,
        kind=record.kind,
        generation=record.generation,
        writer=record.writer,
        epochs=record.epochs,
        committed_us=record.committed_us,
        watermark_us=_watermark(record),
        residuals=len(state.residuals) if lists_known else None,
        publications=len(state.publications) if lists_known else None,
        state_runs=len(state.state_runs) if lists_known else None,
        state_bytes=state_bytes if lists_known else None,
        record_bytes=size + (record.side_file.size if record.side_file else 0),
        draining=state.draining,
        done=state.done,
    )
