"""A history in which changes come late, as dead letters do that are replayed: the same as if they had come in order."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest

from penstock.event import ChangeEvent, Op
from penstock.io.columnar.table_rows import (
    DELETED,
    KEY,
    TIMESTAMP,
    VALID_TO,
    VERSION,
    History,
    StoredRow,
)
from tests.unit.tables.histories import SCHEMA, Writer

MOMENTS = range(61)


class Table:
    """A table in memory, with the rows that a target would have."""

    def __init__(self) -> None:
        self.rows: dict[tuple[str, str], StoredRow] = {}

    def publish(self, events: list[ChangeEvent]) -> None:
        history = History(
            lambda keys: self._rows(lambda row: row[KEY] in keys and (row[VALID_TO] is None or row[DELETED])),
            lambda: self._rows(lambda row: row[VALID_TO] is None),
            lambda keys: self._rows(lambda row: row[KEY] in keys),
        )
        for row in history.add(events):
            self.rows[row[KEY], row[VERSION]] = row

    def _rows(self, wanted: Any) -> list[StoredRow]:
        return [dict(row) for row in self.rows.values() if wanted(row)]

    def at(self, moment: int) -> list[tuple[Any, ...]]:
        """Return the rows that are valid at a moment, in seconds."""
        time = moment * 10**9
        valid = self._rows(
            lambda row: row[TIMESTAMP] <= time and (row[VALID_TO] is None or time < row[VALID_TO])
        )
        return sorted((row["id"], row["name"], row["amount"]) for row in valid)


def whole_rows(seed: int) -> list[ChangeEvent]:
    """Return changes without TRUNCATE, whose rows are whole."""
    writer, events = Writer(seed), []
    for _ in range(60):
        event = writer.change(truncates=False)
        after = event.after and {name: writer.rows[event.after["id"]].get(name) for name in SCHEMA.names}
        events.append(msgspec.structs.replace(event, after=after, schema=SCHEMA))
    return events


@pytest.mark.parametrize("seed", range(12))
def test_late_changes_become_versions_between_their_neighbours(seed: int):
    events, rng = whole_rows(seed), random.Random(seed)
    in_order, out_of_order = Table(), Table()
    in_order.publish(events)
    late = [event for event in events if rng.random() < 0.3]
    early = [event for event in events if event not in late]
    for start in range(0, len(early), 7):
        out_of_order.publish(early[start : start + 7])
    rng.shuffle(late)
    for event in late:
        out_of_order.publish([event])
        if rng.random() < 0.3:
            out_of_order.publish([event])
    for moment in MOMENTS:
        assert out_of_order.at(moment) == in_order.at(moment), moment


def test_a_deleted_row_does_not_come_back_with_its_late_creation():
    events = whole_rows(0)
    deletion = next(event for event in events if event.op is Op.DELETE)
    creation = next(
        event for event in events if event.key == deletion.key and event.version < deletion.version
    )
    table = Table()
    table.publish([deletion])
    assert [row[TIMESTAMP] == row[VALID_TO] for row in table.rows.values()] == [True]
    table.publish([creation])
    assert table.at(10**6) == []
    assert len(table.at(creation.timestamp // 10**9)) == 1
