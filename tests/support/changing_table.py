"""A table in memory that writes down its statements as events, for tests of sinks."""

from __future__ import annotations

import random
from typing import Any

from penstock.event import ChangeEvent, Column, ColumnType, Kind, Op, Source, TableSchema, Version

SOURCE = Source("postgresql", "srv", "shop", "public", "orders")
COLUMNS = ("a", "b", "c")
_INT = ColumnType(Kind.INT64)
SCHEMA = TableSchema((Column("k", _INT, False, 1), *(Column(name, _INT) for name in COLUMNS)))


class ChangingTable:
    """A table that writes down its statements as events. `rows` is the oracle: key to the columns outside of it."""

    def __init__(
        self, seed: int, *, partial: bool = True, keys_move: bool = True, truncates: bool = True
    ) -> None:
        self._rng = random.Random(seed)
        self._partial, self._keys_move, self._truncates = partial, keys_move, truncates
        self.rows: dict[int, dict[str, int]] = {}
        self.events: list[ChangeEvent] = []
        self.states: list[dict[int, dict[str, int]]] = []
        """The rows after each event."""

    def statement(self) -> None:
        self._statement()
        self.states.append(dict(self.rows))

    def _statement(self) -> None:
        rng, rows = self._rng, self.rows
        key = rng.randrange(5)
        roll = rng.random()
        if key not in rows:
            rows[key] = {name: rng.randrange(100) for name in COLUMNS}
            self._emit(Op.CREATE, key, None, rows[key])
        elif roll < 0.2:
            before = rows.pop(key)
            self._emit(Op.DELETE, key, before, None)
        elif roll < 0.25 and self._truncates:
            rows.clear()
            self._emit(Op.TRUNCATE, None, None, None)
        elif roll < 0.45 and self._keys_move and (free := [each for each in range(5) if each not in rows]):
            self._update(key, rng.choice(free))
        elif roll < 0.6:
            self._emit(Op.READ, key, None, rows[key])
        else:
            self._update(key, key)

    def _update(self, old: int, new: int) -> None:
        row = self.rows.pop(old)
        changed = {name: self._rng.randrange(100) for name in COLUMNS if self._rng.random() < 0.5}
        self.rows[new] = row | changed
        sent = changed if self._partial else self.rows[new]
        self._emit(Op.UPDATE, new, {} if old != new else None, sent, old)

    def _emit(self, op: Op, key: Any, before: Any, after: Any, old_key: Any = None) -> None:
        number = len(self.events) + 1
        image = None if key is None else {"k": key}
        old = None if before is None else {"k": key if old_key is None else old_key, **before}
        new = None if after is None else {"k": key, **after}
        version = Version(number // 3, f"{number // 3}", f"{number:06d}")
        self.events.append(ChangeEvent(SOURCE, op, number, image, old, new, version, SCHEMA))


def changed_table(seed: int, statements: int, **options: bool) -> ChangingTable:
    """Return a table after a number of pseudo-random statements."""
    table = ChangingTable(seed, **options)
    for _ in range(statements):
        table.statement()
    return table
