"""Idle tasks that help a task that reads. A runner offers them, and steps use them. Imports neither Beam nor Spark.

A replication slot has one reader, and one process of Python uses one core. So a step after the reader that calls a
pure function for each batch may have other processes call it (`Helpers.submit`). `PySparkRunner` offers the tasks of
the same executor that have nothing to read. On other runners there are no helpers.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from contextlib import AbstractContextManager
from typing import Any, Protocol, TypeVar

from penstock.thread_value import ThreadValue

__all__ = ["Helpers", "current_helpers", "helped_by", "sent_once"]

ClassT = TypeVar("ClassT", bound=type)

SENT_ONCE: set[type] = set()
"""See `sent_once`."""


def sent_once(cls: ClassT) -> ClassT:
    """Decorate a class of values that arguments of many calls have in common, such as the description of a table.

    A helper gets each of them once, and has one object for it, so that functions may compare by identity.
    """
    SENT_ONCE.add(cls)
    return cls


class Helpers(Protocol):
    """Processes that call functions."""

    def submit(self, function: Callable[..., Any], *arguments: Any) -> Future[Any] | None:
        """Have a helper call a function; None: none has time now, so the caller calls it.

        The function must be pure, and the same object in all calls: it is sent once. Function, arguments and result are
        pickled. The future raises an error if the function has, or if the helper was lost: then the caller calls it.
        """


_helpers = ThreadValue[Helpers]()


def current_helpers() -> Helpers | None:
    """Return the helpers of the task that runs in this thread; None: the runner offers none."""
    return _helpers.value


def helped_by(helpers: Helpers | None) -> AbstractContextManager[None]:
    """Offer helpers to the steps in this thread, or none (for runners and tests)."""
    return _helpers.set_to(helpers)
