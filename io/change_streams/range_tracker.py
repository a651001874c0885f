"""The tracker of a `RangeFrontier`."""

from __future__ import annotations

from typing import Any

from penstock.errors import LineageError
from penstock.io.change_streams.range_frontier import RangeAdvanced
from penstock.io.change_streams.tracker import FrontierTracker


class RangeTracker(FrontierTracker):
    """Claims of rows, by the number of their range and its progress."""

    def moved_to(self, step: Any) -> tuple[int, Any] | None:
        if type(step) is not RangeAdvanced:
            return None
        if step.number not in self._readable:
            raise LineageError(f"rows of range {step.number}, which is not read here")
        return step.number, step.progress
