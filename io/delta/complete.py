"""`complete_until` of a Delta table: the marks in the metadata of its commits."""

from __future__ import annotations

import os
from collections.abc import Mapping
from datetime import datetime

import msgspec

from penstock.extras import extra_packages
from penstock.io.staging.complete_marks import complete_times, decode_mark


def complete_until(
    uri: str | os.PathLike[str],
    *,
    storage_options: Mapping[str, str] | None = None,
    commits: int = 100,
) -> dict[str, datetime]:
    """Return by job until when it has completed a Delta table; empty without a mark.

    The table has every change of the job with a commit time below (not at) the time, except dead letters. Read the time
    first, and then the table. Every commit of a sink has the time, so the last `commits` commits are looked at; raise
    the number if other writers commit more often.

    Raises:
        deltalake.exceptions.TableNotFoundError: there is no table.
    """
    with extra_packages("delta"):
        from deltalake import DeltaTable
    from penstock.io.delta.marks import USER_METADATA

    table = DeltaTable(os.fspath(uri), storage_options=dict(storage_options or {}))
    marks = []
    for commit in table.history(commits):  # the newest first
        # The text belongs to whoever has committed, so it need not be a mark.
        try:
            marks.append(decode_mark(commit.get(USER_METADATA) or b""))
        except (msgspec.DecodeError, TypeError):
            continue
    return complete_times(marks)
