"""The toy pipeline of the simulation: read two partitions, count per key, roll files and publish them by a
move.

Level 0 publishes and reads, level 1 counts, keeps the open file in state and stages whole files. Tasks may run
twice with different data, and a consumer may read either attempt, as in Spark when an executor dies.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field

from protocol_world import (
    FOLDER,
    KEY_GROUPS,
    SOURCE,
    STAGE,
    Published,
    World,
    clean_up_staged,
    group_of,
    published,
    source_items,
)

from penstock.object_stores.errors import StoreUnavailableError
from penstock.runner.protocol import (
    Attempt,
    BlockReceipt,
    CommitRecord,
    CommitUnknownError,
    Coordinator,
    EarliestTimers,
    EpochAbortedError,
    EpochFailedError,
    EpochState,
    Publication,
    Residual,
    RunName,
    SupersededError,
    TaskResult,
    pin_attempts,
    run_epochs,
)
from penstock.runner.protocol.record_codec import INLINE_BYTES
from penstock.runner.store import Checkpoint, StateStore
from penstock.runner.store.runs import RunCache

Item = tuple[str, object]
"""(key, change) of the source, or ('seen/...', None) of the publish step."""


class InjectedError(Exception):
    """A user's code raises."""


@dataclass
class Made:
    """The output of one attempt of a level-0 task."""

    control: TaskResult
    works: list[object]
    blocks: dict[int, list[Item]] = field(default_factory=dict)


