"""The driver's part of an epoch: from the last record to the tasks' input, from reports to the next state.

`Driver` is what `protocol.loop.run_epochs` calls for each try. It is a function of the record: nothing that
matters for the next epoch is kept beside it.
"""

from __future__ import annotations

import logging
import pickle
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeVar

from penstock.runner import metrics
from penstock.runner.forms import Form, changed, forms
from penstock.runner.harness.bundle import PlanContext
from penstock.runner.planning.plan import Plan, Routing
from penstock.runner.protocol.coordinator import Attempt
from penstock.runner.protocol.record import (
    CommitRecord,
    EpochState,
    Publication,
    Residual,
    StateRun,
    Timers,
)
from penstock.runner.residuals import Residuals
from penstock.runner.script import Event, Script
from penstock.runner.tasks import warned
from penstock.runner.tasks.epoch import (
    BEGINNING_US,
    EpochInput,
    Failure,
    Part,
    StateOf,
    TaskReport,
    cut_name,
    output_name,
)
from penstock.runner.tasks.stagerun import MAX_US

logger = logging.getLogger(__name__)

_IDLE_S = 0.2

_Ranged = TypeVar("_Ranged", StateRun, Timers)


class Engine(Protocol):
    """Runs the tasks of an epoch somewhere."""

    def run(self, epoch: EpochInput, description: str, group: str) -> list[TaskReport]:
        """Run all levels and return the reports of one consistent run."""


@dataclass(frozen=True, slots=True)
class Pace:
    """Limits of one epoch: seconds of reading, and records and bytes of each reading task."""

    seconds: float
    max_records: int
    max_bytes: int


