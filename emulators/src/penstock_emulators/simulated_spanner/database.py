"""A database: schema, rows, change streams, and the one sequence of timestamps that orders all of it.

No clock and no threads: callers pass the present moment in nanoseconds. Timestamps that the database gives out
are whole microseconds, as the service's are.

Source: Spanner documentation, "TrueTime and external consistency": commit timestamps rise; two transactions
may share one only if they write different rows.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from penstock_emulators.simulated_spanner.capture import data_changes
from penstock_emulators.simulated_spanner.column_type import GOOGLESQL
from penstock_emulators.simulated_spanner.ddl import apply_statement
from penstock_emulators.simulated_spanner.errors import ServiceError, unimplemented
from penstock_emulators.simulated_spanner.key_ranges import KeyRanges
from penstock_emulators.simulated_spanner.mutation import Change, Mutation, Transaction
from penstock_emulators.simulated_spanner.partition import Partition
from penstock_emulators.simulated_spanner.rows import Row, Rows, SortKey
from penstock_emulators.simulated_spanner.schema import DEFAULT_PLACEMENT, Schema, Table
from penstock_emulators.simulated_spanner.stream import ChangeStream
from penstock_emulators.simulated_spanner.timestamp import format_timestamp
from penstock_emulators.simulated_spanner.value import COMMIT_TIMESTAMP, key_position

MICROSECOND = 1_000
_SEQUENCES_OF_A_RANGE_CHANGE = 3
"""Sequences that one change of key ranges takes at most: start, event and end record of one partition."""


@dataclass(slots=True)
class ReadSet:
    """The reads of a read-write transaction: the version of each row, and the moment of each table scan."""

    rows: dict[tuple[str, SortKey], int] = field(default_factory=dict)
    scans: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Committed:
    """A commit: its timestamp, how many values it wrote, and the partitions that have new records."""

    timestamp: int
    mutation_count: int
    partitions: tuple[tuple[ChangeStream, Partition], ...]


class Database:
    """One database. Not safe for threads: the server has one."""

    def __init__(
        self,
        dialect: str = GOOGLESQL,
        *,
        seed: int = 0,
        partitions: int = 2,
        granularity_us: int = 1,
    ) -> None:
        """`partitions` is how many a new change stream begins with.

        With `granularity_us` above 1 the clock of commits is that coarse, so that transactions share commit
        timestamps, which they rarely do otherwise.
        """
        self.schema = Schema(dialect)
        self.streams: dict[str, ChangeStream] = {}
        self.last = 0
        self.root_queries = 0
        self._sequence = 0
        self._closed = 0
        self._rows: dict[str, Rows] = {}
        self._written: dict[str, int] = {}
        self._rng = random.Random(f"database {seed}")
        self._partitions = partitions
        self._granularity = granularity_us * MICROSECOND

    def apply_ddl(self, statements: Sequence[str], now: int) -> None:
        """Apply DDL statements in order; those before one that fails stay applied.

        Raises:
            ServiceError: a statement is refused.
        """
        for statement in statements:
            # Each statement has its own time, as a schema change of the service has.
            timestamp = self._timestamp(now)
            apply_statement(self.schema, statement)
            self._follow_schema(timestamp)

    def _follow_schema(self, timestamp: int) -> None:
        # Rows and streams of dropped tables go; new ones begin empty.
        for name in list(self._rows):
            if name not in self.schema.tables:
                del self._rows[name]
        for name in self.schema.tables:
            self._rows.setdefault(name, Rows())
        for name in list(self.streams):
            if name not in self.schema.streams:
                del self.streams[name]
        for name, definition in self.schema.streams.items():
            stream = self.streams.get(name)
            if stream is None:
                self.streams[name] = ChangeStream(
                    definition,
                    self.schema.placements,
                    created=timestamp,
                    partitions=self._partitions,
                    # Seeded by the database, so that a replay has the same partitions.
                    rng=random.Random(self._rng.random()),
                )
                continue
            # The partitions and their records survive ALTER CHANGE STREAM.
            stream.definition = definition
            if definition.has("per_placement_tvf"):
                for placement in self.schema.placements:
                    stream.add_function(placement, timestamp, self._partitions)

    def read_timestamp(self, now: int) -> int:
        """Return the timestamp of a strong read: at or after every commit, and before every later one."""
        # A later commit gets a higher timestamp, so a repeated read returns the same rows.
        self.close(max(now, self.last))
        return self._closed

    def close(self, timestamp: int) -> None:
        """Promise that no later commit has a timestamp at or below `timestamp`."""
        self._closed = max(self._closed, timestamp)

    def row(self, table: Table, order: SortKey, timestamp: int | None = None) -> Row | None:
        """Return a row as of `timestamp`, inclusive; None is now."""
        return self._rows[table.name].at(order, timestamp)

    def version(self, table: Table, order: SortKey) -> int:
        """Return the timestamp of the last write of a row, 0 if there was none."""
        return self._rows[table.name].latest(order)[0]

    def scan(
        self, table: Table, timestamp: int | None = None, start: SortKey | None = None
    ) -> Iterator[tuple[SortKey, Row]]:
        """Yield the rows of a table as of `timestamp`, in key order; see `Rows.scan`."""
        return self._rows[table.name].scan(timestamp, start)

    def begin(self) -> Transaction:
        """Return a view of the database that mutations can be applied to."""
        return Transaction(self.schema, self.row, self.scan)

    def commit(
        self,
        mutations: Iterable[Mutation],
        now: int,
        *,
        reads: ReadSet | None = None,
        tag: str = "",
        excluded: bool = False,
    ) -> Committed:
        """Commit mutations as one transaction.

        `excluded` leaves it out of streams with allow_txn_exclusion.

        Raises:
            ServiceError: ABORTED if what `reads` says was read has changed, or what a mutation is refused for.
        """
        # Before anything is applied: an aborted transaction leaves no trace.
        self._check_reads(reads or ReadSet())
        transaction = self.begin()
        for mutation in mutations:
            transaction.apply(mutation)
        changes = transaction.changes()
        # The service cannot move a row between placements in one mutation either.
        self._check_placements(changes)
        timestamp = self._timestamp(now, changes)
        for change in changes:
            _fill_commit_timestamp(change, timestamp)
            self._rows[change.table.name].put(change.order, timestamp, change.after)
            self._written[change.table.name] = timestamp
        partitions = self._record(changes, timestamp, tag, excluded)
        # A row without values, such as a deletion, counts as one mutation.
        return Committed(timestamp, sum(len(each.written) or 1 for each in changes), tuple(partitions))

    def change_ranges(
        self,
        ranges: KeyRanges,
        action: str,
        tokens: tuple[str, ...],
        now: int,
        *,
        to: str | None = None,
        ways: int = 2,
    ) -> tuple[int, set[str]]:
        """Split, merge or move; returns the moment and the tokens concerned.

        Raises:
            ValueError: a token that does not live, or an action that is not split, merge or move.
        """
        # Commits at the moment itself belong to the new owners, so it must be above the last commit.
        timestamp = self._timestamp(now)
        if action == "split":
            touched = ranges.split(tokens[0], timestamp, self._sequence, ways)
        elif action == "merge":
            touched = ranges.merge(tokens, timestamp, self._sequence)
        elif action == "move":
            touched = ranges.move(tokens[0], timestamp, self._sequence, to)
        else:
            raise ValueError(f"{action!r} is no change of key ranges; there are split, merge and move")
        # The next commit at this timestamp must sort after the records of the change.
        self._sequence += _SEQUENCES_OF_A_RANGE_CHANGE
        return timestamp, touched

    def forget(self, now: int) -> None:
        """Drop the records that are older than the retention."""
        for stream in self.streams.values():
            for ranges in stream.functions.values():
                # Records of all streams are dropped at once, when a test asks for it.
                ranges.forget_before(now - stream.retention)

    def _record(
        self, changes: list[Change], timestamp: int, tag: str, excluded: bool
    ) -> list[tuple[ChangeStream, Partition]]:
        if not self.streams or not changes:
            return []
        # Ids come from the seed, so that a replayed history has the same ids.
        transaction = f"{self._rng.getrandbits(64):016x}"
        # All streams use the same sequences, so a record has one sequence in each of them.
        first = after = self._sequence
        touched: list[tuple[ChangeStream, Partition]] = []
        for stream in self.streams.values():
            if excluded and stream.definition.has("allow_txn_exclusion"):
                continue
            owners: dict[str, Partition] = {}

            def token_of(
                change: Change, stream: ChangeStream = stream, owners: dict[str, Partition] = owners
            ) -> str:
                ranges = stream.ranges_of(_placement(change))
                partition = ranges.owner(key_position(change.table.name, change.key))
                owners[partition.token] = partition
                return partition.token

            found = data_changes(
                stream.definition,
                changes,
                token_of,
                timestamp=timestamp,
                first_sequence=first,
                transaction=transaction,
                tag=tag,
            )
            for token, record in found:
                owners[token].append(record)
            touched += [(stream, partition) for partition in owners.values()]
            after = max(after, first + len(found))
        self._sequence = after
        return touched

    def _timestamp(self, now: int, changes: Iterable[Change] | None = None) -> int:
        """Return the next timestamp; `self._sequence` is the next free record sequence at it.

        A commit (with `changes`) may share the last one if the clock is coarse and no row is written twice.
        """
        # Upwards: a commit is never dated before the moment at which it was asked for.
        present = -(-now // self._granularity) * self._granularity
        if present <= self.last or present <= self._closed:
            # Sharing is possible before the timestamp was read by anyone.
            can_share = self._granularity > MICROSECOND and changes is not None and self.last > self._closed
            if can_share and present == self.last and not self._is_written(changes or (), self.last):
                return self.last
            above = max(self.last, self._closed) + 1
            # Whole microseconds: the service's commit timestamps have no more.
            present = -(-above // MICROSECOND) * MICROSECOND
        self.last, self._sequence = present, 0
        return present

    def _is_written(self, changes: Iterable[Change], timestamp: int) -> bool:
        return any(self.version(each.table, each.order) >= timestamp for each in changes)

    def _check_reads(self, reads: ReadSet) -> None:
        """Abort a transaction if another one changed what it read: the simulation has no locks."""
        for (table, order), version in reads.rows.items():
            # Optimistic: the version that was read must still be the newest.
            if table not in self._rows or self._rows[table].latest(order)[0] != version:
                raise _aborted()
        for table, moment in reads.scans.items():
            # A scan has no versions of rows that it did not find, so any write to the table counts.
            if self._written.get(table, 0) > moment:
                raise _aborted()

    def _check_placements(self, changes: Iterable[Change]) -> None:
        for change in changes:
            column = change.table.placement_column
            if column is not None and change.before is not None and change.after is not None:
                name = change.table.columns[column].name
                if change.before.get(name) != change.after.get(name):
                    raise unimplemented("Moving a row to another placement.")


def _aborted() -> ServiceError:
    return ServiceError("ABORTED", "Transaction was aborted: another transaction changed what it had read.")


def _placement(change: Change) -> str:
    column = change.table.placement_column
    # A deletion belongs to the placement that the row had.
    row = change.after or change.before or {}
    value = row.get(change.table.columns[column].name) if column is not None else None
    return value or DEFAULT_PLACEMENT


def _fill_commit_timestamp(change: Change, timestamp: int) -> None:
    if change.after and COMMIT_TIMESTAMP in change.after.values():
        text = format_timestamp(timestamp)
        # The placeholder becomes the timestamp of the commit, which is known only now.
        change.after = {n: text if v == COMMIT_TIMESTAMP else v for n, v in change.after.items()}
