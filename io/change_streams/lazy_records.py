"""`LazyRecords`: many records of one time that are made when they are asked for. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

RecordT = TypeVar("RecordT")


class LazyRecords(Sequence[RecordT]):
    """The records of one claim. A consumer that knows their class may read them without making records.

    `commit_timestamp`: of all of them, nanoseconds since 1970.
    """

    __slots__ = ("commit_timestamp",)
    commit_timestamp: int
