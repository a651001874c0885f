"""Rewinds: to which version each table of a target goes back, so that its job reads again from one time. Pure.

A target that has been complete until T, and a reader that begins at T, lose nothing. All changes from T on are read
again: a log has deleted their rows, and in the other modes a row that is written again with its version changes
nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from penstock.errors import UsageError
from penstock.timestamps import format_timestamp

__all__ = [
    "CommitOfTable",
    "RewindPlan",
    "TableRewind",
    "TableVersion",
    "plan_of_logs",
    "plan_of_rows",
    "versions_of",
]


@dataclass(frozen=True, slots=True)
class CommitOfTable:
    """One commit of a table. Times are microseconds since 1970.

    `known_us`: until when the sink knew the table to be complete before it; None: not known.
    `has_others_rows`: another program has added or removed rows with it.
    """

    number: int
    committed_us: int
    known_us: int | None = None
    has_others_rows: bool = False


@dataclass(frozen=True, slots=True)
class TableVersion:
    """One version of a table. Times are microseconds since 1970.

    `complete_us`: it has every change before (not at) this time; None: not known. `has_others_rows`: see the commit.
    """

    number: int
    committed_us: int
    complete_us: int | None = None
    has_others_rows: bool = False


@dataclass(frozen=True, slots=True)
class TableRewind:
    """What happens to the table `name`: it gets the rows of a `version`, committed at `committed_us`.

    None: it keeps its newest version, without the rows from the time of the plan on.
    """

    name: str
    version: int | None = None
    committed_us: int = 0


@dataclass(frozen=True, slots=True)
class RewindPlan:
    """The time from which changes are read again (inclusive, microseconds since 1970), and the tables of the target."""

    to_us: int
    tables: tuple[TableRewind, ...]


def versions_of(commits: Sequence[CommitOfTable], newest_us: int | None = None) -> list[TableVersion]:
    """Return the versions of a table from its commits, both newest first.

    `newest_us`: until when the newest version is complete, if something besides its commit says so.
    """
    # What the sink knew before a commit is true of the version before it.
    later = [newest_us, *(commit.known_us for commit in commits[:-1])]
    return [
        TableVersion(each.number, each.committed_us, _latest(each.known_us, us), each.has_others_rows)
        for each, us in zip(commits, later, strict=True)
    ]


def _latest(*times: int | None) -> int | None:
    return max((each for each in times if each is not None), default=None)


def plan_of_logs(tables: Mapping[str, Sequence[TableVersion]], to_us: int) -> RewindPlan:
    """Return the plan for tables with a row for each change. Versions are newest first.

    Raises:
        UsageError: the tables cannot go back exactly, and what to do.
    """
    for name, versions in tables.items():
        older = next((n for n, each in enumerate(versions) if _is_before(each, to_us)), len(versions))
        _check_own(name, versions[:older])
    _check_first_mark(tables, to_us)
    return RewindPlan(to_us, tuple(map(TableRewind, sorted(tables))))


def plan_of_rows(tables: Mapping[str, Sequence[TableVersion]], to_us: int) -> RewindPlan:
    """Return the plan for tables of current rows or of their versions; otherwise as `plan_of_logs`.

    Each version was committed at or before `to_us`. The time is the latest one, at most `to_us`, until which all of
    them are complete.
    """
    chosen = {name: _chosen(name, versions, to_us) for name, versions in sorted(tables.items())}
    reached = min((_complete_us(version, to_us) for version in chosen.values()), default=to_us)
    for name, version in chosen.items():
        _check_own(name, tables[name][: tables[name].index(version)])
    _check_first_mark(tables, reached)
    rewinds = [TableRewind(name, each.number, each.committed_us) for name, each in chosen.items()]
    return RewindPlan(reached, tuple(rewinds))


def _chosen(name: str, versions: Sequence[TableVersion], to_us: int) -> TableVersion:
    """Return the version that is complete until the latest time, the oldest of several.

    It was committed at or before `to_us`. A later version may have changes from after it, also if it is complete until
    an earlier time: changes of one partition come before the watermark of another one.
    """
    fit = [each for each in versions if each.complete_us is not None and each.committed_us <= to_us]
    if not fit:
        first = min((each.committed_us for each in versions if each.complete_us is not None), default=None)
        since = "no version says it" if first is None else f"the first one that says it is of {_text(first)}"
        raise UsageError(
            f"no version of the table {name} from before {_text(to_us)} says until when it is complete: {since}. "
            "Choose a later time. If the table was created after this time, delete it and repeat the command"
        )
    return max(reversed(fit), key=lambda each: _complete_us(each, to_us))


def _complete_us(version: TableVersion, at_most_us: int) -> int:
    return min(version.complete_us or 0, at_most_us)


def _is_before(version: TableVersion, to_us: int) -> bool:
    return version.complete_us is not None and version.complete_us < to_us


def _check_own(name: str, undone: Sequence[TableVersion]) -> None:
    others = [each.number for each in undone if each.has_others_rows]
    if others:
        raise UsageError(
            f"version {others[-1]} of the table {name} has changes of rows that are not this job's: of another "
            "program, or the table was written again for a column with a wider type. A rewind would undo them, and "
            "nothing would bring them back. Choose a time after this version"
        )


def _check_first_mark(tables: Mapping[str, Sequence[TableVersion]], to_us: int) -> None:
    """Check that the initial load had ended: its rows have the time of the first mark, and are not read again."""
    if tables and not any(_is_before(each, to_us) for versions in tables.values() for each in versions):
        raise UsageError(
            f"no table says that it was complete until a time before {_text(to_us)}, so the first load may not have "
            "been over. Choose a later time, or start a new job with another checkpoint folder and empty tables. "
            "Tables say it from the first start with mark_complete on"
        )


def _text(time_us: int) -> str:
    return format_timestamp(time_us * 1000)
