"""Checks of the arguments of a source's transform. Each error names the fix. Pure."""

from __future__ import annotations

import time
from typing import TypeVar

from penstock.errors import UsageError
from penstock.timestamps import NANOS, Timelike, format_timestamp, nanoseconds

Number = TypeVar("Number", int, float)


def named(name: str, value: str) -> str:
    """Return `value` if it is a bare name.

    Raises:
        UsageError: it is empty, no text, or a path.
    """
    if not isinstance(value, str) or not value or "/" in value:
        raise UsageError(f"{name} must be a bare name, not {value!r}: pass its last part, without slashes")
    return value


def in_range(name: str, value: Number, lowest: float, highest: float) -> Number:
    """Return `value` if it is between `lowest` and `highest`, both inclusive.

    Raises:
        UsageError: it is out of range, or is not a number.
    """
    if not isinstance(value, (int, float)) or not lowest <= value <= highest:
        raise UsageError(f"{name}={value!r} is out of range: pass a number from {lowest:,} to {highest:,}")
    return value


def whole_in_range(name: str, value: float, lowest: float, highest: float) -> int:
    """Return `value` if it is a whole number between `lowest` and `highest`, both inclusive.

    Raises:
        UsageError: it is not.
    """
    if in_range(name, value, lowest, highest) != int(value):
        raise UsageError(f"{name}={value!r} is not a whole number: pass one from {lowest:,} to {highest:,}")
    return int(value)


def period(start: Timelike | None, end: Timelike | None, *, ahead_seconds: int) -> tuple[int, int | None]:
    """Return the first and last timestamp to read, in nanoseconds, both inclusive.

    `start` None means now, `end` None means without end. The service accepts a start that is up to `ahead_seconds` in
    the future. Without a start, the end is checked later (`check_end`): a pipeline that resumes does not use its start,
    which would be "now", and must not be rejected because its end is before now.

    Raises:
        UsageError: a time is malformed, the start is too far in the future, or the end is before the start.
    """
    now = time.time_ns()
    first = now if start is None else nanoseconds("start", start)
    last = None if end is None else nanoseconds("end", end)
    if start is not None:
        check_times(first, last, now, ahead_seconds=ahead_seconds)
    return first, last


def check_times(start: int, end: int | None, now: int, *, ahead_seconds: int) -> None:
    """Check the times to read between, in nanoseconds. The service accepts a start up to `ahead_seconds` after `now`.

    Raises:
        UsageError: the start is further ahead, or the end is before the start.
    """
    text = format_timestamp(start)
    if start > now + ahead_seconds * NANOS:
        raise UsageError(
            f"start {text} is more than {ahead_seconds} s in the future, which the service refuses; "
            "pass an earlier one, or none"
        )
    if end is not None and end < start:
        raise UsageError(f"end {format_timestamp(end)} is before start {text}; pass a later end, or none")


def check_end(start: int, end: int | None, error: type[Exception]) -> None:
    """Check at the first start of a pipeline that its end, in nanoseconds, is not before its start.

    Raises:
        the error given: the end is before the start.
    """
    if end is not None and end < start:
        raise error(
            f"end {format_timestamp(end)} is before {format_timestamp(start)}, where reading would start; pass an "
            "earlier start or a later end"
        )


def require_same(checkpoint: str, program: str, error: type[Exception]) -> None:
    """Reject a checkpoint of another change stream, or with another end.

    Its changes would be mistaken for changes of this stream, and all changes up to this end would count as published.
    `checkpoint` and `program` are the identities in the checkpoint and in the running program.

    Raises:
        the error given: they differ.
    """
    if checkpoint != program:
        raise error(
            f"the checkpoint belongs to the {checkpoint}, but the program reads the {program}. Change the program to "
            "continue from the checkpoint, or pass another folder as --checkpoint_dir to read the other one"
        )
