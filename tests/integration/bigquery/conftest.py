"""An emulator of BigQuery, and datasets in it."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest

from penstock.event import ChangeEvent
from penstock.io.bigquery.clients import rest_client
from penstock.io.bigquery.target import BigQueryTarget
from penstock.io.bigquery.write import connector_of
from penstock.io.staging.delivery import Delivery, Sent
from penstock_emulators.bigquery import BigQueryEmulator

_NUMBERS = itertools.count()


@pytest.fixture(scope="session")
def emulator() -> Iterator[BigQueryEmulator]:
    with BigQueryEmulator.start() as running:
        yield running


class Dataset:
    """A dataset, and the sink that writes to it; each delivery goes through a new sender, as from a new process."""

    def __init__(self, emulator: BigQueryEmulator, **options: Any) -> None:
        self.target = BigQueryTarget(
            "p",
            f"d{next(_NUMBERS)}",
            endpoint=emulator.endpoint,
            write_endpoint=emulator.write_endpoint,
            **options,
        )
        self.client = rest_client(self.target)

    def create(self) -> Dataset:
        self.client.create_dataset(f"p.{self.target.dataset}")
        return self

    def deliver(self, events: list[ChangeEvent], epoch: int, *, skip_refused: bool = False) -> Sent:
        sender = connector_of(self.target).open(skip_refused=skip_refused)
        try:
            return sender.send(Delivery("sink", "job", 0, 1, 1, epoch), events)
        finally:
            sender.close()

    def query(self, sql: str) -> list[tuple[Any, ...]]:
        """Run a query; ``{d}`` is the dataset."""
        rows = self.client.query(sql.format(d=self.target.dataset)).result()
        return [tuple(row.values()) for row in rows]


@pytest.fixture
def log(emulator: BigQueryEmulator) -> Dataset:
    return Dataset(emulator).create()


@pytest.fixture
def current(emulator: BigQueryEmulator) -> Dataset:
    return Dataset(emulator, mode="current", nanoseconds="truncate").create()
