"""Turns a function that passes results to a callback into an iterator of these results, without collecting them.

Spark takes the output of a task from an iterator. A stage makes its output deep inside Beam's operations, which
call downwards and cannot pause: if the iterator ran a block to its end first, one element with gigabytes of output
would fill the worker's memory. So the function runs in a greenlet, a second call stack on the same thread. When it
passes a result to the callback, its stack is set aside and the iterator yields.

Rejected: a thread with a bounded queue. SQLite connections of the state store and Beam's current state sampler belong
to a thread, and so may things that a user's DoFn keeps from bundle to bundle.
"""

from __future__ import annotations

import contextvars
from collections.abc import Callable, Generator
from typing import TypeVar

from greenlet import GreenletExit, getcurrent, greenlet

T = TypeVar("T")

_context = contextvars.copy_context()
"""A greenlet begins with an empty context. One context for all of a process keeps what `DoFn.setup` sets in it."""


class AbandonedError(GreenletExit):
    """Spark does not want the rest of a task's output. It is no `Exception`, so no rule for failures applies."""

    _tagged_with_step = True
    """Beam replaces any other exception in a DoFn, even a `BaseException`, by one whose text names the step."""


def iterate(produce: Callable[[Callable[[T], None]], None]) -> Generator[T, None, None]:
    """Yield each argument of the callback that `produce` gets, as soon as `produce` calls it.

    The iterator must be created, used and closed in one thread. If it is closed early, the callback raises
    `AbandonedError` in `produce`, whose `finally` clauses run before `close` returns.

    Raises:
        whatever `produce` raises.
    """

    def emit(result: T) -> None:
        worker.parent.switch(result)

    worker = greenlet(produce)
    worker.gr_context = _context
    result = worker.switch(emit)
    try:
        while not worker.dead:
            yield result
            worker.parent = getcurrent()
            result = worker.switch()
    finally:
        while not worker.dead:
            worker.parent = getcurrent()
            worker.throw(AbandonedError)
