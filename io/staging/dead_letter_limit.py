"""`StopAtLimit`: fails the pipeline when too many dead letters have come."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import apache_beam as beam
from apache_beam.transforms.userstate import ReadModifyWriteStateSpec

from penstock.errors import ServiceError, UsageError
from penstock.io.staging.refused import RefusedEvent


class TooManyDeadLettersError(ServiceError):
    """There are as many dead letters as `max_dead_letters` allows."""

    retryable = False


class StopAtLimit(beam.PTransform):
    """Passes dead letters on, and fails the pipeline when `limit` of them have come since the checkpoint was created.

    The epoch that reaches the limit is not committed, so a start with a higher limit continues with the letter that
    reached it.

    Order: as they come. What repeats: everything, with the bundle. Watermark: as for a step over single elements.
    State: one number.

    Args:
        limit: the number of letters at which the pipeline fails, 1 or more.
        element_type: the class of the letters.
        describe: a function from a letter to its place and reason, without values of the row.
        what: the name of the letters in the error message, such as "rows refused by SQLite".
    """

    def __init__(self, limit: int, element_type: Any, describe: Callable[[Any], str], what: str) -> None:
        super().__init__()
        check_limit(limit)
        self._limit, self._element_type = limit, element_type
        self._describe, self._what = describe, what

    def expand(self, letters: beam.PCollection[Any]) -> beam.PCollection[Any]:
        # Its state is in the checkpoint, so restarts count on.
        stop = beam.ParDo(_StopAtFn(self._limit, self._describe, self._what))
        return (
            letters
            # State belongs to a key, and the count is one number for the whole pipeline.
            | "One key" >> beam.WithKeys("").with_output_types(tuple[str, self._element_type])  # type: ignore[name-defined]
            | "Stop at" >> stop.with_output_types(self._element_type)
        )

    def display_data(self) -> dict[str, Any]:
        return {"limit": self._limit}


def check_limit(limit: int | None) -> None:
    """Refuse a limit that no pipeline could stay below.

    Raises:
        UsageError: it is not a number from 1.
    """
    if limit is not None and (not isinstance(limit, int) or limit < 1):
        raise UsageError(f"max_dead_letters must be 1 or more, got {limit!r}.")


def stop_at_refused(limit: int, target: str) -> StopAtLimit:
    """Return the step for the `RefusedEvent`s of a sink."""
    return StopAtLimit(limit, RefusedEvent, _describe_refused, f"rows refused by {target}")


def _describe_refused(refused: RefusedEvent) -> str:
    return f"position {refused.event.id}: {refused.reason}"


class _StopAtFn(beam.DoFn):
    COUNT = ReadModifyWriteStateSpec("count", beam.coders.VarIntCoder())

    def __init__(self, limit: int, describe: Callable[[Any], str], what: str) -> None:
        self._limit, self._describe, self._what = limit, describe, what

    def process(self, keyed: tuple[str, Any], count: Any = beam.DoFn.StateParam(COUNT)) -> list[Any]:
        _, letter = keyed
        number = (count.read() or 0) + 1
        # Not written back: the epoch fails, and the letter comes again after a restart.
        if number >= self._limit:
            raise TooManyDeadLettersError(
                f"there are {number} {self._what} (max_dead_letters={self._limit}). The last one is at "
                f"{self._describe(letter)}. Correct the cause, then start the pipeline again with a higher "
                "max_dead_letters"
            )
        count.write(number)
        return [letter]
