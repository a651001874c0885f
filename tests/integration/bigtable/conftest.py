"""A real emulator, tables with a change stream, and writers that use every kind of mutation."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

import pytest

from penstock.io.bigtable import ReadFromBigtableChangeStream
from penstock_emulators.bigtable import BigtableEmulator, Control
from tests.integration.bigtable.replay import Cells
from tests.integration.emulators.bigtable.client import (
    Client,
    Mutation,
    add_to_cell,
    delete_column,
    delete_family,
    delete_row,
    set_cell,
)
from tests.support.writers import WriterThreads

PROJECT = INSTANCE = "penstock-test"
SUM = {
    "value_type": {
        "aggregate_type": {"input_type": {"int64_type": {"encoding": {"big_endian_bytes": {}}}}, "sum": {}}
    }
}
FAMILIES: dict[str, Any] = {"f": {}, "g": {}, "sums": SUM}
_numbers = count()


class Table:
    """One table of the running emulator, with a raw client for writing and the ordinary one for reading."""

    def __init__(self, emulator: BigtableEmulator, splits: tuple[bytes, ...] = ()) -> None:
        self.emulator = emulator
        self.id = f"changes-{next(_numbers)}"
        self.client = Client(emulator.host, self.id)
        self.client.create(FAMILIES, splits=splits)

    @property
    def control(self) -> Control:
        return self.emulator.control

    @property
    def name(self) -> str:
        return self.client.table

    def reading(self, **options: Any) -> ReadFromBigtableChangeStream:
        """Return the transform that reads this table's change stream."""
        given = {
            "project": PROJECT,
            "instance": INSTANCE,
            "table": self.id,
            "heartbeat_seconds": 0.2,
            "emulator_host": self.emulator.host,
        }
        return ReadFromBigtableChangeStream(**{**given, **options})

    def cells(self) -> Cells:
        """Return all cells, as the ordinary client reads them."""
        from google.cloud.bigtable.data import BigtableDataClient, ReadRowsQuery

        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("BIGTABLE_EMULATOR_HOST", self.emulator.host)
            with BigtableDataClient(project=PROJECT) as client, client.get_table(INSTANCE, self.id) as table:
                return {
                    row.row_key: {(c.family, c.qualifier, c.timestamp_micros): c.value for c in row.cells}
                    for row in table.read_rows_stream(ReadRowsQuery())
                }


@pytest.fixture(scope="session")
def emulator() -> Iterator[BigtableEmulator]:
    with BigtableEmulator.start() as emulator:
        yield emulator


@pytest.fixture
def new_table(emulator: BigtableEmulator) -> Iterator[Callable[..., Table]]:
    made: list[Table] = []

    def make(*splits: bytes) -> Table:
        made.append(Table(emulator, splits))
        return made[-1]

    yield make
    for table in made:
        table.client.close()


@pytest.fixture
def table(new_table: Callable[..., Table]) -> Table:
    return new_table()


def merge_to_cell(family: str, qualifier: bytes, amount: int) -> Any:
    mutation = Mutation()
    merge = mutation.merge_to_cell
    merge.family_name, merge.column_qualifier.raw_value = family, qualifier
    merge.timestamp.raw_timestamp_micros = 0
    merge.input.raw_value = amount.to_bytes(8, "big", signed=True)
    return mutation


class Writers(WriterThreads):
    """Threads that change random rows with every kind of call, until stopped; `writes` counts the calls."""

    def __init__(self, table: Table, threads: int = 3, rows: int = 40, pause: float = 0.005) -> None:
        super().__init__(threads, pause)
        self.writes = 0
        self._table = table
        self._rows = rows

    def write(self, rng: random.Random, seed: int, number: int) -> None:
        write(self._table.client, rng, self._rows, b"%d/%d" % (seed, number))
        with self._lock:
            self.writes += 1


def write(client: Client, rng: random.Random, rows: int, value: bytes) -> None:
    """Make one call of a random kind that changes rows; `value` is unique to the caller."""
    key = row_key(rng.randrange(rows))
    way = rng.choice(("row", "row", "rows", "check", "modify", "sum", "delete", "column", "family", "big"))
    if way == "row":
        client.write(key, set_cell("f", b"\xff\0", value), set_cell("g", b"", value, 1000 * rng.randrange(9)))
    elif way == "rows":
        keys = {row_key(rng.randrange(rows)) for _ in range(5)}
        client.write_many([(each, [set_cell("f", b"many", value + each)]) for each in keys])
    elif way == "check":
        client.check_and_write(key, [set_cell("f", b"there", value)], [set_cell("f", b"gone", value)])
    elif way == "modify":
        rule = {"family_name": "g", "column_qualifier": b"count", "increment_amount": 1}
        client.read_modify_write(key, rule)
    elif way == "sum":
        client.write(key, add_to_cell("sums", b"q", rng.randrange(9)), merge_to_cell("sums", b"q", -1))
    elif way == "delete":
        client.write(key, delete_row())
    elif way == "column":
        client.write(
            key, set_cell("f", b"after", value), delete_column("g", b"", 2000, rng.choice((0, 6000)))
        )
    elif way == "family":
        client.write(key, delete_family("g"), set_cell("f", b"left", value))
    else:
        client.write(key, set_cell("f", b"big", value * 100))


def row_key(number: int) -> bytes:
    """Return the key of a random row of the writers; some keys are not text."""
    return bytes([6 * number % 256]) + b"\0row" if number % 3 else b"row%03d" % number


@pytest.fixture
def writers() -> Callable[..., Writers]:
    return Writers
