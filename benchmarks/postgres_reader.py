"""Reading PostgreSQL's log: events per CPU second as Debezium JSON, latency, and the log that an outage retains.

    python benchmarks/postgres_reader.py [--rows 200000] [--seconds 10] [--rounds 3]

The server is real and on this machine; rows have 8 columns and about 190 bytes, 100 of them in a transaction. All
contenders read the same slot from the same position and take turns; the median counts. CPU time is counted for this
process.

- *raw*: receives the messages of the streaming protocol and decodes nothing. It is the most that psycopg can do.
- *decode*: the messages as objects.
- *records*: records with their transactions.
- *events*: change events.
- *formatted*: the events as Debezium JSON: what a sink gets if transforms of events come before the format.
- *debezium*: the records as Debezium JSON: what a sink gets if nothing comes before the format. The bytes are the same.
"""

from __future__ import annotations

import argparse
import statistics
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import psycopg

from penstock.io.change_streams.flat import FlatFrontier, FlatPosition
from penstock.io.postgres import ReadFromPostgresChangeStream
from penstock.io.postgres.client import Client
from penstock.io.postgres.decode import decode
from penstock.io.postgres.events import EventConverter
from penstock.io.postgres.log_decoder import LogDecoder
from penstock.io.postgres.position import Position
from penstock.io.postgres.preflight import check_source
from penstock.io.postgres.record import LogRecord
from penstock.io.postgres.transactions import TransactionReader
from penstock.transforms.formats.debezium import DebeziumFormat
from penstock.transforms.formats.debezium_log import LogRecordFormat
from penstock_emulators.postgres import PostgresServer

TABLE = (
    "create table orders (id bigint primary key, name text, email text, amount numeric(10,2), at timestamptz, "
    "paid boolean, account bigint, note text)"
)
ROWS = (
    "insert into orders select i, 'name ' || i, 'user' || i || '@example.org', i + 0.5, clock_timestamp(), true, "
    "i * 1000003, repeat('x', 80) from generate_series(%s::int8, %s::int8) i"
)
TRANSACTION = 100

Consume = Callable[[int, bytes], None]
Make = Callable[[Client], Consume]


def raw(client: Client) -> Consume:
    return lambda lsn, payload: None


def decoded(client: Client) -> Consume:
    return lambda lsn, payload: decode(payload) and None


def records(client: Client, to_records: Callable[[LogRecord], object] | None = None) -> Consume:
    decoder = LogDecoder(TransactionReader(client.describe_table, 1, 0))

    def consume(lsn: int, payload: bytes) -> None:
        for step in decoder.read(lsn, payload):
            if to_records is not None and isinstance(step, LogRecord):
                to_records(step)

    return consume


def as_events(client: Client) -> Consume:
    return records(client, EventConverter("", "postgres", "changes"))


def as_formatted_events(client: Client) -> Consume:
    convert, format = EventConverter("", "postgres", "changes"), DebeziumFormat("shop")
    return records(client, lambda record: [format(event) for event in convert(record)])


def as_debezium(client: Client) -> Consume:
    return records(client, LogRecordFormat(DebeziumFormat("shop"), database="postgres", stream="changes"))


CONTENDERS: dict[str, Make] = {
    "raw": raw,
    "decode": decoded,
    "records": records,
    "events": as_events,
    "formatted": as_formatted_events,
    "debezium": as_debezium,
}
DEBEZIUM_ENGINE = 23_600
"""Events per CPU second of Debezium's own engine with JSON, measured once with the same rows on a quiet machine."""


def read_once(source: ReadFromPostgresChangeStream, make: Make, rows: int) -> float:
    """Read the whole log from the slot's position; return the CPU seconds."""
    settings, stream = source._settings, source.stream
    with Client(stream, settings.connection) as client:
        consume = make(client)
        client.take_slot()
        log = client.open_stream(0)
        began, inserts = time.process_time(), 0
        while inserts < rows:
            for lsn, payload in log.receive(1.0, 256, 1 << 20):
                if payload:
                    inserts += payload[0] == 73  # Insert
                    consume(lsn, payload)
        spent = time.process_time() - began
        log.close()
    _wait_for_free_slot(settings.connection.dsn)
    return spent


