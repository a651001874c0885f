"""Shared by all gRPC services: databases, sessions, the clock, faults, and the locks that transactions wait for.

One event loop in one thread runs everything, so nothing here is locked.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from penstock_emulators.simulated_spanner.churn import ChurnLimits, next_change
from penstock_emulators.simulated_spanner.clock import Clock
from penstock_emulators.simulated_spanner.database import Database
from penstock_emulators.simulated_spanner.errors import ServiceError, not_found
from penstock_emulators.simulated_spanner.fault import Faults
from penstock_emulators.simulated_spanner.timestamp import SECOND
from penstock_emulators.simulated_spanner.transaction import Session


@dataclass(slots=True)
class Shape:
    """How answers are cut into messages.

    Rows longer than `chunk_bytes` are cut; a message has at most `rows_per_message` rows; every
    `resume_every`-th message has a resume token (0: none has).
    """

    chunk_bytes: int = 1 << 20
    rows_per_message: int = 500
    resume_every: int = 1


@dataclass(frozen=True, slots=True)
class Defaults:
    """The options of new databases; see `Database`."""

    seed: int = 0
    partitions: int = 2
    granularity_us: int = 1


@dataclass(slots=True)
class Service:
    """The state of the simulated service. `databases` and `instances` are by their full names."""

    clock: Clock = field(default_factory=Clock)
    defaults: Defaults = field(default_factory=Defaults)
    shape: Shape = field(default_factory=Shape)
    faults: Faults = field(default_factory=Faults)
    instances: dict[str, str] = field(default_factory=dict)
    databases: dict[str, Database] = field(default_factory=dict)
    sessions: dict[str, Session] = field(default_factory=dict)
    stats: Counter[str] = field(default_factory=Counter)
    _waiting: dict[str, set[asyncio.Event]] = field(default_factory=dict)
    _numbers: Iterator[int] = field(default_factory=itertools.count)
    _churn: asyncio.Task[None] | None = None

    def database(self, name: str) -> Database:
        """Return a database by its full name.

        Raises:
            ServiceError: NOT_FOUND, with the message of the service.
        """
        found = self.databases.get(name)
        if found is None:
            # Clients tell the two apart by the message.
            instance = name.partition("/databases/")[0]
            missing = "Database" if instance in self.instances else "Instance"
            raise not_found(f"{missing} not found: {name if missing == 'Database' else instance}")
        return found

    def create_database(self, name: str, dialect: str) -> Database:
        """Make an empty database.

        Raises:
            ServiceError: there is one of that name, or no such instance.
        """
        if name.partition("/databases/")[0] not in self.instances:
            raise not_found(f"Instance not found: {name.partition('/databases/')[0]}")
        if name in self.databases:
            raise ServiceError("ALREADY_EXISTS", f"Database already exists: {name}")
        self.databases[name] = Database(
            dialect,
            seed=self.defaults.seed,
            partitions=self.defaults.partitions,
            granularity_us=self.defaults.granularity_us,
        )
        return self.databases[name]

    def create_session(self, database: str, multiplexed: bool) -> Session:
        """Make a session."""
        # Clients recognize a multiplexed session by its message only; the name is for people.
        name = f"{database}/sessions/{'multiplexed-' if multiplexed else ''}{next(self._numbers)}"
        session = self.sessions[name] = Session(name, self.database(database), multiplexed)
        return session

    def session(self, name: str) -> Session:
        """Return a session by its full name.

        Raises:
            ServiceError: NOT_FOUND.
        """
        found = self.sessions.get(name)
        if found is None:
            raise not_found(f"Session not found: {name}")
        return found

    def next_number(self) -> int:
        """Return a number that was never returned before."""
        return next(self._numbers)

    async def wait_until(self, moment: int) -> None:
        """Return when the clock has reached `moment`."""
        event = asyncio.Event()
        with self.woken_by((), event):
            while self.clock.now() < moment:
                await self.wait(event, moment)

    async def wait(self, event: asyncio.Event, moment: int) -> None:
        """Return when the event is set or the moment may have come; clears the event."""
        seconds = self.clock.seconds_until(moment)
        # `asyncio.wait_for` would make a task for each wait; a timer on the event is several times cheaper.
        timer = None if seconds is None else asyncio.get_running_loop().call_later(seconds, event.set)
        try:
            await event.wait()
        finally:
            if timer is not None:
                timer.cancel()
        event.clear()

    @contextmanager
    def woken_by(self, tokens: Iterable[str], event: asyncio.Event) -> Iterator[None]:
        """Set the event whenever something happens to one of the partitions, or to all (clock, schema)."""
        keys = ["", *tokens]
        for key in keys:
            self._waiting.setdefault(key, set()).add(event)
        try:
            yield
        finally:
            for key in keys:
                waiting = self._waiting.get(key, set())
                waiting.discard(event)
                if not waiting:
                    self._waiting.pop(key, None)

    def wake(self, tokens: Iterable[str]) -> None:
        """Wake those who wait for one of the partitions."""
        for token in tokens:
            for event in self._waiting.get(token, ()):
                event.set()

    def wake_all(self) -> None:
        """Wake everyone: the clock was moved, or a schema has changed."""
        self.wake([""])

    def start_churn(self, period_seconds: float, seed: int, limits: ChurnLimits) -> None:
        """Change the ranges of one function after the other at random, every so often; 0 stops it."""
        self.stop_churn()
        if period_seconds:
            self._churn = asyncio.get_running_loop().create_task(self._churned(period_seconds, seed, limits))

    def stop_churn(self) -> None:
        """Leave the partitions as they are."""
        if self._churn is not None:
            self._churn.cancel()
            self._churn = None

    async def _churned(self, period_seconds: float, seed: int, limits: ChurnLimits) -> None:
        rng = random.Random(f"churn {seed}")
        # The due moments are a fixed grid, so a slow change does not shift all later ones.
        due = self.clock.now()
        while True:
            due += int(period_seconds * SECOND)
            await self.wait_until(due)
            for database in list(self.databases.values()):
                now = self.clock.now()
                database.forget(now)
                for stream in database.streams.values():
                    for ranges in stream.functions.values():
                        change = next_change(rng, ranges, limits)
                        _, touched = database.change_ranges(
                            ranges, change.action, change.tokens, now, to=change.to, ways=change.ways
                        )
                        self.stats[change.action] += 1
                        self.wake(touched)
