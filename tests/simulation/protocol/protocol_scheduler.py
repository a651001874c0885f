"""A seeded scheduler: several drivers as threads, of which exactly one runs, until it reaches a point.

At each point the seed decides whether the driver continues, crashes or pauses while others run. A seed
replays its run exactly, because nothing in the simulation looks at a clock, an address or the operating
system.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from dataclasses import dataclass, field


class Crash(BaseException):
    """The process dies here. Not an Exception: no code under test may catch it."""


class Violation(BaseException):
    """An invariant does not hold."""


@dataclass(eq=False)
class Actor:
    """One driver process."""

    name: str
    run: Callable[[], None]
    baton: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    killed: bool = False
    ended: str = ""


@dataclass(frozen=True, slots=True)
class Temper:
    """The probabilities of faults in a run, drawn from the seed."""

    switch: float
    fault: float
    faults: int
    starts: int
    steps: int


class Scheduler:
    """Passes the baton between threads; the test's own thread holds it when no driver runs."""

    def __init__(self, rng: random.Random, temper: Temper, make: Callable[[str], Callable[[], None]]) -> None:
        self.rng = rng
        self.trace: list[str] = []
        self.violation: str = ""
        self._temper = temper
        self._make = make
        self._actors: list[Actor] = []
        self._current: Actor | None = None
        self._main = threading.Semaphore(0)
        self._faults = temper.faults
        self._starts = temper.starts
        self._calm = False
        self._background: list[tuple[str, Callable[[], None]]] = []

    # what drivers call

    def point(self, what: str) -> None:
        """A point at which the driver may be paused or may crash."""
        actor = self._actor()
        self.say(what)
        if not self._calm:
            self._perhaps_background()
            if self.rng.random() < self._temper.switch:
                self._pause(actor)
            if self.fault("crash"):
                raise Crash
        if actor.killed:
            raise Crash

    def fault(self, what: str) -> bool:
        """Decide whether a fault occurs here; each fault uses up some of the run's budget."""
        if self._calm or not self._faults or self.rng.random() >= self._temper.fault:
            return False
        self._faults -= 1
        self.say("! " + what)
        return True

    def later(self, what: str, action: Callable[[], None]) -> None:
        """Schedule an action for some later time; it runs even if the driver crashes."""
        self._background.append((what, action))

    def say(self, what: str) -> None:
        """Add a line to the trace."""
        self.trace.append(f"{self._current.name if self._current else '-'}: {what}")

    # what the test calls

    def play(self, complete: Callable[[], bool]) -> None:
        """Run the number of steps in `Temper` with faults, then without faults until everything is published."""
        while len(self.trace) < self._temper.steps and not complete():
            self._give_baton(self._someone())
        self._calm = True
        while not complete():
            self._give_baton(self._someone())
        while self._background:
            self._perhaps_background(always=True)
        for actor in self._alive():  # actors that were paused all the time wake up now
            self._give_baton(actor)

    def bury(self) -> None:
        """End all threads."""
        self._calm = True
        for actor in self._alive():
            actor.killed = True
            self._give_baton(actor)

    # inside

    def _alive(self) -> list[Actor]:
        return [actor for actor in self._actors if not actor.ended]

    def _someone(self) -> Actor:
        return self.rng.choice(alive) if (alive := self._alive()) else self._start()

    def _start(self) -> Actor:
        name = f"D{len(self._actors) + 1}"
        actor = Actor(name, self._make(name))
        self._actors.append(actor)
        threading.Thread(target=self._live, args=(actor,), daemon=True).start()
        return actor

    def _live(self, actor: Actor) -> None:
        actor.baton.acquire()
        try:
            if not actor.killed:
                actor.run()
            actor.ended = "done"
        except Crash:
            actor.ended = "crashed"
        except BaseException as error:
            actor.ended = "violation"
            self.violation = self.violation or f"{type(error).__name__}: {error}"
        self.say(actor.ended)
        self._current = None
        self._main.release()

    def _actor(self) -> Actor:
        assert self._current is not None
        return self._current

    def _give_baton(self, actor: Actor) -> None:
        """Called by the test's thread: let a driver run until it returns the baton."""
        self._current = actor
        actor.baton.release()
        self._main.acquire()
        if self.violation:
            raise Violation(self.violation)

    def _pause(self, actor: Actor) -> None:
        """Called by a driver's thread: let another one run; this one continues at its next turn."""
        others = [other for other in self._alive() if other is not actor]
        if self._starts and (not others or self.rng.random() < 0.3):
            self._starts -= 1
            others = [self._start()]
        if not others:
            return
        self._current = self.rng.choice(others)
        self._current.baton.release()
        actor.baton.acquire()

    def _perhaps_background(self, always: bool = False) -> None:
        if self._background and (always or self.rng.random() < 0.1):
            what, action = self._background.pop(self.rng.randrange(len(self._background)))
            self.say(what)
            action()
