"""A small transactional database with a log, as PostgreSQL behaves: commits are in the log before others see them.

A row is a pair (a, big). `big` is a large value: an update that does not change it sends `UNCHANGED`. A transaction
holds the locks of its rows until its commit is visible, so a later change of a row always sees an earlier one.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

UNCHANGED = "UNCHANGED"

Row = tuple[Any, Any]


@dataclass(frozen=True)
class Change:
    """One change in the log. `row` None: the key was deleted; `key` None: the table was truncated."""

    transaction: int
    key: int | None
    old_key: int | None = None
    row: Row | None = None

    @property
    def whole(self) -> bool:
        return self.row is None or self.row[1] is not UNCHANGED


@dataclass
class Transaction:
    number: int
    rows: dict[int, Row | None] = field(default_factory=dict)
    truncates: bool = False
    changes: list[Change] = field(default_factory=list)
    committed: bool = False


class Database:
    """One table. `log` has the changes of committed transactions; a place in it is a position of the stream."""

    def __init__(self, rows: dict[int, Row]) -> None:
        self.rows = dict(rows)
        self.log: list[Change] = []
        self.visible: set[int] = set()
        self.open: list[Transaction] = []
        self._numbers = 0
        self._values = 1000

    def begin(self) -> Transaction:
        self._numbers += 1
        transaction = Transaction(self._numbers)
        self.open.append(transaction)
        return transaction

    def is_free(self, key: int, transaction: Transaction) -> bool:
        others = [each for each in self.open if each is not transaction]
        return not any(key in each.rows or each.truncates for each in others)

    def row(self, key: int, transaction: Transaction) -> Row | None:
        if key in transaction.rows:
            return transaction.rows[key]
        return None if transaction.truncates else self.rows.get(key)

    def write(self, transaction: Transaction, kind: str, key: int, other: int) -> None:
        """Change a row, if it is free and the change is possible."""
        if not self.is_free(key, transaction):
            return
        row = self.row(key, transaction)
        self._values += 1
        # Every other value is low, so that a row may move to either side in the order of its values.
        number, value = transaction.number, self._values if self._values % 2 else -self._values
        if (kind == "insert" and row is None) or (kind == "update" and row is not None):
            transaction.rows[key] = (value, f"big{value}")
            transaction.changes.append(Change(number, key, row=transaction.rows[key]))
        elif kind == "touch" and row is not None:
            transaction.rows[key] = (value, row[1])
            transaction.changes.append(Change(number, key, row=(value, UNCHANGED)))
        elif kind == "delete" and row is not None:
            transaction.rows[key] = None
            transaction.changes.append(Change(number, key))
        elif kind == "move" and row is not None and key != other and self.is_free(other, transaction):
            if self.row(other, transaction) is not None:
                return
            transaction.rows[key], transaction.rows[other] = None, (value, row[1])
            transaction.changes.append(Change(number, other, key, (value, UNCHANGED)))
        elif kind == "truncate" and not any(each is not transaction for each in self.open):
            transaction.truncates, transaction.rows = True, {}
            transaction.changes.append(Change(number, None))

    def commit(self, transaction: Transaction) -> None:
        """Write the transaction to the log; others do not see it yet."""
        if not transaction.committed:
            transaction.committed = True
            self.log += transaction.changes

    def show(self, transaction: Transaction) -> None:
        """Make a committed transaction visible, and release its locks."""
        if transaction.truncates:
            self.rows = {}
        for key, row in transaction.rows.items():
            if row is None:
                self.rows.pop(key, None)
            else:
                self.rows[key] = row
        self.visible.add(transaction.number)
        self.open.remove(transaction)

    def roll_back(self, transaction: Transaction) -> None:
        if not transaction.committed:
            self.open.remove(transaction)

    @property
    def is_locked(self) -> bool:
        """Whether a reader of the table waits for a truncate."""
        return any(transaction.truncates for transaction in self.open)
