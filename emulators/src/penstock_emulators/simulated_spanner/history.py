"""Seeded histories: transactions of random rows in between random changes of key ranges, in virtual time.

    play(database, clock, random.Random(7), steps=200)

The values reach the edges of each type, since a history is also a test of decoders.
"""

from __future__ import annotations

import base64
import json
import random
import string
import uuid
from collections.abc import Callable
from typing import Any

from penstock_emulators.simulated_spanner.churn import ChurnLimits, next_change
from penstock_emulators.simulated_spanner.clock import Clock
from penstock_emulators.simulated_spanner.column_type import ColumnType
from penstock_emulators.simulated_spanner.database import Database
from penstock_emulators.simulated_spanner.key_set import KeySet
from penstock_emulators.simulated_spanner.mutation import REPLACE, UPDATE, UPSERT, Delete, Mutation, Write
from penstock_emulators.simulated_spanner.schema import Table
from penstock_emulators.simulated_spanner.value import Value

# The edges of 64 bits, and the first integer that a double cannot hold.
_INT64_EDGES = ("0", "-1", str((1 << 63) - 1), str(-(1 << 63)), str((1 << 53) + 1))
_TEXTS = ("", "NULL", "{}", "Zoë ✓ 東京", 'quotes " and \\ and \n lines', "\u2028", "\x7f")
_MAX_NANOSECONDS = 2_000_000_000
"""Longest time between two steps of a history."""


def play(
    database: Database,
    clock: Clock,
    rng: random.Random,
    *,
    steps: int,
    keys: int = 20,
    limits: ChurnLimits = ChurnLimits(),
    churn_share: float = 0.3,
) -> int:
    """Play `steps` steps and return how many transactions were committed.

    Each step moves the clock by up to two seconds, often by nothing, and then either changes the ranges of one
    function of one stream (with the probability `churn_share`) or commits a transaction on `keys` keys.
    """
    commits = 0
    functions = [ranges for stream in database.streams.values() for ranges in stream.functions.values()]
    for _ in range(steps):
        # Often nothing, so that several things happen at one time.
        clock.advance(rng.choice((0, 0, 1_000, rng.randrange(_MAX_NANOSECONDS))))
        if functions and rng.random() < churn_share:
            ranges = rng.choice(functions)
            change = next_change(rng, ranges, limits)
            database.change_ranges(
                ranges, change.action, change.tokens, clock.now(), to=change.to, ways=change.ways
            )
        else:
            database.commit(_mutations(database, rng, keys), clock.now(), tag=rng.choice(("", "history")))
            commits += 1
    return commits


def _mutations(database: Database, rng: random.Random, keys: int) -> list[Mutation]:
    found: list[Mutation] = []
    # Small transactions are the usual case, and large ones must occur.
    for _ in range(rng.choice((1, 1, 1, 2, 5))):
        table = database.schema.tables[rng.choice(list(database.schema.tables))]
        found.append(_mutation(database, table, rng, keys))
    return found


def _mutation(database: Database, table: Table, rng: random.Random, keys: int) -> Mutation:
    numbers = rng.sample(range(keys), min(keys, rng.choice((1, 1, 2, 4))))
    kind = rng.choice((UPSERT, UPSERT, UPSERT, REPLACE, UPDATE, "delete"))
    if kind == "delete":
        return Delete(table.name, KeySet(tuple(_key(table, number) for number in numbers)))
    # An update of a row that is not there would fail the transaction; an upsert of some columns is as good.
    others = [number for number in range(len(table.columns)) if number not in table.key]
    required = [n for n in others if table.columns[n].not_null or table.columns[n].placement_key]
    chosen = (
        others if kind != UPDATE else sorted({*required, *rng.sample(others, rng.randint(0, len(others)))})
    )
    columns = (*table.key, *chosen)
    rows = tuple(
        (*_key(table, number), *(_column_value(database, table, column, rng, number) for column in chosen))
        for number in numbers
    )
    names = tuple(table.columns[column].name for column in columns)
    return Write(UPSERT if kind == UPDATE else kind, table.name, names, rows)


def _key(table: Table, number: int) -> tuple[Value, ...]:
    """Return the key with a number; all parts are made of it."""
    return tuple(key_value(table.columns[column].kind, number) for column in table.key)


