"""Sessions and the transactions in them: the rows that a statement reads, and the checks of a commit.

There are no locks. A read-write transaction notes the versions of what it reads, and its commit is ABORTED if
one of them has changed: the client's library then runs it again, as it does when the service aborts it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, TypeAlias

from penstock_emulators.simulated_spanner.database import Database, ReadSet
from penstock_emulators.simulated_spanner.errors import ServiceError, failed, invalid, not_found
from penstock_emulators.simulated_spanner.mutation import Mutation, Transaction
from penstock_emulators.simulated_spanner.rows import Row, SortKey
from penstock_emulators.simulated_spanner.schema import Table, duration_seconds
from penstock_emulators.simulated_spanner.timestamp import SECOND, format_timestamp


@dataclass(slots=True)
class Snapshot:
    """A read-only transaction: everything is as of `timestamp`, inclusive."""

    database: Database
    timestamp: int
    id: bytes = b""
    partitioned: tuple[int, list[Row]] = (0, [])
    """The rows of the last partitioned read and a number that stands for it: each of its tokens needs them again."""

    def row(self, table: Table, order: SortKey) -> Row | None:
        """Return one row."""
        return self.database.row(table, order, self.timestamp)

    def scan(self, table: Table, start: SortKey | None = None) -> Any:
        """Return all rows in key order, or those from `start` on."""
        return self.database.scan(table, self.timestamp, start)


@dataclass(slots=True)
class ReadWrite:
    """A read-write transaction with its reads and the effect of its DML so far."""

    database: Database
    id: bytes
    excluded: bool = False
    tag: str = ""
    reads: ReadSet = field(default_factory=ReadSet)
    mutations: list[Mutation] = field(default_factory=list)
    effect: Transaction | None = None

    def row(self, table: Table, order: SortKey) -> Row | None:
        """Return one row and note its version."""
        self.reads.rows.setdefault((table.name, order), self.database.version(table, order))
        return self.effect.row(table, order) if self.effect else self.database.row(table, order)

    def scan(self, table: Table) -> Any:
        """Return all rows in key order and note that any change of the table matters."""
        # Predicates are not kept: any later write to the table is a conflict.
        self.reads.scans.setdefault(table.name, self.database.last)
        return self.effect.scan(table) if self.effect else self.database.scan(table)

    def apply(self, mutations: list[Mutation]) -> None:
        """Take the effect of a DML statement: later statements of the transaction see it."""
        self.effect = self.effect or self.database.begin()
        for mutation in mutations:
            self.effect.apply(mutation)
        self.mutations += mutations


AnyTransaction: TypeAlias = Snapshot | ReadWrite


@dataclass(slots=True)
class Session:
    """A session with its transactions by id; a committed one stays, so that a repeated commit is answered."""

    name: str
    database: Database
    multiplexed: bool
    transactions: dict[bytes, AnyTransaction] = field(default_factory=dict)
    committed: dict[bytes, Any] = field(default_factory=dict)

    def begin(self, options: Any, number: int, now: int) -> AnyTransaction:
        """Begin a transaction of the kind that TransactionOptions say."""
        identity = f"tx-{number}".encode()
        if options.HasField("read_only"):
            moment = read_timestamp(self.database, options.read_only, now)
            started: AnyTransaction = Snapshot(self.database, moment, identity)
        else:
            started = ReadWrite(self.database, identity, options.exclude_txn_from_change_streams)
        self.transactions[identity] = started
        return started

    def transaction(self, identity: bytes) -> AnyTransaction:
        """Return a transaction by its id.

        Raises:
            ServiceError: NOT_FOUND, or FAILED_PRECONDITION after its commit.
        """
        found = self.transactions.get(identity)
        if found is None:
            raise not_found(f"Transaction not found: {identity!r}")
        return found

    def read_write(self, identity: bytes) -> ReadWrite:
        """Return a read-write transaction by its id.

        Raises:
            ServiceError: there is none.
        """
        found = self.transaction(identity)
        if not isinstance(found, ReadWrite):
            raise ServiceError("FAILED_PRECONDITION", "Cannot commit a read-only transaction.")
        return found


def read_timestamp(database: Database, read_only: Any, now: int) -> int:
    """Return the timestamp of a TransactionOptions.ReadOnly; it may lie in the future, then the caller waits."""
    bound = read_only.WhichOneof("timestamp_bound")
    if bound in ("read_timestamp", "min_read_timestamp"):
        given = getattr(read_only, bound)
        moment: int = given.seconds * SECOND + given.nanos
        if bound == "read_timestamp":
            _check_kept(database, moment, now)
            return moment
        return max(moment, database.read_timestamp(now))
    if bound in ("exact_staleness", "max_staleness"):
        given = getattr(read_only, bound)
        staleness: int = given.seconds * SECOND + given.nanos
        if staleness < 0:
            raise invalid("Staleness must not be negative.")
        # Reading at the bound itself is allowed for max_staleness, and the freshest answer is better.
        if bound == "exact_staleness":
            _check_kept(database, now - staleness, now)
            return now - staleness
        return database.read_timestamp(now)
    return database.read_timestamp(now)


def _check_kept(database: Database, moment: int, now: int) -> None:
    """Check that the versions of that time are kept. Source: Spanner documentation, "Point-in-time recovery"."""
    if moment < now - duration_seconds(database.schema.version_retention) * SECOND:
        raise failed(
            f"Read-only transaction timestamp {format_timestamp(moment)} has exceeded the maximum timestamp staleness"
        )
