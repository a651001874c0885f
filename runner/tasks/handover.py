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
        every exception that `produce` raises.
    """

    def emit(result: T) -> None:
        worker.parent.switch(result)

    worker = greenlet(produce)
    # Set the context explicitly: by default greenlet 3 starts each greenlet in a new, empty context.
    worker.gr_context = _context
    result = worker.switch(emit)
    try:
        while not worker.dead:
            yield result
            # A greenlet that ends returns to its parent, and `emit` switches to it. Set each time, because the code
            # that asks for the next result may itself run in another greenlet than the code that asked for the last
            # one.
            worker.parent = getcurrent()
            result = worker.switch()
    finally:
        # Repeat: a `finally` clause of user code may emit once more, which returns here.
        while not worker.dead:
            worker.parent = getcurrent()
            worker.throw(AbandonedError)
