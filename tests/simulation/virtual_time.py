"""Threads in virtual time: real code with threads, locks and time-outs runs as a function of a seed.

    world = VirtualTime(seed)
    monkeypatch.setattr(prefetch, "time", world)
    monkeypatch.setattr(prefetch, "threading", world)
    world.run(main)

One thread runs at a time; it hands over only where it waits or sleeps. When all wait, the clock advances to the
earliest time-out. An hour takes only as long as the work in it. Which of several threads that could run goes
first is drawn from the seed. The object takes the place of the modules `time` and `threading` in the code under
test.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterable
from typing import Any

START = 1_800_000_000.0
"""The wall clock at the beginning, in seconds since 1970."""


class Task:
    """One thread: its turn, and whether it has ended or was notified while it waited."""

    def __init__(self, target: Callable[[], Any]) -> None:
        self.target = target
        self.turn = threading.Semaphore(0)
        self.wake_at: float | None = None
        self.notified = False
        self.over = False


class VirtualTime:
    """The clock, the threads and the locks of one simulation."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.now = 0.0
        self.current = Task(lambda: None)
        self._runnable: list[Task] = []
        self._waiting: list[Task] = []
        self._error: BaseException | None = None
        self._finished = threading.Event()
        self._ending = False

    # In place of the module `time`.

    def monotonic(self) -> float:
        return self.now

    def time(self) -> float:
        return START + self.now

    def time_ns(self) -> int:
        return round(START * 1e9) + round(self.now * 1e9)

    def sleep(self, seconds: float) -> None:
        self.wait(seconds)

    # In place of the module `threading`. The names are those of the classes there.

    def Thread(self, target: Callable[[], Any], name: str = "", daemon: bool = True) -> VirtualThread:
        return VirtualThread(self, target)

    def Condition(self, lock: Any = None) -> VirtualCondition:
        return VirtualCondition(self)

    def Lock(self) -> VirtualCondition:
        return VirtualCondition(self)

    RLock = Lock

    def Event(self) -> VirtualEvent:
        return VirtualEvent(self)

    # Turns.

    def run(self, main: Callable[[], Any]) -> None:
        """Run `main` and the threads that it starts until `main` returns. Raises what any of them raised."""

        def whole() -> None:
            main()
            self._finished.set()

        self.start(Task(whole))
        self._give_turn()
        self._finished.wait()
        self._ending = True
        for task in self._runnable + self._waiting:
            task.turn.release()
        if self._error is not None:
            raise self._error

    def start(self, task: Task) -> None:
        """Let a new thread take turns."""
        self._runnable.append(task)
        threading.Thread(target=self._run, args=(task,), daemon=True).start()

    def wait(self, seconds: float | None) -> bool:
        """Let others run until this thread is notified, at most for the time-out; return whether it was notified."""
        task = self.current
        task.notified = False
        task.wake_at = None if seconds is None else self.now + max(0.0, seconds)
        self._waiting.append(task)
        self._give_turn()
        task.turn.acquire()
        if self._ending:
            raise SystemExit
        return task.notified

    def notify(self, tasks: Iterable[Task]) -> None:
        """Let waiting threads continue, each at its turn."""
        for task in tasks:
            if task in self._waiting:
                task.notified = True
                self._waiting.remove(task)
                self._runnable.append(task)

    def _run(self, task: Task) -> None:
        task.turn.acquire()
        if self._ending:
            return
        try:
            task.target()
        except BaseException as error:
            if self._ending:
                return
            self._error = error
            self._finished.set()
        task.over = True
        if not self._finished.is_set():
            self._give_turn()

    def _give_turn(self) -> None:
        if not self._runnable:
            timed = [task for task in self._waiting if task.wake_at is not None]
            assert timed, "all threads wait, and none has a time-out"
            first = min(timed, key=lambda task: task.wake_at or 0.0)
            self.now = max(self.now, first.wake_at or 0.0)
            self._waiting.remove(first)
            self._runnable.append(first)
        self.current = self._runnable.pop(self.rng.randrange(len(self._runnable)))
        self.current.turn.release()


class VirtualCondition:
    """A condition or a lock. No real lock is needed, because a thread yields its turn only where it waits."""

    def __init__(self, world: VirtualTime) -> None:
        self._world = world
        self._waiting: list[Task] = []

    def __enter__(self) -> bool:
        return True

    def __exit__(self, *_: object) -> None:
        return None

    def wait(self, timeout: float | None = None) -> bool:
        task = self._world.current
        self._waiting.append(task)
        notified = self._world.wait(timeout)
        if not notified:
            self._waiting.remove(task)
        return notified

    def wait_for(self, predicate: Callable[[], bool], timeout: float | None = None) -> bool:
        end = None if timeout is None else self._world.now + timeout
        while not (met := predicate()):
            left = None if end is None else end - self._world.now
            if left is not None and left <= 0:
                break
            self.wait(left)
        return met

    def notify(self) -> None:
        """Wake the thread that has waited longest, as `threading.Condition` does."""
        first, self._waiting = self._waiting[:1], self._waiting[1:]
        self._world.notify(first)

    def notify_all(self) -> None:
        waiting, self._waiting = self._waiting, []
        self._world.notify(waiting)


class VirtualEvent:
    """An event: it stays set until it is cleared."""

    def __init__(self, world: VirtualTime) -> None:
        self._changed = VirtualCondition(world)
        self._is_set = False

    def set(self) -> None:
        self._is_set = True
        self._changed.notify_all()

    def clear(self) -> None:
        self._is_set = False

    def is_set(self) -> bool:
        return self._is_set

    def wait(self, timeout: float | None = None) -> bool:
        return self._changed.wait_for(self.is_set, timeout)


class VirtualThread:
    """A thread that takes turns."""

    def __init__(self, world: VirtualTime, target: Callable[[], Any]) -> None:
        self._world = world
        self._task = Task(target)

    def start(self) -> None:
        self._world.start(self._task)

    def is_alive(self) -> bool:
        return not self._task.over

    def join(self, timeout: float | None = None) -> None:
        end = None if timeout is None else self._world.now + timeout
        while self.is_alive() and (end is None or self._world.now < end):
            self._world.wait(0.01)
