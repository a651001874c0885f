"""A history in which changes come late, as dead letters do that are replayed: the same as if they had come in order."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest

from penstock.event import ChangeEvent, Op
from penstock.io.columnar.table_rows import TIMESTAMP, VALID_TO
from tests.support.lake_tables import HistoryTable
from tests.unit.tables.histories import SCHEMA, Writer

MOMENTS = range(61)


class Table(HistoryTable):
    """A table of the mode *history* of the writer's rows."""

    def at_second(self, moment: int) -> list[tuple[Any, ...]]:
        return sorted((row["id"], row["name"], row["amount"]) for row in self.at(moment * 10**9))


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
        assert out_of_order.at_second(moment) == in_order.at_second(moment), moment


def test_a_deleted_row_does_not_come_back_with_its_late_creation():
    events = whole_rows(0)
    deletion = next(event for event in events if event.op is Op.DELETE)
    creation = next(
        event for event in events if event.key == deletion.key and event.version < deletion.version
    )
    table = Table()
    table.publish([deletion])
    assert [row[TIMESTAMP] == row[VALID_TO] for row in table.rows()] == [True]
    table.publish([creation])
    assert table.at_second(10**6) == []
    assert len(table.at_second(creation.timestamp // 10**9)) == 1
