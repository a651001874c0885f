"""Histories of one table whose keys change, with values that are not sent, and the rows that they leave: an oracle.

The oracle follows the statements with all values. It knows no versions, no batches and no columns that are not sent.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from hypothesis import strategies as st

from penstock.event import ChangeEvent, Column, ColumnType, Kind, Op, Source, TableSchema, Version

SOURCE = Source("postgresql", "srv", "shop", "public", "orders")
_INT, _TEXT = ColumnType(Kind.INT64), ColumnType(Kind.STRING)
LARGE = ("big", "wide")
"""Columns that are sent only when they change, as large values of PostgreSQL are."""
SCHEMA = TableSchema(
    (Column("id", _INT, False, 1), Column("a", _INT), *(Column(name, _TEXT) for name in LARGE))
)
KEYS, SPARE = 4, 9
"""Keys that rows have, and the key that a swap of two rows uses in between."""

KINDS = ("put", "large", "remove", "move", "swap", "chain", "there and back", "clear", "read")
Row = dict[str, Any]
Rows = dict[int, Row]


@dataclass
class KeyHistory:
    """A table that notes its statements as events. `states` has the rows after each event."""

    whole: bool = False
    """Whether the source sends all values, as with REPLICA IDENTITY FULL."""
    statements_of_a_transaction: int = 3
    rows: Rows = field(default_factory=dict)
    events: list[ChangeEvent] = field(default_factory=list)
    states: list[Rows] = field(default_factory=list)

    def apply(self, kind: str, key: int, other: int) -> None:
        """Make the statements of a kind if the rows allow it. `key` and `other` choose the rows."""
        taken, free = sorted(self.rows), [each for each in range(KEYS) if each not in self.rows]
        if kind == "clear":
            self.rows.clear()
            self._note(Op.TRUNCATE, None, None, None)
        elif kind == "put" and free:
            self.insert(free[key % len(free)])
        elif taken:
            self._change(kind, taken[key % len(taken)], taken[other % len(taken)], free)

    def _change(self, kind: str, one: int, two: int, free: list[int]) -> None:
        if kind == "put":
            self.update(one, one, {})
        elif kind == "large":
            self.update(one, one, {LARGE[two % 2]: self._text()})
        elif kind == "remove":
            del self.rows[one]
            self._note(Op.DELETE, one, {"id": one}, None)
        elif kind == "read":
            self._note(Op.READ, one, None, self.rows[one])
        elif kind == "move" and free:
            self.update(one, free[two % len(free)], {"big": self._text()} if two == 0 else {})
        elif kind == "swap" and one != two:
            self.update(one, SPARE, {})
            self.update(two, one, {})
            self.update(SPARE, two, {})
        elif kind == "chain" and free:
            self.update(one, SPARE, {})
            self.update(SPARE, free[two % len(free)], {})
        elif kind == "there and back":
            self.update(one, SPARE, {})
            self.update(SPARE, one, {})

    def insert(self, key: int) -> None:
        self.rows[key] = {"a": len(self.events), "big": self._text(), "wide": self._text()}
        self._note(Op.CREATE, key, None, self.rows[key])

    def update(self, old: int, new: int, large: Row) -> None:
        changed = {"a": len(self.events), **large}
        self.rows[new] = {**self.rows.pop(old), **changed}
        before = {"id": old} if old != new else None
        self._note(Op.UPDATE, new, before, self.rows[new] if self.whole else changed)

    def _text(self) -> str:
        return f"text {len(self.events)}"

    def _note(self, op: Op, key: int | None, before: Row | None, after: Row | None) -> None:
        number = len(self.events)
        of_key = {} if key is None else {"id": key}
        transaction = number // self.statements_of_a_transaction
        version = Version(transaction, f"{transaction}", f"{number:06d}")
        self.events.append(
            ChangeEvent(
                SOURCE,
                op,
                (number + 1) * 1_000_000_000,
                of_key or None,
                before,
                None if after is None else {**of_key, **after},
                version,
                SCHEMA,
            )
        )
        self.states.append({each: dict(row) for each, row in self.rows.items()})


@st.composite
def histories(draw: Any, kinds: Sequence[str] = KINDS, whole: bool = False) -> KeyHistory:
    """Return a history of statements of these kinds. It begins with two rows, so that the first kinds find some."""
    history = KeyHistory(whole, draw(st.integers(1, 4)))
    history.insert(0)
    history.insert(1)
    for kind, key, other in draw(
        st.lists(st.tuples(st.sampled_from(kinds), st.integers(0, 3), st.integers(0, 3)), max_size=12)
    ):
        history.apply(kind, key, other)
    return history


def parts_of(events: Sequence[ChangeEvent], sizes: Sequence[int]) -> list[list[ChangeEvent]]:
    """Return the events in parts of these sizes; the last part has what remains."""
    parts, start = [], 0
    for size in sizes:
        parts.append(list(events[start : start + size]))
        start += size
    parts.append(list(events[start:]))
    return [part for part in parts if part]
