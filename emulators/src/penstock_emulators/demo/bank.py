"""A bank with real tables: money that moves between accounts, and orders that are created, changed and deleted.

Every transfer takes an amount from one account and gives the same amount to another one. So the sum over all accounts
never changes, not even between two transactions. Orders have every column type, with the values that the emulator's
change stream delivers unchanged. (The emulator aborts on a NULL in an array, drops fractions of seconds, and turns NaN
into null: see the list in docs/spanner.md.)
"""

from __future__ import annotations

import random
import string
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any

from penstock.compat import UTC

STREAM = "Everything"

DDL = (
    """CREATE TABLE Accounts (
        AccountId INT64 NOT NULL,
        Owner STRING(MAX) NOT NULL,
        Balance NUMERIC NOT NULL,
        OpenedOn DATE,
    ) PRIMARY KEY (AccountId)""",
    """CREATE TABLE Transfers (
        FromAccount INT64 NOT NULL,
        TransferId STRING(36) NOT NULL,
        ToAccount INT64 NOT NULL,
        Amount NUMERIC NOT NULL,
        Memo STRING(MAX),
        MadeAt TIMESTAMP NOT NULL,
    ) PRIMARY KEY (FromAccount, TransferId DESC)""",
    """CREATE TABLE Orders (
        OrderId INT64 NOT NULL,
        Customer STRING(MAX),
        Urgent BOOL,
        Quantity INT64,
        Weight FLOAT64,
        Share FLOAT32,
        Price NUMERIC,
        Document BYTES(MAX),
        PlacedOn DATE,
        PlacedAt TIMESTAMP,
        Details JSON,
        Tags ARRAY<STRING(MAX)>,
        Parts ARRAY<INT64>,
        Flags ARRAY<BOOL>,
        Readings ARRAY<FLOAT64>,
        Costs ARRAY<NUMERIC>,
        Scans ARRAY<BYTES(MAX)>,
        Visits ARRAY<DATE>,
        Calls ARRAY<TIMESTAMP>,
    ) PRIMARY KEY (OrderId)""",
    f"CREATE CHANGE STREAM {STREAM} FOR ALL OPTIONS (value_capture_type = 'OLD_AND_NEW_VALUES')",
)

KEYS = {"Accounts": ("AccountId",), "Transfers": ("FromAccount", "TransferId"), "Orders": ("OrderId",)}

ACCOUNTS = 400
OPENING_BALANCE = Decimal("1000.00")
TOTAL = ACCOUNTS * OPENING_BALANCE

_ACCOUNT = ("AccountId", "Owner", "Balance", "OpenedOn")
_TRANSFER = ("FromAccount", "TransferId", "ToAccount", "Amount", "Memo", "MadeAt")
_INT64 = 1 << 63
_TEXTS = ("", "plain", "Zoë ✓ 東京", 'quotes " and \\ and \n lines \t', "NULL", "{}", "\u2028")


def open_accounts(database: Any) -> int:
    """Insert all accounts in one transaction; return the number of changed rows."""
    rows = [(number, f"owner {number}", OPENING_BALANCE, date(2026, 1, 1)) for number in range(ACCOUNTS)]
    with database.batch() as batch:
        batch.insert("Accounts", _ACCOUNT, rows)
    return len(rows)


def transfer(database: Any, rng: random.Random, count: int) -> int:
    """Make `count` transfers between different accounts in one transaction; return the number of changed rows."""
    from google.cloud.spanner import KeySet

    chosen = rng.sample(range(ACCOUNTS), 2 * count)
    pairs = list(zip(chosen[:count], chosen[count:], strict=True))
    amounts = [Decimal(rng.randint(1, 5_000)).scaleb(-2) for _ in pairs]
    transfers = [_transfer_row(rng, pair, amount) for pair, amount in zip(pairs, amounts, strict=True)]

    def move(transaction: Any) -> None:
        found = transaction.read(
            "Accounts", ("AccountId", "Balance"), KeySet(keys=[[each] for each in chosen])
        )
        balances = dict(found)
        for (payer, payee), amount in zip(pairs, amounts, strict=True):
            balances[payer] -= amount
            balances[payee] += amount
        transaction.update("Accounts", ("AccountId", "Balance"), list(balances.items()))
        transaction.insert("Transfers", _TRANSFER, transfers)

    database.run_in_transaction(move)
    return 3 * count


