"""Sources with changes that wait to be read, for whole pipelines: PostgreSQL, Spanner, Bigtable and YDB.

    with postgres.backlog(changes=200_000, rows_per_transaction=500) as waiting:
        command = ["penstock", "run", "postgres-to-files", …, *waiting.settings(empty=False)]

Every change has ten columns and some 200 bytes. The service runs on this machine, as a process that is not part of the
pipeline's process tree.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Backlog:
    """Changes of one service that have been committed and not read.

    Args:
        source: the first part of the names of its templates, such as ``postgres``.
        changes: how many changes wait. Each becomes one line of output.
        settings: returns the parameters of a new run. With `empty` the run begins after the last change, so that it
            only starts, finds nothing and ends.
    """

    source: str
    changes: int
    settings: Callable[[bool], Mapping[str, str]]