def key_value(kind: ColumnType, number: int) -> Value:
    """Return a value of a key column's type that no other number has."""
    if kind.code in ("INT64", "NUMERIC", "ENUM"):
        return str(number)
    if kind.code in ("FLOAT32", "FLOAT64"):
        return float(number)
    if kind.code == "BOOL":
        return bool(number % 2)
    if kind.code in ("BYTES", "PROTO"):
        return base64.b64encode(str(number).encode()).decode()
    if kind.code == "DATE":
        return f"{number + 1:04d}-01-01"
    if kind.code == "TIMESTAMP":
        return f"{number + 1:04d}-01-01T00:00:00Z"
    if kind.code == "UUID":
        return str(uuid.UUID(int=number))
    return f"key {number}"


def _column_value(database: Database, table: Table, column: int, rng: random.Random, number: int) -> Value:
    definition = table.columns[column]
    if definition.placement_key:
        names = ["default", *database.schema.placements]
        return names[number % len(names)]  # a row stays in its placement
    if not definition.not_null and rng.random() < 0.15:
        return None
    return random_value(definition.kind, rng, definition.length)


def random_value(kind: ColumnType, rng: random.Random, length: int | None = None) -> Value:
    """Return a random value of a type, often at its edge."""
    if kind.element is not None:
        element = kind.element
        return [
            None if rng.random() < 0.2 else random_value(element, rng, length)
            for _ in range(rng.choice((0, 1, 3)))
        ]
    value = _RANDOM[kind.code](rng, kind)
    if length is not None and kind.code == "STRING":
        return value[:length]
    return value


def _float(rng: random.Random, kind: ColumnType) -> Value:
    edges: tuple[Value, ...] = (0.0, -0.5, "NaN", "Infinity", "-Infinity", rng.gauss(0, 1e6))
    return rng.choice((*edges, 1.7976931348623157e308, 5e-324) if kind.code == "FLOAT64" else edges)


def _numeric(rng: random.Random, kind: ColumnType) -> str:
    if kind.annotation:
        # PostgreSQL's numeric has NaN, and more digits than Spanner's NUMERIC.
        return rng.choice(
            ("NaN", "0", "1.50", "-0.001", "9" * 60 + "." + "9" * 40, str(rng.randrange(10**9)))
        )
    return rng.choice(("0", "-0.000000001", "9" * 29 + "." + "9" * 9, f"{rng.randrange(10**6)}.25"))


def _timestamp(rng: random.Random, _: ColumnType) -> str:
    fraction = rng.choice(("", ".5", ".123456789", ".000000001"))
    return f"{rng.choice((1, 1969, 2026, 9999)):04d}-12-31T23:59:59{fraction}Z"


def _json(rng: random.Random, kind: ColumnType) -> str:
    # JSON may contain line separators, which some readers of lines break at.
    value: Any = rng.choice((None, True, 0.5, "text", [], {}, {"a": [1, None, {"b": "\u2028"}]}))
    return json.dumps(value)


_RANDOM: dict[str, Callable[[random.Random, ColumnType], Value]] = {
    "BOOL": lambda rng, _: rng.random() < 0.5,
    "INT64": lambda rng, _: rng.choice((*_INT64_EDGES, str(rng.getrandbits(40)))),
    "ENUM": lambda rng, _: str(rng.randrange(4)),
    "FLOAT32": _float,
    "FLOAT64": _float,
    "NUMERIC": _numeric,
    "STRING": lambda rng, _: rng.choice(
        (*_TEXTS, "".join(rng.choices(string.printable, k=rng.choice((5, 60)))))
    ),
    "BYTES": lambda rng, _: base64.b64encode(rng.randbytes(rng.choice((0, 1, 40)))).decode(),
    "PROTO": lambda rng, _: base64.b64encode(rng.randbytes(rng.choice((0, 8)))).decode(),
    "DATE": lambda rng, _: f"{rng.choice((1, 1970, 2026, 9999)):04d}-02-{rng.randint(1, 28):02d}",
    "TIMESTAMP": _timestamp,
    "JSON": _json,
    "UUID": lambda rng, _: str(uuid.UUID(int=rng.getrandbits(128))),
    "INTERVAL": lambda rng, _: rng.choice(("P1Y2M3DT4H5M6.5S", "P-10000Y", "PT0.000000001S", "P0Y")),
}
