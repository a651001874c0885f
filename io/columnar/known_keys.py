"""Remembers the keys of tables while rows of a snapshot are written, so that rows with new keys are appended.

A row whose key the table does not have needs no MERGE, which would read the table. Most rows of a snapshot are of this
kind. The driver keeps eight bytes for each key of a table while rows of a snapshot come. They are valid for one version
of the table: if another process has committed, or the driver is a new one, the column of the keys is read again. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import chain

import numpy as np
import numpy.typing as npt

from penstock.event.keys import changed_key
from penstock.event.model import ChangeEvent, Op
from penstock.io.columnar.table_rows import key_text

Hashes = npt.NDArray[np.int64]


class KnownKeys:
    """The hashes of keys. Two keys may share a hash: a new key is then taken for a known one, never the other way."""

    def __init__(self) -> None:
        # Sorted, each more than twice as long as the next one, so that all are sorted a few times only.
        self._runs: list[Hashes] = []

    def add(self, hashes: Hashes) -> None:
        """Add keys, by their `hashes_of`."""
        run = np.sort(hashes)
        while self._runs and len(self._runs[-1]) <= 2 * len(run):
            run = np.sort(np.concatenate((self._runs.pop(), run)), kind="stable")
        if len(run):
            self._runs.append(run)

    def has_any(self, hashes: Hashes) -> bool:
        """Return whether one of these keys may be known."""
        for run in self._runs:
            # The last index stands for keys beyond the end, which then do not match.
            places = np.minimum(np.searchsorted(run, hashes), len(run) - 1)
            if bool((run[places] == hashes).any()):
                return True
        return False


def hashes_of(keys: Iterable[str]) -> Hashes:
    """Return the hashes of the texts of keys. They are of this process only."""
    # Python salts the hash of texts per process, which is fine: the driver keeps them in memory only.
    return np.fromiter(map(hash, keys), np.int64)


@dataclass(frozen=True, slots=True)
class ChangedKeys:
    """The keys of the changes of a table in an epoch.

    `texts` returns their texts, each once. `of_snapshot`: rows of a snapshot are among the changes. `truncated`: a
    TRUNCATE is.
    """

    texts: Callable[[], Collection[str]]
    of_snapshot: bool
    truncated: bool = False

    @classmethod
    def of(cls, events: Sequence[ChangeEvent]) -> ChangedKeys:
        """Return the keys of events."""
        return cls(
            lambda: set(chain.from_iterable(map(_keys_of, events))),
            of_snapshot=any(event.op is Op.READ for event in events),
            truncated=any(event.op is Op.TRUNCATE for event in events),
        )


@dataclass(slots=True)
class _Table:
    """The keys of a table at a version, and the keys of the epoch that is being written."""

    version: Hashable
    keys: KnownKeys
    written: Hashes


@dataclass(slots=True)
class SnapshotKeys:
    """The keys of the tables into which rows of a snapshot are written. State of one driver."""

    _tables: dict[str, _Table] = field(default_factory=dict)

    def are_new(
        self,
        name: str,
        version: Hashable,
        changed: ChangedKeys,
        read_keys: Callable[[], Iterable[Sequence[str]]],
    ) -> bool:
        """Return whether the table has no row with a key of the epoch, so that the rows can be appended.

        `version` is the version of the table before the epoch. `read_keys` returns the texts of the keys of all rows,
        tombstones included, in parts. It is called only if the epoch has rows of a snapshot, and the keys of this
        version are not known.
        """
        # The rows of the snapshot have ended, so their memory is freed.
        if not changed.of_snapshot:
            self._tables.pop(name, None)
            return False
        table = self._tables.get(name)
        # Another writer may have added rows, so the keys of this version are read.
        if table is None or table.version != version:
            table = self._tables[name] = _Table(version, KnownKeys(), hashes_of(()))
            for part in read_keys():
                table.keys.add(hashes_of(part))
        table.written = hashes_of(changed.texts())
        # A TRUNCATE concerns rows of other keys.
        return not table.keys.has_any(table.written) and not changed.truncated

    def committed(self, name: str, version: Hashable) -> None:
        """Note that the epoch for which `are_new` was asked last was committed as this version of the table."""
        # The table is missing if the epoch had no rows of a snapshot.
        table = self._tables.get(name)
        if table is not None:
            table.version = version
            table.keys.add(table.written)


def _keys_of(event: ChangeEvent) -> list[str]:
    # A change of a key touches the old key too.
    old_key = changed_key(event)
    return [key_text(key) for key in (event.key, old_key) if key]
