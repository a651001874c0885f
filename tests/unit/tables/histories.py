"""Seeded histories of one table, and what a table made from them must hold: an oracle that knows no versions."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from penstock.event import ChangeEvent, Kind, Op, Source, TableSchema, Version
from tests.unit.formats.events import schema_of

SCHEMA = schema_of({"id": Kind.INT64}, name=Kind.STRING, amount=Kind.INT64)
WIDER = schema_of({"id": Kind.INT64}, name=Kind.STRING, amount=Kind.INT64, note=Kind.STRING)
SOURCE = Source("postgresql", "s", "shop", "public", "orders")
KEYS = 6


class Writer:
    """Makes changes of a table, and keeps the table as it is after each of them."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.rows: dict[int, dict[str, Any]] = {}
        self.number = 0

    def change(self, *, truncates: bool = True) -> ChangeEvent:
        """Make one change and return its event: a column that did not change is not always sent."""
        self.number += 1
        rng, key = self.rng, self.rng.randrange(KEYS)
        schema = SCHEMA if self.number < 25 else WIDER
        row = self.rows.get(key)
        if truncates and rng.random() < 0.03:
            self.rows.clear()
            return self._event(Op.TRUNCATE, schema, None, None, None)
        if row is None:
            row = {"id": key, "name": f"n{self.number}", "amount": self.number}
            if schema is WIDER:
                row["note"] = rng.choice([None, "x"])
            self.rows[key] = row
            return self._event(Op.CREATE, schema, {"id": key}, None, dict(row))
        if rng.random() < 0.25:
            del self.rows[key]
            return self._event(Op.DELETE, schema, {"id": key}, {"id": key}, None)
        changed = {"amount": self.number}
        if rng.random() < 0.2 and (free := [k for k in range(KEYS) if k not in self.rows]):
            new = rng.choice(free)
            self.rows[new] = {**self.rows.pop(key), **changed, "id": new}
            return self._event(Op.UPDATE, schema, {"id": new}, {"id": key}, {"id": new, **changed})
        row.update(changed)
        return self._event(Op.UPDATE, schema, {"id": key}, None, {"id": key, **changed})

    def changes(self, count: int, **options: Any) -> list[ChangeEvent]:
        return [self.change(**options) for _ in range(count)]

    def current(self) -> list[tuple[Any, ...]]:
        """Return the rows of the table: id, name, amount, note."""
        return sorted((r["id"], r["name"], r["amount"], r.get("note")) for r in self.rows.values())

    def _event(
        self, op: Op, schema: TableSchema, key: Any, before: Any, after: dict[str, Any] | None
    ) -> ChangeEvent:
        version = Version(self.number * 1000, f"tx{self.number}", "0001", 0)
        return ChangeEvent(SOURCE, op, self.number * 10**9, key, before, after, version, schema)


def split(events: Sequence[ChangeEvent], rng: random.Random) -> list[list[ChangeEvent]]:
    """Return the events in epochs of random length."""
    epochs, start = [], 0
    while start < len(events):
        size = rng.randint(1, 9)
        epochs.append(list(events[start : start + size]))
        start += size
    return epochs
