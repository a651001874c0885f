"""How fast the source is read."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass(slots=True)
class RowBudget:
    """Limits the rows a second that are read from the source; None: no limit.

    Every read takes at least the time of its rows. A reader that was slow for a minute does not read faster than the
    limit afterwards.
    """

    rows_per_second: int | None = None
    clock: Callable[[], float] = time.monotonic
    pause: Callable[[float], None] = time.sleep
    _began: float = field(default=0.0, init=False)

    def begin(self, rows: int) -> int:
        """Begin a read; return how many rows to read: `rows`, or at most the rows of a second."""
        self._began = self.clock()
        return rows if self.rows_per_second is None else min(rows, self.rows_per_second)

    def end(self, rows: int) -> None:
        """Wait after a read of `rows` rows, as long as the budget wants."""
        if self.rows_per_second is not None:
            self.pause(max(0.0, self._began + rows / self.rows_per_second - self.clock()))
