"""Tables of the modes *current* and *history* in memory, with the rows that a target would have."""

from __future__ import annotations

from collections.abc import Callable

from penstock.event import ChangeEvent, Version
from penstock.event.replica import encode_version, fold
from penstock.io.columnar.table_rows import (
    DELETED,
    KEY,
    TIMESTAMP,
    VALID_TO,
    VERSION,
    History,
    StoredRow,
    current_rows,
)


class CurrentTable:
    """A table of the mode *current*. `guarded`: its columns, if it compares versions as it writes, as Delta's do."""

    def __init__(self, guarded: frozenset[str] | None = None) -> None:
        self._guarded = guarded
        self._rows: dict[str, StoredRow] = {}
        self._truncated: Version | None = None

    def publish(self, events: list[ChangeEvent]) -> None:
        """Apply the events of an epoch."""
        for changes in fold(events).values():
            load = lambda keys: [dict(self._rows[key]) for key in keys if key in self._rows]  # noqa: E731
            written = current_rows(changes, load, self._truncated, self._guarded)
            if changes.truncated is not None:
                older = encode_version(changes.truncated)
                self._rows = {key: row for key, row in self._rows.items() if row[VERSION] >= older}
                self._truncated = Version(changes.truncated.order)
            for row in written:
                known = self._rows.get(row[KEY])
                if known is None or known[VERSION] < row[VERSION]:
                    self._rows[row[KEY]] = row

    def live(self) -> list[StoredRow]:
        """Return the rows that are not deleted."""
        return [row for row in self._rows.values() if not row[DELETED]]


class HistoryTable:
    """A table of the mode *history*."""

    def __init__(self) -> None:
        self._rows: dict[tuple[str, str], StoredRow] = {}

    def publish(self, events: list[ChangeEvent]) -> None:
        """Apply the events of an epoch, in the order of their versions."""
        history = History(
            lambda keys: self.rows(lambda row: row[KEY] in keys and (row[VALID_TO] is None or row[DELETED])),
            lambda: self.rows(lambda row: row[VALID_TO] is None),
            lambda keys: self.rows(lambda row: row[KEY] in keys),
        )
        self._rows |= {(row[KEY], row[VERSION]): row for row in history.add(events)}

    def rows(self, wanted: Callable[[StoredRow], bool] = lambda row: True) -> list[StoredRow]:
        return [dict(row) for row in self._rows.values() if wanted(row)]

    def live(self) -> list[StoredRow]:
        """Return the rows that are valid now."""
        return self.rows(lambda row: row[VALID_TO] is None)

    def at(self, time: int) -> list[StoredRow]:
        """Return the rows that are valid at a time, in nanoseconds since the epoch."""
        return self.rows(
            lambda row: row[TIMESTAMP] <= time and (row[VALID_TO] is None or time < row[VALID_TO])
        )