class Driver:
    """Runs single epochs of a plan."""

    def __init__(
        self,
        plan: Plan,
        engine: Engine,
        residuals: Residuals,
        *,
        partitions: int,
        pace: Pace,
        folder: str,
        name: str,
        dropped: Collection[str] = (),
        draining: Callable[[], bool] = lambda: False,
        now_us: Callable[[], int] = lambda: time.time_ns() // 1000,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        self._plan = plan
        self._engine = engine
        self._residuals = residuals
        self._forms = forms(residuals.context)
        self._partitions = partitions
        self._pace = pace
        self._folder = folder
        self._name = name
        self._dropped = frozenset(dropped)
        self._draining = draining
        self._now_us = now_us
        self._pause = pause
        self._script = Script(residuals.context).events
        self._ran: tuple[int, frozenset[str]] = (0, frozenset())
        """The last epoch that was run, and its tasks: bundles are finalized, as well as can be, after the commit."""
        self._measured: tuple[bytes, ...] = ()

    def __call__(self, record: CommitRecord, attempt: Attempt) -> EpochState | None:
        """Run one try of the epoch that follows `record`; None when there is nothing to do yet.

        Raises:
            the user's exception, with the worker's traceback and the place as notes.
            EpochAborted: the tasks did not work on the same data.
        """
        state = without(record.state, self._dropped)
        drain = bool(state.extra.get("draining")) or self._draining()
        residuals = list(state.residuals)
        if drain and not state.extra.get("draining"):
            residuals = self._residuals.truncated(residuals)
        now = self._due_until_us(record)  # asked once: between two answers a residual would be neither due nor waiting
        due = [r for r in residuals if r.not_before_us <= now]
        event = None if self._busy(state, due) else self._next_event(state) or self._leap(state)
        if event is not None:
            state = _played(state, event)
        elif not self._anything_to_do(state, due, drain):
            self._pause(min(_IDLE_S, max(0.0, self._next_due_s(state))))
            return None
        dealt = self._residuals.dealt(residuals, self._partitions) if due else residuals
        running = [r for r in dealt if r.not_before_us <= now]
        waiting = [r for r in dealt if r.not_before_us > now]
        number, nonces = self._ran
        committed = nonces if number == record.number else frozenset()
        epoch = self._input(state, attempt, running, waiting, committed, event)
        description = f"{self._name}: epoch {attempt.epoch}"
        reports = self._engine.run(epoch, description, f"penstock-{attempt.job}")
        warned.show(warning for report in reports for warning in report.warnings)
        raise_failure(reports, attempt.epoch)
        self._ran = attempt.epoch, frozenset(report.nonce for report in reports)
        self._measured = tuple(info for report in reports for info in report.metrics)
        return self._next_state(state, attempt, reports, waiting, drain)

    def measured(self, epoch: int) -> tuple[bytes, ...]:
        """The serialised `MonitoringInfo`s of an epoch's tasks; nothing if it is not the last one that ran here."""
        return self._measured if self._ran[0] == epoch else ()

    # Before the tasks.

    def _due_until_us(self, record: CommitRecord) -> int:
        """Up to which time residuals are due: now, or all of them if the clock was set back since the last commit.

        A moment that one asked to wait would else be as long as the step, and nothing would be read meanwhile.
        """
        now = self._now_us()
        return now if now >= record.committed_us else MAX_US

    def _busy(self, state: EpochState, due: Sequence[Residual]) -> bool:
        """Whether something is left of what earlier epochs began."""
        return bool(due or state.publications or self._to_start(state)) or self._rings(state)

    def _anything_to_do(self, state: EpochState, due: Sequence[Residual], drain: bool) -> bool:
        if self._busy(state, due):
            return True
        if drain and not state.extra.get("draining"):
            return True
        waits = self._through(state) and self._ended(state) and any(t.pending for t in state.timers)
        return not state.residuals and not waits

    def _rings(self, state: EpochState) -> bool:
        """Whether a processing-time timer is due."""
        now = self._clock_us(state) if self._script else self._now_us()
        return any(t.processing_us is not None and t.processing_us <= now for t in state.timers)

    @staticmethod
    def _clock_us(state: EpochState) -> int:
        return int(state.extra.get("clock_us", 0))

    def _next_event(self, state: EpochState) -> Event | None:
        played = int(state.extra.get("played", 0))
        return self._script[played] if played < len(self._script) else None

    def _leap(self, state: EpochState) -> Event | None:
        """When the script is over and only its clock would bring something: the clock leaps to the next timer."""
        times = [t.processing_us for t in state.timers if t.processing_us is not None]
        if not (self._script and times and self._through(state) and self._ended(state)):
            return None
        return Event(advance_us=min(times) - self._clock_us(state))

    def _to_start(self, state: EpochState) -> tuple[str, ...]:
        return _unfired(state, self._plan)

    def _through(self, state: EpochState) -> bool:
        """Whether nothing can reach a step any more that the record carries elements to."""
        return self._next_event(state) is None and all(
            state.watermarks.get(cut_name(edge.name), BEGINNING_US) >= MAX_US
            for edge in self._plan.edges
            if edge.routing.carried
        )

    def _ended(self, state: EpochState) -> bool:
        """Whether an epoch has seen that nothing is left to read: a drain cuts between epochs what was left."""
        return all(
            state.watermarks.get(output_name(edge.name), BEGINNING_US) >= MAX_US
            for edge in self._plan.edges
            if edge.routing is Routing.RESIDUAL
        )

    def _next_due_s(self, state: EpochState) -> float:
        times = [r.not_before_us for r in state.residuals]
        times += [t.processing_us for t in state.timers if t.processing_us is not None]
        return (min(times, default=0) - self._now_us()) / 1e6

    def _input(
        self,
        state: EpochState,
        attempt: Attempt,
        running: Sequence[Residual],
        waiting: Sequence[Residual],
        committed: frozenset[str],
        event: Event | None,
    ) -> EpochInput:
        holds: dict[str, int] = {}
        for residual in waiting:
            mark = residual.watermark_us
            holds[residual.transform] = min(mark, holds.get(residual.transform, mark))
        return EpochInput(
            job=attempt.job,
            generation=attempt.generation,
            number=attempt.epoch,
            partitions=self._partitions,
            seconds=self._pace.seconds,
            max_records=self._pace.max_records,
            max_bytes=self._pace.max_bytes,
            parts=tuple(self._part(p, state, running, event) for p in range(self._partitions)),
            watermarks=dict(state.watermarks),
            state=_state_of(state),
            waiting=holds,
            open_windows=self._residuals.open_windows([*running, *waiting]),
            folder=self._folder,
            committed=committed,
            clock_us=self._clock_us(state) if self._script else None,
        )

    def _part(
        self, partition: int, state: EpochState, running: Sequence[Residual], event: Event | None
    ) -> Part:
        mine = slice(partition, None, self._partitions)
        return Part(
            impulses=self._to_start(state) if partition == 0 else (),
            residuals=tuple((r.transform, r.element_id, r.element, r.watermark_us) for r in running[mine]),
            publications=tuple((p.transform, p.element) for p in state.publications[mine]),
            script=((event.step, event.block),) if event and event.step and partition == 0 else (),
        )

    # After the tasks.

    def _next_state(
        self,
        state: EpochState,
        attempt: Attempt,
        reports: Sequence[TaskReport],
        waiting: Sequence[Residual],
        drain: bool,
    ) -> EpochState:
        arrived = self._arrived(state, attempt, reports)
        if drain:
            arrived = self._residuals.truncated(arrived)
        residuals = [*waiting, *self._left(reports), *arrived]
        publications = self._publications(reports)
        if late := sum(report.dropped for report in reports):
            logger.warning("epoch %d dropped %d elements that came after their window", attempt.epoch, late)
        timers, holds = _timers_after(state, reports)
        pending = any(t.pending for t in timers)
        fed = self._plan.fed_by_impulse()
        started = {name: sorted(fed[name]) for name in self._to_start(state)}
        return EpochState(
            residuals=tuple(residuals),
            publications=publications,
            state_runs=_runs_after(state.state_runs, reports),
            timers=timers,
            watermarks=_watermarks_after(state.watermarks, reports),
            counters=_counters_after(state.counters, reports),
            extra={
                **state.extra,
                "started": {**_started(state), **started},
                "draining": drain,
                "holds": holds,
                "forms": self._forms,
            },
            done=self._through(state) and not (residuals or publications or pending),
        )

    def _left(self, reports: Iterable[TaskReport]) -> list[Residual]:
        now = self._now_us()
        return [
            Residual(left.step, left.element_id, left.element, left.watermark_us, now + left.delay_us)
            if left.delay_us
            else Residual(left.step, left.element_id, left.element, left.watermark_us, 0)
            for report in reports
            for left in report.left
        ]

    def _arrived(self, state: EpochState, attempt: Attempt, reports: Iterable[TaskReport]) -> list[Residual]:
        """New elements of splittable DoFns; the id is minted here, so two equal elements stay two."""
        arrived = [pair for report in reports for pair in report.arrived if self._reads(pair[0])]
        return [
            Residual(
                transform=step,
                element_id=f"{attempt.epoch}.{index}",
                element=element,
                watermark_us=state.watermarks.get(cut_name(step), BEGINNING_US),
                not_before_us=0,
            )
            for index, (step, element) in enumerate(arrived)
        ]

    def _publications(self, reports: Iterable[TaskReport]) -> tuple[Publication, ...]:
        return tuple(
            Publication(step, element)
            for report in reports
            for step, element in report.arrived
            if not self._reads(step)
        )

    def _reads(self, step: str) -> bool:
        return any(e.name == step and e.routing is Routing.RESIDUAL for e in self._plan.edges)


def _played(state: EpochState, event: Event) -> EpochState:
    """The state with an event of the script played: its watermarks set and its clock advanced."""
    marks = {cut_name(step): mark for step, mark in (event.watermarks or {}).items()}
    clock = int(state.extra.get("clock_us", 0)) + event.advance_us
    extra = {**state.extra, "played": int(state.extra.get("played", 0)) + 1, "clock_us": clock}
    return replace(state, watermarks={**state.watermarks, **marks}, extra=extra)


def without(state: EpochState, names: Collection[str]) -> EpochState:
    """The state without what belongs to steps of these names."""
    if not names:
        return state
    fed = {name: [step for step in steps if step not in names] for name, steps in _started(state).items()}
    started = {name: fed[name] for name, steps in _started(state).items() if fed[name] or not steps}
    return replace(
        state,
        extra={**state.extra, "started": started},
        residuals=tuple(r for r in state.residuals if r.transform not in names),
        publications=tuple(p for p in state.publications if p.transform not in names),
        state_runs=tuple(run for run in state.state_runs if run.stage not in names),
        timers=tuple(t for t in state.timers if t.stage not in names),
    )


def orphans(state: EpochState, plan: Plan) -> list[str]:
    """What the state holds for steps that the plan does not have, a line each."""
    known = plan.durable_names()
    return sorted(f"{name} ({what})" for name, what in _held(state) if name not in known)


def misfed(state: EpochState, plan: Plan) -> list[str]:
    """What would never get an element, or get again what it has had, a line each.

    An Impulse fires once in the life of a checkpoint, for the steps that it feeds then.
    """
    started, fed, unfired = _started(state), plan.fed_by_impulse(), _unfired(state, plan)
    if state.done or state.extra.get("draining"):
        return [f"{name}: the pipeline has ended or is being drained" for name in unfired]
    gone = {step: name for name in started.keys() - fed.keys() for step in started[name]}
    again = [
        f"{step}: {gone[step]} has fed it, and {name} would feed it again"
        for name in unfired
        for step in fed[name] & gone.keys()
    ]
    never = [
        f"{step}: {name} has fired before, and feeds it no more"
        for name in fed.keys() - set(unfired)
        for step in fed[name].difference(started[name])
    ]
    return sorted(again + never)


def _started(state: EpochState) -> Mapping[str, Sequence[str]]:
    """Impulses that have fired, each with the carried steps that it fed."""
    started: Mapping[str, Sequence[str]] = state.extra.get("started", {})
    return started


def _unfired(state: EpochState, plan: Plan) -> tuple[str, ...]:
    """Impulses that have not fired for the steps that they feed.

    An edited pipeline may have new ones; one that fed steps which all have other names now fires again.
    """
    started = _started(state)
    return tuple(
        name
        for name, steps in plan.fed_by_impulse().items()
        if name not in started or (started[name] and steps and steps.isdisjoint(started[name]))
    )


def reshaped(state: EpochState, context: PlanContext) -> list[str]:
    """What the state holds for steps that keep it in another form now, a line each."""
    before: Mapping[str, Form] = state.extra.get("forms", {})
    ringing = {timers.stage for timers in state.timers if timers.pending}
    return list(changed(before, forms(context), {name for name, _ in _held(state)}, ringing))


def _held(state: EpochState) -> set[tuple[str, str]]:
    """The names that the state holds anything for, and what."""
    named: dict[str, Iterable[str]] = {
        "residuals": (r.transform for r in state.residuals),
        "publications": (p.transform for p in state.publications),
        "state": (run.stage for run in state.state_runs),
        "timers": (t.stage for t in state.timers),
    }
    return {(name, what) for what, names in named.items() for name in names}


def raise_failure(reports: Iterable[TaskReport], epoch: int) -> None:
    """Raise what a task failed with: the user's own exception, where it pickles."""
    for report in reports:
        if report.failure is not None:
            raise _error_of(report.failure, epoch)


def _error_of(failure: Failure, epoch: int) -> BaseException:
    pickled = failure.error
    error: BaseException = RuntimeError(failure.summary) if pickled is None else pickle.loads(pickled)
    error.add_note(f"in {failure.where}, epoch {epoch}; in the worker:\n{failure.trace}")
    return error


def _state_of(state: EpochState) -> dict[str, StateOf]:
    names = {run.stage for run in state.state_runs} | {t.stage for t in state.timers}
    holds: Mapping[str, Any] = state.extra.get("holds", {})
    return {
        name: StateOf(
            runs=tuple(run for run in state.state_runs if run.stage == name),
            timers=tuple(
                (t.first_key_group, t.last_key_group, t.event_us, t.processing_us, _hold(holds, t))
                for t in state.timers
                if t.stage == name
            ),
        )
        for name in names
    }


def _hold(holds: Mapping[str, Any], timers: Timers) -> int | None:
    hold: int | None = holds.get(timers.stage, {}).get(str(timers.first_key_group))
    return hold


def _timers_after(
    state: EpochState, reports: Sequence[TaskReport]
) -> tuple[tuple[Timers, ...], dict[str, dict[str, int]]]:
    """Earliest timers and holds: what tasks report, and the old ones of key groups that none looked at."""
    before = state.extra.get("holds", {})
    entries = [(t, _hold(before, t)) for t in state.timers]
    for report in reports:
        for name, (first, last, event, processing, hold) in report.timers.items():
            entries = [
                (part, old)
                for timers, old in entries
                for part in (_outside(timers, first, last) if timers.stage == name else [timers])
            ]
            if last >= first:
                entries.append((Timers(name, first, last, event, processing), hold))
    kept = [(t, h) for t, h in entries if t.pending or h is not None]
    holds: dict[str, dict[str, int]] = {}
    for timers, hold in kept:
        if hold is not None:
            holds.setdefault(timers.stage, {})[str(timers.first_key_group)] = hold
    return tuple(timers for timers, _ in kept), holds


def _runs_after(runs: Iterable[StateRun], reports: Iterable[TaskReport]) -> tuple[StateRun, ...]:
    """The runs that tasks report for their key groups, and the old ones of all other groups."""
    after = list(runs)
    for report in reports:
        for name, sealed in report.runs.items():
            first, last = report.timers[name][:2]
            after = [
                part for run in after for part in (_outside(run, first, last) if run.stage == name else [run])
            ]
            after.extend(sealed)
    return tuple(after)


def _outside(ranged: _Ranged, first: int, last: int) -> list[_Ranged]:
    """The parts of a range of key groups that lie outside `first` to `last` (inclusive)."""
    parts = []
    if ranged.first_key_group < first:
        parts.append(replace(ranged, last_key_group=min(ranged.last_key_group, first - 1)))
    if ranged.last_key_group > last:
        parts.append(replace(ranged, first_key_group=max(ranged.first_key_group, last + 1)))
    return parts


def _watermarks_after(before: Mapping[str, int], reports: Iterable[TaskReport]) -> dict[str, int]:
    """By name the lowest of all partitions, but never lower than before."""
    lowest: dict[str, int] = {}
    for report in reports:
        for name, mark in report.watermarks.items():
            lowest[name] = min(mark, lowest.get(name, mark))
    return {**before, **{name: max(mark, before.get(name, mark)) for name, mark in lowest.items()}}


def _counters_after(before: Any, reports: Iterable[TaskReport]) -> list[str]:
    infos = metrics.from_json(before)
    for report in reports:
        infos.extend(metrics.worth_keeping(report.metrics))
    return metrics.to_json(metrics.merged(infos))
