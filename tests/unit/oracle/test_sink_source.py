"""The source of the kill campaigns of sinks: its statements follow from each other, and its events are complete."""

from __future__ import annotations

from tests.support.sinks.source import (
    COMPARED,
    ROUND,
    SLOTS,
    WRITERS,
    Key,
    Truth,
    events_of,
    statement,
    whole,
)

END = 3 * SLOTS * ROUND


def test_each_statement_finds_the_rows_that_it_needs() -> None:
    rows: set[Key] = set()
    for number in range(END):
        made = statement(WRITERS[0], number)
        before = made.key if made.old_key is None else made.old_key
        assert (before in rows) == (made.op != "CREATE"), number
        assert made.old_key is None or made.key not in rows, number
        rows = rows - {before} | ({made.key} if made.values is not None else set())
    assert len(rows) == len(Truth(END).rows()) / len(WRITERS)


def test_no_change_of_a_key_has_the_large_value_unless_the_row_is_made_whole() -> None:
    """The value follows the row through changes of its key; most rows have one that an earlier key had."""
    moved = [
        event
        for number in range(END)
        for event in events_of({"key": "w1", "n": number})
        if event.before and event.after
    ]
    assert len(moved) > END // 4
    assert not any("big" in (event.after or {}) for event in moved)
    rows = {}
    for number in range(END):
        made = statement("w1", number)
        row = rows.pop(made.key if made.old_key is None else made.old_key, {})
        if made.values is not None:
            rows[made.key] = {**row, **made.values}
        (event,) = events_of({"key": "w1", "n": number})
        if made.old_key is not None:
            after = whole(event).after or {}
            assert [after[name] for name in COMPARED] == [rows[made.key][name] for name in COMPARED]
