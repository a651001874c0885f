"""Transfers between accounts in two tables: the writers, the pipeline that assembles them, and what must hold.

python -m tests.integration.transforms.transfers --database=… --output=… --start=… --end=… --checkpoint_dir=…
"""

from __future__ import annotations

import random
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from operator import itemgetter
from pathlib import Path
from typing import Any

import apache_beam as beam

from penstock.io.files import WriteToJsonLines
from penstock.io.spanner import ReadFromSpannerChangeStream
from penstock.pipelines.program import run_program
from penstock.transforms import (
    AssembledTransaction,
    AssembleTransactions,
    Barriers,
    Deduplicate,
    OrderByKey,
    ShardByKey,
    ShardRecord,
    ToChangeEvents,
)
from penstock_emulators.oracle.lines import Line, read_lines
from tests.support.waiting import join

PROJECT = INSTANCE = "penstock-test"
TABLES = ("Accounts", "Savings")
ACCOUNTS, SHARDS = 12, 2
DDL = [
    *(f"CREATE TABLE {name} (Id INT64 NOT NULL, Amount INT64) PRIMARY KEY (Id)" for name in TABLES),
    "CREATE CHANGE STREAM Changes FOR ALL OPTIONS (value_capture_type = 'OLD_AND_NEW_VALUES')",
]


def build(
    pipeline: beam.Pipeline,
    *,
    database: str,
    output: str,
    start: str,
    end: str,
) -> None:
    """Write whole transactions to `output`/transactions, and the records of each shard to `output`/shards."""
    source = ReadFromSpannerChangeStream(
        project=PROJECT, instance=INSTANCE, database=database, change_stream="Changes", start=start, end=end
    )
    events = pipeline | source | ToChangeEvents(database=database)
    transactions = events | Deduplicate(horizon_seconds=60) | AssembleTransactions()
    sums = transactions | "Sums" >> beam.Map(transaction_line)
    _ = sums | "WriteSums" >> WriteToJsonLines(
        f"{output}/transactions", table="transactions", roll_seconds=0.5
    )
    records = events | OrderByKey() | ShardByKey(SHARDS) | Barriers(shards=SHARDS, interval_seconds=0.2)
    _ = (
        records
        | "Records" >> beam.Map(shard_line)
        | "WriteRecords"
        >> WriteToJsonLines(
            f"{output}/shards", table="shards", shard=itemgetter("shard"), shards=SHARDS, roll_seconds=0.5
        )
    )


def transaction_line(transaction: AssembledTransaction) -> dict[str, Any]:
    """Return the id, the commit time, and the sum of all amounts that were added to accounts."""
    gains = [
        (event.after or {}).get("Amount", 0) - (event.before or {}).get("Amount", 0)
        for event in transaction.events
    ]
    return {
        "id": transaction.id,
        "timestamp": transaction.timestamp,
        "sum": sum(gains),
        "events": len(gains),
        "tables": len({event.source.table for event in transaction.events}),
    }


def shard_line(pair: tuple[int, ShardRecord]) -> dict[str, Any]:
    """Return the virtual timestamp of a record of a shard, and whether it is a barrier."""
    shard, record = pair
    timestamp = record.timestamp
    return {"shard": shard, "ts": [timestamp.step, timestamp.tx_id], "barrier": record.is_barrier}


class Bank:
    """Four writers; each transfer moves money between accounts of both tables in one transaction."""

    def __init__(self, emulator: Any, name: str) -> None:
        from google.auth.credentials import AnonymousCredentials
        from google.cloud import spanner

        emulator.create_database(PROJECT, INSTANCE, name, DDL)
        client = spanner.Client(
            project=PROJECT, credentials=AnonymousCredentials(), disable_builtin_metrics=True
        )
        self.name, self.commits = name, list[tuple[int, int]]()
        self._database = client.instance(INSTANCE).database(name)
        with self._database.batch() as batch:
            for table in TABLES:
                batch.insert(table, ("Id", "Amount"), [(number, 100) for number in range(ACCOUNTS)])
        self.opened = time.time()
        """Before the first transfer, and after the first deposits, in seconds since the epoch."""

    @contextmanager
    def open(self, seed: int) -> Iterator[threading.Event]:
        """Transfer until the event is set or the context ends. `commits` gets (commit time, rows) of each transfer."""
        stop, errors = threading.Event(), list[BaseException]()

        def guarded(number: int) -> None:
            try:
                self._transfer(random.Random(f"{seed}/{number}"), stop)
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=guarded, args=(number,), daemon=True) for number in range(4)]
        for thread in threads:
            thread.start()
        try:
            yield stop
        finally:
            stop.set()
            join(*threads)
        assert not errors, errors[0]

    def committed_until(self, seconds: float) -> list[tuple[int, int]]:
        """Return `commits` up to a time: a transfer that was aborted by others may be tried again seconds later."""
        return [(at, rows) for at, rows in self.commits if at <= round(seconds * 1_000_000) * 1000]

    def _transfer(self, rng: random.Random, stop: threading.Event) -> None:
        while not stop.wait(0.03):
            accounts = {
                (table, rng.randrange(ACCOUNTS)) for table in TABLES for _ in range(rng.randint(1, 2))
            }
            amounts = [rng.randrange(1, 50) for _ in accounts]
            amounts[0] -= sum(amounts)
            used: list[Any] = []

            def move(
                transaction: Any,
                plan: Any = tuple(zip(sorted(accounts), amounts, strict=True)),
                used: Any = used,
            ) -> None:
                used.append(transaction)
                for (table, number), amount in plan:
                    statement = f"UPDATE {table} SET Amount = Amount + {amount} WHERE Id = {number}"
                    transaction.execute_update(statement)

            self._database.run_in_transaction(move)
            committed = used[-1].committed
            at = int(committed.timestamp()) * 1_000_000_000 + committed.nanosecond
            self.commits.append((at, len(accounts)))


def check_transactions(output: Path, commits: list[tuple[int, int]]) -> int:
    """Check that each transfer is there once, whole, and in commit order; return their number."""
    lines = [line.content for line in read_lines(output / "transactions")]
    assert [line["sum"] for line in lines] == [0] * len(lines), "a transfer was split or doubled"
    found = {(line["timestamp"], line["events"]) for line in lines}
    lost, foreign = set(commits) - found, found - set(commits)
    assert not lost, f"{len(lost)} of {len(commits)} transfers are lost"
    assert not foreign, f"{len(foreign)} transactions are no transfer"
    assert len({line["id"] for line in lines}) == len(lines)
    assert {line["tables"] for line in lines} == {2}
    order = [(line["timestamp"], line["id"]) for line in lines]
    assert order == sorted(order)
    return len(lines)


def check_barriers(output: Path, commits: list[tuple[int, int]]) -> int:
    """Check that no record follows a later barrier of its shard, and that all shards have the same barriers."""
    lines = list(read_lines(output / "shards"))
    assert sum(not line.content["barrier"] for line in lines) == sum(rows for _, rows in commits)
    barriers = {shard: _barriers_of(lines, shard) for shard in range(SHARDS)}
    assert barriers[0] == barriers[1]
    return len(barriers[0])


def _barriers_of(lines: list[Line], shard: int) -> list[list[int]]:
    found: list[list[int]] = []
    for content in (line.content for line in lines if line.content["shard"] == shard):
        assert not found or content["ts"] >= found[-1], "a record follows a later barrier"
        if content["barrier"]:
            assert content["ts"] not in found, "a barrier came twice"
            found.append(content["ts"])
    return found


if __name__ == "__main__":
    from tests.integration.transforms import transfers

    sys.exit(run_program(transfers.build))
