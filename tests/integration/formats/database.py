"""A table with columns of every common type, in a Spanner emulator, and a writer that uses all operations."""

from __future__ import annotations

import random
import threading
from base64 import b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import date, datetime
from decimal import Decimal
from itertools import count
from typing import Any

from penstock.compat import UTC
from penstock_emulators.oracle.replay import read_table, read_types
from tests.support.waiting import join

PROJECT = INSTANCE = "penstock-test"
TABLES = ("Things", "Others")
COLUMNS = {
    "Text": "STRING(MAX)",
    "Big": "INT64",
    "Exact": "NUMERIC",
    "Ratio": "FLOAT64",
    "Flag": "BOOL",
    "Raw": "BYTES(MAX)",
    "Day": "DATE",
    "Moment": "TIMESTAMP",
    "Doc": "JSON",
    "Tags": "ARRAY<STRING(MAX)>",
    "Numbers": "ARRAY<INT64>",
}
_numbers = count()


class Database:
    """One database of an emulator with the given capture type."""

    def __init__(self, emulator: Any, capture: str) -> None:
        from google.auth.credentials import AnonymousCredentials
        from google.cloud import spanner

        self.name, self.emulator = f"formats-{next(_numbers)}", emulator
        columns = ", ".join(f"{name} {kind}" for name, kind in COLUMNS.items())
        tables = [f"CREATE TABLE {name} (Id INT64 NOT NULL, {columns}) PRIMARY KEY (Id)" for name in TABLES]
        stream = f"CREATE CHANGE STREAM Changes FOR ALL OPTIONS (value_capture_type = '{capture}')"
        emulator.create_database(PROJECT, INSTANCE, self.name, [*tables, stream])
        client = spanner.Client(
            project=PROJECT, credentials=AnonymousCredentials(), disable_builtin_metrics=True
        )
        self.client = client.instance(INSTANCE).database(self.name)
        self.commits = 0

    @property
    def types(self) -> dict[str, str]:
        """The types of the columns of all tables."""
        return read_types(self.client)[TABLES[0]]

    def rows(self) -> dict[str, dict[int, dict[str, Any]]]:
        """Return the contents of the tables by key, in the form of the consumers."""
        types, found = self.types, {}
        for table in TABLES:
            rows = read_table(self.client, table, types, ("Id",)).values()
            found[table] = {row["Id"]: {n: v for n, v in row.items() if n != "Id"} for row in rows}
        return found

    @contextmanager
    def written(self, seed: int, pause: float = 0.03) -> Iterator[threading.Event]:
        """Write random rows until the event is set or the context ends."""
        stop, errors = threading.Event(), []

        def guarded() -> None:
            try:
                self._write(random.Random(seed), stop, pause)
            except BaseException as error:
                errors.append(error)

        thread = threading.Thread(target=guarded, daemon=True)
        thread.start()
        try:
            yield stop
        finally:
            stop.set()
            join(thread)
        assert not errors, errors[0]

    def _write(self, rng: random.Random, stop: threading.Event, pause: float) -> None:
        from google.api_core.exceptions import Aborted
        from google.cloud.spanner import KeySet

        existing: dict[str, set[int]] = {table: set() for table in TABLES}
        while not stop.wait(pause):
            after = {table: set(keys) for table, keys in existing.items()}
            try:
                with self.client.batch() as batch:
                    for table in rng.sample(TABLES, rng.choice((1, 2))):
                        for key in rng.sample(range(30), rng.randint(1, 3)):
                            if key not in after[table]:
                                values = {name: value_of(name, rng) for name in COLUMNS}
                                batch.insert(table, ("Id", *values), [(key, *values.values())])
                                after[table].add(key)
                            elif rng.random() < 0.25:
                                batch.delete(table, KeySet(keys=[[key]]))
                                after[table].discard(key)
                            else:
                                names = rng.sample(sorted(COLUMNS), rng.randint(1, 4))
                                row = (key, *(value_of(name, rng) for name in names))
                                batch.update(table, ("Id", *names), [row])
            except Aborted:  # by the emulator, which runs one transaction at a time; nothing was written
                continue
            existing = after
            self.commits += 1


def value_of(column: str, rng: random.Random) -> Any:
    """Return a random value of a column, NULL and the empty value too."""
    from google.cloud.spanner_v1 import JsonObject

    if rng.random() < 0.15:
        return None
    text = rng.choice(["", "Größe ", "\u2028\n\"'\\", "x"]) + str(rng.randrange(100))
    match column:
        case "Text":
            return rng.choice(["", text])
        case "Big":
            return rng.randrange(-(2**63), 2**63)
        case "Exact":
            return Decimal(rng.randrange(-(10**30), 10**30)).scaleb(-9)
        case "Ratio":
            return rng.choice([0.0, -0.5, 1e100, rng.random()])
        case "Flag":
            return rng.random() < 0.5
        case "Raw":
            return b64encode(rng.randbytes(rng.randrange(5)))
        case "Day":
            return date.fromordinal(rng.randrange(720_000, 738_000))
        # Whole seconds: the change records of Google's emulator 1.5.28 leave the fraction out.
        case "Moment":
            return datetime.fromtimestamp(rng.randrange(10**9), UTC)
        case "Doc":
            return JsonObject({"a": [text, None, rng.randrange(10**6)], "ü": rng.random() < 0.5})
        # Without NULL elements: Google's emulator 1.5.28 ends with "Check failed: !metadata_.is_null()" for them.
        case "Tags":
            return [text for _ in range(rng.randrange(3))]
    return [rng.randrange(-(2**63), 2**63) for _ in range(rng.randrange(3))]
