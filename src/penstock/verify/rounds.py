"""Decides about suspects in rounds, until each is equal, a difference, or given up as changing. Pure.

The rule and its proof are in the docstring of the package.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, NamedTuple, Protocol

from penstock.compat import StrEnum
from penstock.event.model import ChangeEvent, Image, Version
from penstock.event.replica import decode_version
from penstock.verify.keys import encode_values

BATCH = 20_000
"""Keys that one round reads at most."""


class Kind(StrEnum):
    """The finding about a key."""

    MISSING = "missing"
    """Only the source has the row."""
    EXTRA = "extra"
    """Only the target has the row."""
    DIFFERENT = "different"
    REPEATED = "repeated"
    """The target has more than one row."""
    CHANGING = "changing"
    """The row changed in every round, so nothing is known. This is not a difference."""


class Snapshot(NamedTuple):
    """When rows of the source were read.

    - `sees`: whether the snapshot sees the change with a version; None: the version does not tell.
    - `until_ns`: no change that the snapshot sees has a commit time at or after it, in nanoseconds.
    - `truncate_order`: it sees each TRUNCATE whose `Version.order` is below; None: the source has none.
    """

    sees: Callable[[Version], bool | None]
    until_ns: int
    truncate_order: int | None = None


class SourceRow(NamedTuple):
    """The row of a key in the source, as an event; None if there is none."""

    event: ChangeEvent | None
    snapshot: Snapshot


class ColumnDifference(NamedTuple):
    """Two values of a column, as texts; None is NULL."""

    column: str
    source: str | None
    target: str | None


REFUSED = ColumnDifference("(the sink refuses the row)", None, None)
"""Stands for all columns of a row of the source that the target cannot hold."""


class StoredRow(NamedTuple):
    """The row of a key in the target.

    - `version`: None if it is no version of Penstock.
    - `columns`: those whose values are not what the sink would have stored.
    """

    version: Version | None
    deleted: bool
    columns: Sequence[ColumnDifference] = ()
    copies: int = 1


def stored_version(text: str | None) -> Version | None:
    """Return the version that a row of the target has; None: it is no version of Penstock."""
    try:
        return decode_version(text or "")
    except ValueError:
        return None


def column_differences(wanted: Image | None, found: Image) -> list[ColumnDifference]:
    """Return the columns of `wanted` whose values differ. A column that the source has dropped is not in it.

    `wanted`: what the sink would have stored; None: it refuses the row.
    """
    if wanted is None:
        return [REFUSED]
    return [
        ColumnDifference(name, _text(value), _text(found.get(name)))
        for name, value in wanted.items()
        if encode_values(value) != encode_values(found.get(name))
    ]


def _text(value: Any) -> str | None:
    return None if value is None else str(value)


class Look(NamedTuple):
    """Rows of the target at one time. `truncated`: `Version.order` of the newest TRUNCATE that it has applied."""

    rows: Mapping[str, StoredRow]
    truncated: int | None = None


class Finding(NamedTuple):
    """One key that is not equal. `key` is a JSON array of its values."""

    kind: Kind
    key: str
    columns: Sequence[ColumnDifference] = ()


class Source(Protocol):
    """One table of the source."""

    def rows(self, keys: Sequence[str]) -> Mapping[str, SourceRow]:
        """Return what it has of each of these keys now."""

    def rows_at(self, versions: Mapping[str, Version]) -> Mapping[str, SourceRow]:
        """Return what it had of each key right after the change with a version; nothing if it cannot read the past."""


class Target(Protocol):
    """One table of the target."""

    def look(self, rows: Mapping[str, ChangeEvent | None]) -> Look:
        """Return what it has of these keys now, compared with what the sink would store for the events."""


class Wait(Protocol):
    """Waits until the target has every change with a commit time below a time in nanoseconds."""

    def __call__(self, until_ns: int) -> None: ...


def difference(row: SourceRow, stored: StoredRow | None) -> Kind | None:
    """Return how the two differ; None if they are equal."""
    has_row = stored is not None and not stored.deleted
    if row.event is None:
        return Kind.EXTRA if has_row else None
    if stored is None or not has_row:
        return Kind.MISSING
    if stored.copies > 1:
        return Kind.REPEATED
    return Kind.DIFFERENT if stored.columns else None


def is_real(
    snapshot: Snapshot,
    stored: StoredRow | None,
    earlier: Version | None,
    truncated: int | None,
    *,
    tombstones_kept: bool,
) -> bool:
    """Return whether a difference in a round is real: the target's row has only changes that the snapshot sees.

    `earlier`: the version that the target's row had in the round before.
    """
    if stored is None:
        order = snapshot.truncate_order
        truncate_is_seen = truncated is None or order is None or truncated < order
        return truncate_is_seen and tombstones_kept
    if stored.version is None:
        return True
    sees = snapshot.sees(stored.version)
    return stored.version == earlier if sees is None else sees


@dataclass(slots=True)
class _Suspect:
    rounds: int = 0
    version: Version | None = None


def findings(
    suspects: Iterable[str],
    source: Source,
    target: Target,
    wait: Wait,
    *,
    rounds: int,
    tombstone_seconds: float,
    clock: Callable[[], float],
) -> Iterator[Finding]:
    """Yield what is found about the suspects, each after `rounds` rounds at most. Equal rows yield nothing."""
    remaining, pending = iter(suspects), dict[str, _Suspect]()
    while True:
        pending |= {key: _Suspect() for key in islice(remaining, BATCH - len(pending))}
        if not pending:
            return
        began = clock()
        rows = source.rows(list(pending))
        wait(max(row.snapshot.until_ns for row in rows.values()))
        look = target.look({key: row.event for key, row in rows.items()})
        kept = clock() - began < tombstone_seconds
        for key, row in rows.items():
            stored, suspect = look.rows.get(key), pending[key]
            kind = difference(row, stored)
            suspect.rounds += 1
            if kind is None:
                del pending[key]
            elif is_real(row.snapshot, stored, suspect.version, look.truncated, tombstones_kept=kept):
                del pending[key]
                yield Finding(kind, key, stored.columns if stored and kind is Kind.DIFFERENT else ())
            else:
                suspect.version = stored.version if stored else None
        ended = {key: suspect.version for key, suspect in pending.items() if suspect.rounds >= rounds}
        pending = {key: suspect for key, suspect in pending.items() if key not in ended}
        yield from _as_of_versions(ended, source, target, rounds)


def _as_of_versions(
    versions: dict[str, Version | None], source: Source, target: Target, attempts: int
) -> Iterator[Finding]:
    """Compare each row of the target with the source as of the row's own version, which needs no wait.

    It is decided if the target's row has still this version when it is looked at. The others are changing.
    """
    for _ in range(attempts):
        rows = source.rows_at({key: version for key, version in versions.items() if version is not None})
        if not rows:
            break
        look = target.look({key: row.event for key, row in rows.items()})
        for key, row in rows.items():
            stored = look.rows.get(key)
            if stored is None or stored.version != versions[key]:
                versions[key] = stored.version if stored else None
                continue
            del versions[key]
            if kind := difference(row, stored):
                yield Finding(kind, key, stored.columns if kind is Kind.DIFFERENT else ())
    for key in versions:
        yield Finding(Kind.CHANGING, key)
