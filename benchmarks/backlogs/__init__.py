"""Sources with changes that wait to be read, for whole pipelines: PostgreSQL, Spanner, Bigtable and YDB.

    with postgres.backlog(changes=200_000, rows_per_transaction=500) as waiting:
        command = ["penstock", "run", "postgres-to-files", …, *waiting.settings(empty=False)]

Every change has ten columns and some 200 bytes. The service runs on this machine, as a process that is not part of the
pipeline's process tree.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from penstock.timestamps import format_timestamp


class Before(NamedTuple):
    """What comes before the first run, if the changes are of a table that the target has already.

    `fill` returns the parameters of a run that loads the table. `commit` commits the changes, after all such runs.
    """

    fill: Callable[[], Mapping[str, str]]
    commit: Callable[[], None]


@dataclass(frozen=True, slots=True)
class Backlog:
    """Changes of one service that have been committed and not read.

    Args:
        source: the first part of the names of its templates, such as ``postgres``.
        changes: how many changes wait. Each becomes one line of output.
        settings: returns the parameters of a new run. With `empty` the run begins after the last change, so that it
            only starts, finds nothing and ends.
        before: what comes before the first run; None: the target is empty then.
        written: which rows of a table of current rows the run has written, as a condition of SQL. Each change must be
            of another row. None: several changes are of one row, so the rows cannot be counted.
    """

    source: str
    changes: int
    settings: Callable[[bool], Mapping[str, str]]
    before: Before | None = None
    written: str | None = None


def batches(changes: int, rows: int) -> Iterator[range]:
    """Yield the numbers of the changes, from 0, in batches of `rows`; the last batch may be smaller."""
    for first in range(0, changes, rows):
        yield range(first, min(first + rows, changes))


def times_since(start: int) -> Callable[[bool], dict[str, str]]:
    """Return the times of a run, from `empty`. Call this after the last commit. `start`: before the first, in ns."""
    time.sleep(0.1)  # so that `end` is after the last commit also on a clock of milliseconds
    end = time.time_ns()
    return lambda empty: {"start": format_timestamp(end if empty else start), "end": format_timestamp(end)}
