"""The test service with a table and a changefeed, and writers that change the table."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from penstock.io.ydb import ReadFromYdbChangefeed
from penstock_emulators.ydb import YdbEmulator
from penstock_emulators.ydb.control import Control, ControlError
from tests.support.epochs import Epochs
from tests.support.waiting import join

MILLISECOND = 1_000_000
COLUMNS = {"id": "Uint64", "note": "Utf8", "amount": "Int64"}


@pytest.fixture(scope="session")
def service() -> Iterator[YdbEmulator]:
    """A service that all tests of a process share; each test has its own tables."""
    with YdbEmulator.start(scan_rows=5) as running:
        yield running


class Table:
    """A table `name` with the changefeed `feed`."""

    def __init__(
        self, service: YdbEmulator, name: str, *, rows: int = 0, shards: int = 2, **options: Any
    ) -> None:
        self.service, self.control, self.name = service, service.control, name
        self.topic = f"{name}/feed"
        self.control.create_table(name, COLUMNS, ["id"], shards=shards)
        for first in range(0, rows, 100):
            keys = range(first, min(rows, first + 100))
            self.control.commit([["upsert", name, [key], {"note": "old", "amount": 0}] for key in keys])
        chosen = {"mode": "NEW_AND_OLD_IMAGES", "virtual_timestamps": True, "barrier_seconds": 0.1}
        self.control.add_changefeed(name, "feed", **{**chosen, **options})

    def source(self, **options: Any) -> ReadFromYdbChangefeed:
        names = {"endpoint": self.service.endpoint, "database": self.service.database}
        return ReadFromYdbChangefeed(**{**names, "table": self.name, "changefeed": "feed", **options})

    def upsert(self, *keys: int, note: str = "new") -> int:
        """Commit one transaction; return its commit time in nanoseconds."""
        operations = [["upsert", self.name, [key], {"note": note, "amount": key}] for key in keys]
        return self.control.commit(operations)[0] * MILLISECOND

    def read_until(self, timestamp: int, parts: int = 2, **options: Any) -> list[Any]:
        """Read in short epochs until the watermark has passed a time; return the records."""
        epochs = Epochs(self.source(**options), parts)
        epochs.run_until(timestamp, 0.1)
        return epochs.committed


_NUMBERS = iter(range(1_000_000))


@pytest.fixture
def new_table(service: YdbEmulator) -> Any:
    """Return a function that creates a table with a changefeed; its arguments are those of `Table`."""
    return lambda **options: Table(service, f"t{next(_NUMBERS)}", **options)


class Writers:
    """A thread that commits transactions and changes the partitions of the topic until `stop`."""

    def __init__(self, table: Table, seed: int, *, pause: float, keys: int = 60) -> None:
        self.transactions = self.splits = self.merges = 0
        self._table, self._pause, self._keys = table, pause, keys
        self._draw = random.Random(seed)
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    @property
    def is_running(self) -> bool:
        return self._thread.is_alive()

    def stop(self) -> None:
        self._stopped.set()
        join(self._thread)

    def _run(self) -> None:
        # A connection of its own: that of the fixture belongs to the test's thread.
        control, table = Control(self._table.service.host), self._table
        while not self._stopped.wait(self._pause):
            operations: list[Any] = []
            for key in self._draw.sample(range(self._keys), self._draw.randrange(1, 5)):
                kind = self._draw.choice(("upsert", "upsert", "replace", "erase"))
                values = {} if kind == "erase" else {"note": str(self.transactions), "amount": key}
                operations.append([kind, table.name, [key], values])
            control.commit(operations)
            self.transactions += 1
            if self.transactions % 40 == 0:
                self._repartition(control)
            if self.transactions % 25 == 0:
                control.hold(table.name, self._draw.randrange(2), self._draw.random() < 0.5)
        for shard in range(2):
            control.hold(table.name, shard, False)
        control.close()

    def _repartition(self, control: Control) -> None:
        topic = self._table.topic
        active = [number for number, (_, _, is_active) in control.offsets(topic).items() if is_active]
        try:
            if len(active) < 4:
                control.split(topic, self._draw.choice(active))
                self.splits += 1
            else:
                control.merge(topic, *self._draw.sample(active, 2))
                self.merges += 1
        except ControlError:
            return  # two partitions that are not neighbours