def _wait_for_free_slot(dsn: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as session:
        while session.execute("select from pg_replication_slots where active").fetchone():
            time.sleep(0.02)


def latency(source: ReadFromPostgresChangeStream, dsn: str, seconds: float) -> list[float]:
    """Commit 200 transactions a second; return the seconds from each commit to its record in the reader's queue."""
    fn = source.bounded_fn(source._settings)
    with Client(source.stream, source._settings.connection) as client:
        slot = check_source(source.stream, client.rows, create_slot=False)
    position = Position(slot.confirmed_lsn, 0, slot.system)
    frontier = FlatFrontier({source.stream.slot: FlatPosition(list(position), 0)}, None)
    committed: dict[str, float] = {}
    stopped = threading.Event()

    def write() -> None:
        with psycopg.connect(dsn, autocommit=True) as session:
            due, number = time.monotonic(), -1
            while not stopped.is_set():
                session.execute(ROWS, (number, number))
                committed[str(number)] = time.monotonic()
                number -= 1
                due += 1 / 200
                stopped.wait(max(0.0, due - time.monotonic()))

    writer = threading.Thread(target=write)
    arrived: dict[str, float] = {}
    writer.start()
    end = time.monotonic() + seconds
    with fn.open_pool(source.stream).prefetching(frontier) as prefetcher:
        prefetcher.serve(frontier)
        while time.monotonic() < end:
            batch = prefetcher.take(0.5)
            if batch is None:
                continue
            now = time.monotonic()
            for count, records, _ in batch.claims():
                arrived |= {str(record.new[0]): now for record in records if record.new is not None}
                batch.claimed += count
    stopped.set()
    writer.join()
    return [arrived[key] - at for key, at in committed.items() if key in arrived]


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--seconds", type=float, default=10, help="of the measurement of latency")
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args(words)
    with PostgresServer.start() as server, psycopg.connect(server.dsn(), autocommit=True) as session:
        session.execute(TABLE)
        session.execute("create publication changes for all tables")
        session.execute("select pg_create_logical_replication_slot('benchmark', 'pgoutput')")
        source = ReadFromPostgresChangeStream(dsn=server.dsn(), publication="changes", slot="benchmark")
        for first in range(0, arguments.rows, TRANSACTION):
            session.execute(ROWS, (first, first + TRANSACTION - 1))
        retained = "select pg_current_wal_lsn() - restart_lsn from pg_replication_slots"
        row: Any = session.execute(retained).fetchone()
        print(f"log retained while no reader ran: {row[0] / arguments.rows:,.0f} bytes a row")
        seconds: dict[str, list[float]] = {name: [] for name in CONTENDERS}
        for _ in range(arguments.rounds):
            for name, make in CONTENDERS.items():
                seconds[name].append(read_once(source, make, arguments.rows))
        for name, spent in seconds.items():
            print(f"{name:10} {arguments.rows / statistics.median(spent):10,.0f} events per CPU second")
        ratio = arguments.rows / statistics.median(seconds["debezium"]) / DEBEZIUM_ENGINE
        print(f"debezium is {ratio:.1f} times the {DEBEZIUM_ENGINE:,} of Debezium's engine")
        session.execute("select pg_replication_slot_advance('benchmark', pg_current_wal_lsn())")
        delays = sorted(latency(source, server.dsn(), arguments.seconds))
        middle, late = delays[len(delays) // 2], delays[len(delays) * 99 // 100]
        print(f"latency at 200 transactions a second: p50 {middle * 1000:.1f} ms, p99 {late * 1000:.1f} ms")


if __name__ == "__main__":
    main()