@dataclass
class Driver:
    """One driver process from its start to its end."""

    world: World
    name: str
    caches: list[RunCache]
    nonces: Iterator[str]

    def run(self) -> None:
        """Take over and run epochs until all is done or a newer driver exists."""
        try:
            self._run()
        except SupersededError:
            self.world.schedule.say("superseded")
        except (CommitUnknownError, StoreUnavailableError):
            self.world.schedule.say("no answer for too long")
        except OSError:
            self.world.schedule.say("could not take over")
        except EpochFailedError as failed:
            if not isinstance(failed.__cause__, (InjectedError, EpochAbortedError, OSError)):
                raise

    def _run(self) -> None:
        schedule, rng = self.world.schedule, self.world.schedule.rng
        self._files = self.world.file_system_of(self.world)

        def pause(seconds: float) -> None:
            schedule.point("pause")

        checkpoint = Checkpoint.open(
            FOLDER,
            key_groups=KEY_GROUPS,
            filesystem=self._files,
            clock=lambda: 0,
            nonces=lambda: next(self.nonces),
            pause=pause,
        )
        coordinator = Coordinator(
            checkpoint,
            clock=lambda: 0,
            nonces=lambda: next(self.nonces),
            pause=pause,
            writer=self.name,
            keep_records=rng.randint(1, 3),
            # Half of the drivers write their larger records with a side file.
            inline_bytes=rng.choice([INLINE_BYTES, 300]),
        )
        coordinator.take_over()
        run_epochs(
            coordinator,
            self.epoch,
            retries=3,
            on_commit=self._look,
            on_failure=lambda record, failures, error: schedule.say(f"failed {type(error).__name__}"),
            on_sweep=lambda record, swept: clean_up_staged(self.world, record),
            pause=pause,
            sweep_every=rng.randint(1, 3),
        )

    def _look(self, record: CommitRecord) -> None:
        self._publish_early(record)
        if self.world.schedule.rng.random() < 0.2:
            self.world.check_state()

    def _publish_early(self, record: CommitRecord) -> None:
        """Publish what the record names before its epoch does, or a part of it, or late: the driver may be paused."""
        schedule = self.world.schedule
        if schedule.rng.random() < 0.3:
            for publication in record.state.publications:
                names = published(publication)
                schedule.point(f"publish {names.final} early")
                self.world.move(names)

    def epoch(self, record: CommitRecord, attempt: Attempt) -> EpochState | None:
        """Run one epoch as one job; see `penstock.runner.protocol.loop.Epoch`."""
        rng = self.world.schedule.rng
        self._attempt, self._record = attempt, record
        self._consumers = rng.randint(1, 2)
        made = self._level_0()
        controls, taken = self._level_1(made)
        if self.world.schedule.fault("a DoFn raises"):
            raise InjectedError
        pins = pin_attempts(controls, taken, (len(made), self._consumers))
        return _state([pins[task].payload for task in sorted(pins)])

    # level 0: publish and read

    def _level_0(self) -> list[list[Made]]:
        """Run the tasks; each entry holds the attempts whose blocks a consumer may read."""
        schedule = self.world.schedule
        deal: list[list[object]] = [[] for _ in range(schedule.rng.randint(1, 2))]
        for work in [*self._record.state.publications, *self._residuals()]:
            schedule.rng.choice(deal).append(work)
        tasks = []
        for partition, works in enumerate(deal):
            tasks.append([self._read(partition, works)])
            if schedule.fault(f"task {partition} becomes a zombie"):
                tasks[-1].append(self._read(partition, works))
        return tasks

    def _residuals(self) -> tuple[Residual, ...]:
        if not self._record.epochs:
            return tuple(Residual("Read", partition, b"0", 0, 0) for partition in SOURCE)
        return self._record.state.residuals

    def _read(self, partition: int, works: list[object]) -> Made:
        schedule = self.world.schedule
        schedule.point(f"read task {partition}")
        items: list[Item] = []
        rest = []
        for work in works:
            if isinstance(work, Publication):
                items.append(self._publish(work))
            elif isinstance(work, Residual):
                got, left = self._read_on(work)
                items += got
                rest += left
        made = Made(TaskResult(0, partition, next(self.nonces), EpochState(residuals=tuple(rest))), works)
        for key, change in items:
            made.blocks.setdefault(self._consumer(key), []).append((key, change))
        return made

    def _publish(self, publication: Publication) -> Item:
        schedule = self.world.schedule
        names = published(publication)
        if schedule.fault("the publish step raises"):
            raise InjectedError
        schedule.point(f"publish {names.final}")
        if schedule.fault("the publish attempt becomes a zombie"):
            schedule.later(f"zombie publishes {names.final}", lambda: self.world.move(names))
        self.world.move(names)
        schedule.later("the consumer takes a file", self.world.consume)
        return ("seen/" + names.final, None)

    def _read_on(self, residual: Residual) -> tuple[list[Item], list[Residual]]:
        items, begin = source_items(residual.element_id), int(residual.element)
        end = self.world.schedule.rng.randint(begin, len(items))
        got: list[Item] = list(items[begin:end])
        if end == len(items):
            return got, []
        return got, [Residual("Read", residual.element_id, b"%d" % end, 0, 0)]

    # level 1: count, keep the open file, stage whole files

    def _range(self, consumer: int) -> tuple[int, int]:
        return consumer * KEY_GROUPS // self._consumers, (consumer + 1) * KEY_GROUPS // self._consumers - 1

    def _consumer(self, key: str) -> int:
        return next(c for c in range(self._consumers) if group_of(key) <= self._range(c)[1])

    def _level_1(self, made: list[list[Made]]) -> tuple[list[TaskResult], list[BlockReceipt]]:
        schedule = self.world.schedule
        drain = all(not m.control.payload.residuals for attempts in made for m in attempts)
        controls, taken = [], []
        for consumer in range(self._consumers):
            if schedule.fault(f"task {consumer} of level 1 is lost"):
                self._count(consumer, made, drain)
            control, reports = self._count(consumer, made, drain)
            controls.append(control)
            taken += reports
            for attempts in made:
                if schedule.fault("an executor is lost, its task runs again"):
                    attempts[:] = [self._read(attempts[0].control.partition, attempts[0].works)]
        return [schedule.rng.choice(attempts).control for attempts in made] + controls, taken

    def _count(
        self, consumer: int, made: list[list[Made]], drain: bool
    ) -> tuple[TaskResult, list[BlockReceipt]]:
        schedule = self.world.schedule
        schedule.point(f"count task {consumer}")
        nonce = next(self.nonces)
        took = [schedule.rng.choice(attempts) for attempts in made]
        reports = [BlockReceipt(0, m.control.partition, m.control.nonce, nonce) for m in took]
        store = self._store(consumer)
        items = [item for m in took for item in m.blocks.get(consumer, [])]
        for key, change in items:
            _take_in(store, key, change)
        publications = self._roll(store, consumer, nonce) if drain or schedule.rng.random() < 0.4 else ()
        name = RunName(self._attempt.generation, self._attempt.epoch, nonce, STAGE)
        due = 0 if _open_rows(store, *self._range(consumer)) else None
        timers = (EarliestTimers(STAGE, *self._range(consumer), event_us=None, processing_us=due),)
        state = EpochState(publications=publications, state_runs=store.seal(name), timers=timers)
        return TaskResult(1, consumer, nonce, state), reports

    def _store(self, consumer: int) -> StateStore:
        rng = self.world.schedule.rng
        cache = rng.choice([*self.caches, RunCache()])
        first, last = self._range(consumer)
        runs = self._record.state.state_runs
        return StateStore.open(self._files, f"{FOLDER}/state", runs, first, last, cache=cache)

    def _roll(self, store: StateStore, consumer: int, nonce: str) -> tuple[Publication, ...]:
        first, last = self._range(consumer)
        rows = _open_rows(store, first, last)
        if not rows:
            return ()
        for group, key, _ in rows:
            store.delete(group, key)
        names = self._stage(sorted(tuple(json.loads(value)) for _, _, value in rows), consumer, nonce)
        return (Publication("Move", json.dumps([names.staged, names.final]).encode()),)

    def _stage(self, items: list[tuple[str, int]], consumer: int, nonce: str) -> Published:
        staged = RunName(self._attempt.generation, self._attempt.epoch, nonce, "sink").file_name(
            *self._range(consumer)
        )
        self.world.schedule.point(f"stage {staged}")
        self.world.staged[staged] = items
        return Published(staged, f"{self._attempt.epoch:05d}-{consumer}-{nonce}")


def _open_rows(store: StateStore, first: int, last: int) -> list[tuple[int, bytes, bytes]]:
    return [row for row in store.scan(first, last) if row[1].startswith(b"open/")]


def _take_in(store: StateStore, key: str, change: object) -> None:
    group = group_of(key)
    counter = (key if change is None else f"count/{key}").encode()
    count = int(store.get(group, counter) or b"0")
    store.put(group, counter, b"%d" % (count + 1))
    if change is not None:
        store.put(group, f"open/{key}/{count:04d}".encode(), json.dumps([key, count]).encode())


def _state(parts: list[EpochState]) -> EpochState:
    residuals = tuple(r for part in parts for r in part.residuals)
    publications = tuple(p for part in parts for p in part.publications)
    runs = tuple(r for part in parts for r in part.state_runs)
    timers = tuple(t for part in parts for t in part.timers if t.pending)
    return EpochState(
        residuals, publications, runs, timers, done=not residuals and not publications and not timers
    )
