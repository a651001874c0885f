"""A value that a runner sets for the code that runs in a thread. Imports neither Beam nor Spark."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Generic, TypeVar

ValueT = TypeVar("ValueT")


class ThreadValue(threading.local, Generic[ValueT]):
    """A value of each thread; None until it is set.

    A DoFn has no argument through which a runner could hand it a value that Beam does not know. Each thread has
    its own value, because in tests a runner executes several tasks in one process.
    """

    value: ValueT | None = None

    @contextmanager
    def set_to(self, value: ValueT | None) -> Iterator[None]:
        """Set the value of this thread in the block."""
        previous, self.value = self.value, value
        try:
            yield
        finally:
            self.value = previous
