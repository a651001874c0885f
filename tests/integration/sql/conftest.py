"""A PostgreSQL server as the target, and deliveries as the runner makes them."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.event import ChangeEvent
from penstock.io.sql.target import SqlTarget
from penstock.io.sql.write import connector_of
from penstock.io.staging.delivery import Delivery, Sent
from tests.integration.postgres.conftest import Database, database, server

__all__ = ["Target", "database", "server", "target"]


class Target:
    """The sink on a database of its own; each delivery goes through a new connection."""

    def __init__(self, database: Database, **options: Any) -> None:
        self.database = database
        self.target = SqlTarget(database.dsn, **options)
        self.epoch = 0

    def deliver(
        self, events: list[ChangeEvent], *, epoch: int | None = None, generation: int = 1, **options: Any
    ) -> Sent:
        """Send a batch as the next epoch, or as the given one."""
        self.epoch = self.epoch + 1 if epoch is None else epoch
        shard, shards = options.pop("shard", 0), options.pop("shards", 1)
        sender = connector_of(self.target).open(skip_refused=options.pop("skip_refused", False))
        try:
            drivers = options.pop("drivers", ())
            delivery = Delivery("sink", "job", shard, shards, generation, self.epoch, drivers)
            return sender.send(delivery, events)
        finally:
            sender.close()

    def live(self, table: str = "orders", columns: str = "k, a, b, c") -> list[tuple[Any, ...]]:
        """Return the rows that are not deleted, in the order of the key."""
        return self.database.rows(f"select {columns} from {table} where not _penstock_deleted order by 1")


@pytest.fixture
def target(database: Database) -> Target:
    return Target(database)