@dataclass
class OrderBook:
    """The orders that exist. This process knows all of them, because no other process writes orders."""

    rng: random.Random
    open: list[int] = field(default_factory=list)
    last: int = 0

    def trade(self, database: Any, inserts: int, updates: int, deletes: int) -> int:
        """Insert, update and delete several orders in one transaction; return the number of changed rows."""
        new = list(range(self.last + 1, self.last + 1 + inserts))
        touched = self.rng.sample(self.open, min(len(self.open), updates + deletes))
        changed, gone = touched[:updates], touched[updates:]
        inserted = [order_row(self.rng, number) for number in new]
        updated = [some_columns(self.rng, number) for number in changed]

        def write(transaction: Any) -> None:
            from google.cloud.spanner import KeySet

            transaction.insert("Orders", list(inserted[0]), [list(row.values()) for row in inserted])
            for row in updated:
                transaction.update("Orders", list(row), [list(row.values())])
            if gone:
                transaction.delete("Orders", KeySet(keys=[[number] for number in gone]))

        database.run_in_transaction(write)
        self.last += inserts
        self.open = [number for number in self.open if number not in set(gone)] + new
        return inserts + len(changed) + len(gone)


def order_row(rng: random.Random, number: int) -> dict[str, Any]:
    """Return a complete order. About one value in six is NULL, and many are at the limits of their type."""
    from google.cloud.spanner_v1.data_types import JsonObject

    row = {
        "OrderId": number,
        "Customer": text(rng),
        "Urgent": rng.random() < 0.5,
        "Quantity": rng.choice([0, -_INT64, _INT64 - 1, 2**53 + 1, rng.randrange(-_INT64, _INT64)]),
        "Weight": real(rng),
        "Share": rng.choice([0.0, 0.5, -1.25, 3.0e38, 65_536.0]),
        "Price": number_of(rng),
        "Document": blob(rng),
        "PlacedOn": day(rng),
        "PlacedAt": second(rng),
        "Details": JsonObject(
            {"n": rng.randrange(10**6), "texts": [text(rng)], "deep": {"ok": True, "no": None}}
        ),
        "Tags": [text(rng) for _ in range(rng.randrange(4))],
        "Parts": [rng.randrange(-_INT64, _INT64) for _ in range(rng.randrange(4))],
        "Flags": [rng.random() < 0.5 for _ in range(rng.randrange(4))],
        "Readings": [real(rng) for _ in range(rng.randrange(4))],
        "Costs": [number_of(rng) for _ in range(rng.randrange(4))],
        "Scans": [blob(rng) for _ in range(rng.randrange(4))],
        "Visits": [day(rng) for _ in range(rng.randrange(4))],
        "Calls": [second(rng) for _ in range(rng.randrange(4))],
    }
    return {
        name: None if name != "OrderId" and rng.random() < 1 / 6 else value for name, value in row.items()
    }


def some_columns(rng: random.Random, number: int) -> dict[str, Any]:
    """Return new values for a few columns of an order, with its key first."""
    row = order_row(rng, number)
    chosen = rng.sample(list(row)[1:], 3)
    return {"OrderId": number} | {name: row[name] for name in chosen}


def text(rng: random.Random) -> str:
    return rng.choice((*_TEXTS, "".join(rng.choices(string.ascii_letters, k=12))))


def real(rng: random.Random) -> float:
    return rng.choice([0.1, -1.5, 1e308, 5e-324, 1 / 3, rng.uniform(-1e6, 1e6)])


def number_of(rng: random.Random) -> Decimal:
    """A NUMERIC, from the smallest to the largest."""
    edges = ["0", "-0.000000001", "9" * 29 + "." + "9" * 9, "-" + "9" * 29]
    return Decimal(rng.choice([*edges, f"{rng.randrange(10**12)}.{rng.randrange(10**9):09d}"]))


def blob(rng: random.Random) -> bytes:
    """BYTES, in the form that the client takes: base64."""
    import base64

    return base64.b64encode(rng.randbytes(rng.choice([0, 1, 16, 200])))


def day(rng: random.Random) -> date:
    return rng.choice(
        [date(1000, 1, 1), date(9999, 12, 31), date(2024, 2, 29) + timedelta(rng.randrange(900))]
    )


def second(rng: random.Random) -> datetime:
    return datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=rng.randrange(-(10**9), 10**9))


def sum_of_balances(rows: Iterable[dict[str, Any]]) -> Decimal:
    """The money in the bank, from rows whose balances are text or numbers."""
    return sum((Decimal(row["Balance"]) for row in rows), Decimal(0))


def _transfer_row(rng: random.Random, pair: tuple[int, int], amount: Decimal) -> Sequence[Any]:
    return pair[0], f"{rng.getrandbits(64):016x}", pair[1], amount, rng.choice([None, text(rng)]), second(rng)
