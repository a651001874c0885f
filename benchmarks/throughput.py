"""Changes per second of whole pipelines over a backlog, with Debezium's engine and `pg_recvlogical` in the same run.

    python benchmarks/throughput.py [--changes 200000] [--rounds 1] [--only SOURCE …]
        [--sinks SINK …] [--workers N …] [--rows N …] [--no-peers]

A pipeline is the command that a user types: `penstock run postgres-to-files --set format=debezium …`, from its start to
its exit. It reads `--changes` changes that were committed before, and its figures are the figures of the run minus the
figures of the same command that finds nothing to read. So they do not have the start of Python, the JVM and the
connections.

- *Source*: PostgreSQL, the simulated Spanner, Bigtable's emulator, and the YDB test service; `backlogs/` makes them.
  They share the machine with the pipeline, and their CPU time is not counted. Those in Python limit the wall time.
- *postgres snapshot*: the rows of a table that the first start reads (`snapshot=initial`).
- *Rows*: changes in each transaction (Bigtable: rows in each request).
- *Sink*: JSON Lines files and topics of Kafka with Debezium's records, Parquet files, and change logs (`mode=log`) in
  Delta and Iceberg. Every line is counted after the run.
- *Workers*: Python workers of Spark: `--master local[N,4]`.

The peers read the same log of PostgreSQL in the same run, each from its own copy of the slot:

- *Debezium's engine* makes the same records as JSON and drops them. It has no sink, no checkpoint and no exactly-once.
  With `kafka` among the sinks it also writes them to a topic of the same broker, each batch before it is acknowledged.
  The figures of an empty run are subtracted too: one that ends with its first change. Needs Maven and Java.
- Its *initial snapshot* reads the same table as *postgres snapshot*; an empty run ends with its first row.
- *pg_recvlogical* decodes nothing. It is the most that the server sends.

CPU time is counted for the process tree of the command. `ratio` is the figure divided by the figure of Debezium's
engine with the same rows in a transaction, or with 500 where it has none: above 1 Penstock is faster.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from backlogs import Backlog, bigtable, postgres, spanner, ydb  # noqa: E402
from measure import Cost, ProgramStopwatch, Spread, heading, machine, row  # noqa: E402
from peers.debezium import run as debezium  # noqa: E402

from penstock_emulators.kafka import KafkaBroker  # noqa: E402

SOURCES = {
    "postgres": postgres.backlog,
    "postgres snapshot": postgres.rows_of_a_table,
    "spanner": spanner.backlog,
    "bigtable": bigtable.backlog,
    "ydb": ydb.backlog,
}
SHARE = {"postgres": 1.0, "postgres snapshot": 1.0, "spanner": 1.0, "bigtable": 0.3, "ydb": 0.5}
"""Changes of a source, as a part of `--changes`: so that its service fills the backlog in less than a minute."""
SMALL_SHARE = 0.25
"""Part of the changes with one row in a transaction, which cost more each."""
SINKS = ("files", "parquet", "kafka", "delta", "iceberg")


@dataclass(frozen=True, slots=True)
class Figure:
    """Changes, and what they cost above an empty run, in several rounds."""

    changes: int
    costs: Sequence[Cost]

    @property
    def by_clock(self) -> Spread:
        """Changes per second."""
        return Spread.of(self.changes / cost.wall for cost in self.costs)

    @property
    def by_cpu(self) -> Spread:
        """Changes per CPU second of the process tree."""
        return Spread.of(self.changes / cost.cpu for cost in self.costs)


def cost_of(command: Sequence[object], log: Path) -> Cost:
    """Run a command to its end.

    Raises:
        SystemExit: it failed; the message has the end of its output.
    """
    with log.open("wb") as output:
        # A pipe that stays open, because the program around Debezium's engine ends when its standard input does.
        child = subprocess.Popen(
            [str(word) for word in command], stdin=subprocess.PIPE, stdout=output, stderr=output
        )
        watch = ProgramStopwatch(child.pid)
        # Not waited for yet: a zombie still has its CPU time in /proc.
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        cost = watch.stop()
    if child.wait():
        raise SystemExit(f"{command[:3]} ended with {child.returncode}:\n{log.read_text()[-3000:]}")
    return cost


def above_empty(full: Callable[[], Cost], empty: Callable[[], Cost]) -> Cost:
    """Return what a full run costs more than an empty one right before it."""
    start, whole = empty(), full()
    return Cost(whole.wall - start.wall, whole.cpu - start.cpu)


@dataclass(frozen=True, slots=True)
class Sink:
    """One kind of output: its parameters, and a count of the lines that a run has written."""

    name: str
    settings: Callable[[Path], dict[str, str]]
    lines: Callable[[Path], int]


def files_sink() -> Sink:
    def lines(folder: Path) -> int:
        return sum(path.read_bytes().count(b"\n") for path in (folder / "output").rglob("*.jsonl"))

    return Sink("files", lambda folder: {"output": str(folder / "output"), "format": "debezium"}, lines)


def parquet_sink() -> Sink:
    import pyarrow.parquet

    def lines(folder: Path) -> int:
        paths = (folder / "output").rglob("*.parquet")
        return sum(pyarrow.parquet.read_metadata(path).num_rows for path in paths)

    return Sink("parquet", lambda folder: {"output": str(folder / "output")}, lines)


def delta_sink() -> Sink:
    from deltalake import DeltaTable

    def lines(folder: Path) -> int:
        return sum(
            DeltaTable(table).to_pyarrow_dataset().count_rows() for table in (folder / "lake").glob("*")
        )

    return Sink("delta", lambda folder: {"uri": str(folder / "lake" / "{table}"), "mode": "log"}, lines)


def iceberg_sink() -> Sink:
    from pyiceberg.catalog.sql import SqlCatalog

    def properties(folder: Path) -> dict[str, str]:
        (folder / "lake").mkdir(exist_ok=True)
        return {"type": "sql", "uri": f"sqlite:///{folder}/catalog.db", "warehouse": f"file://{folder}/lake"}

    def settings(folder: Path) -> dict[str, str]:
        catalog = {f"catalog_properties.{name}": value for name, value in properties(folder).items()}
        return {"target_table": "log.{table}", "mode": "log", **catalog}

    def lines(folder: Path) -> int:
        catalog = SqlCatalog("default", **properties(folder))
        names = [name for space in catalog.list_namespaces() for name in catalog.list_tables(space)]
        return sum(len(catalog.load_table(name).scan(selected_fields=("op",)).to_arrow()) for name in names)

    return Sink("iceberg", settings, lines)


def kafka_sink(broker: KafkaBroker) -> Sink:
    from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Producer, TopicPartition

    # For the first transactional producer of its life a broker makes the topic of transactions, which takes seconds.
    first = {"bootstrap.servers": broker.address, "transactional.id": "first", "log_level": 3}
    Producer(first).init_transactions(60)

    def settings(folder: Path) -> dict[str, str]:
        return {"bootstrap_servers": broker.address, "topic": folder.name}

    def lines(folder: Path) -> int:
        consumer = Consumer(
            {"bootstrap.servers": broker.address, "group.id": folder.name, "enable.partition.eof": True}
        )
        topics = consumer.list_topics(folder.name, timeout=30).topics
        partitions = set(topics[folder.name].partitions) if folder.name in topics else set()
        consumer.assign([TopicPartition(folder.name, number, OFFSET_BEGINNING) for number in partitions])
        count = 0
        while partitions:
            for message in consumer.consume(10_000, 1.0):
                if message.error() is None:
                    count += 1
                elif message.error().code() == KafkaError._PARTITION_EOF:
                    partitions.discard(message.partition())
        consumer.close()
        return count

    return Sink("kafka", settings, lines)


def pipeline(backlog: Backlog, sink: Sink, workers: int) -> Cost:
    """Run the pipeline over nothing and over the backlog; check that each change was written once."""

    def one(empty: bool) -> Cost:
        with tempfile.TemporaryDirectory(prefix="penstock-throughput-") as name:
            folder = Path(name)
            settings = {**backlog.settings(empty), **sink.settings(folder)}
            command: list[object] = [Path(sys.executable).with_name("penstock"), "run"]
            command += [f"{backlog.source}-to-{sink.name}", "--master", f"local[{workers},4]"]
            command += [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
            command += ["--checkpoint-dir", folder / "checkpoint", "--progress", "none"]
            cost = cost_of(command, folder / "log")
            written, expected = sink.lines(folder), 0 if empty else backlog.changes
            if written != expected:
                raise SystemExit(f"{backlog.source}-to-{sink.name} wrote {written:,} lines of {expected:,}")
            return cost

    return above_empty(lambda: one(False), lambda: one(True))


def recvlogical(waiting: postgres.Server) -> Cost:
    """Receive the log with the server's own client."""

    def one(empty: bool) -> Cost:
        options = ("-o", "proto_version=1", "-o", f"publication_names={postgres.PUBLICATION}")
        slot, end = waiting.slot(empty=empty), waiting.end()
        command = [waiting.server.programs / "pg_recvlogical", "-d", waiting.server.dsn(postgres.DATABASE)]
        command += ["--slot", slot, "--start", "--endpos", end, "--no-loop", "-f", "/dev/null", *options]
        with tempfile.NamedTemporaryFile() as log:
            return cost_of(command, Path(log.name))

    return above_empty(lambda: one(False), lambda: one(True))


@contextmanager
def sinks(names: Sequence[str]) -> Iterator[list[Sink]]:
    """Start what the sinks need."""
    with ExitStack() as stack:
        makers: dict[str, Callable[[], Sink]] = {
            "files": files_sink,
            "parquet": parquet_sink,
            "delta": delta_sink,
            "iceberg": iceberg_sink,
            "kafka": lambda: kafka_sink(stack.enter_context(KafkaBroker.start())),
        }
        yield [makers[name]() for name in names]


def line(figure: Figure, peer: Figure | None, *names: object) -> str:
    """Return the row of one contender."""
    ratios = ["–", "–"]
    if peer is not None:
        ratios = [
            f"{figure.by_clock.median / peer.by_clock.median:.2f}",
            f"{figure.by_cpu.median / peer.by_cpu.median:.2f}",
        ]
    return row(*names, figure.by_clock.text(0), ratios[0], figure.by_cpu.text(0), ratios[1])


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--changes", type=int, default=200_000)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--only", nargs="+", choices=SOURCES, default=list(SOURCES), metavar="SOURCE")
    parser.add_argument("--sinks", nargs="+", choices=SINKS, default=list(SINKS), metavar="SINK")
    parser.add_argument("--workers", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--rows", nargs="+", type=int, default=[500, 1], help="changes in a transaction")
    parser.add_argument(
        "--no-peers", action="store_true", help="neither Debezium's engine nor pg_recvlogical"
    )
    options = parser.parse_args()
    print(f"{machine()}; {options.changes:,} changes, {options.rounds} rounds\n", flush=True)
    columns = ("rows", "sink", "workers", "changes/s", "ratio", "changes per CPU s", "ratio")
    print(heading("source", *columns), flush=True)
    peer: dict[int, Figure] = {}
    with sinks(options.sinks) as targets:
        for source in options.only:
            for rows in options.rows:
                share = SHARE[source] * (SMALL_SHARE if rows == 1 else 1.0)
                # A number that both halves and the transactions divide.
                changes = max(1, round(options.changes * share / (2 * rows))) * 2 * rows
                if source == "postgres" and not options.no_peers:
                    peer[rows] = compare_peers(changes, rows, options.rounds, targets)
                if source == "postgres snapshot":
                    peer.pop(rows, None)
                    if not options.no_peers:
                        peer[rows] = peer_snapshot(changes, rows, options.rounds)
                with SOURCES[source](changes, rows) as backlog:
                    for sink in targets:
                        for workers in options.workers:
                            costs = [pipeline(backlog, sink, workers) for _ in range(options.rounds)]
                            figure = Figure(changes, costs)
                            beside = peer.get(rows) or peer.get(500)
                            print(line(figure, beside, source, rows, sink.name, workers), flush=True)


def compare_peers(changes: int, rows: int, rounds: int, targets: Sequence[Sink]) -> Figure:
    """Print the rows of the peers; return the figure of Debezium's engine that drops its records."""
    with postgres.server_with_backlog(changes, rows) as waiting, debezium.engine() as engine:
        bare = Figure(changes, [recvlogical(waiting) for _ in range(rounds)])

        def dropped(empty: bool) -> Cost:
            return engine(waiting, changes, empty=empty, measured=cost_of)

        def costs(one: Callable[[bool], Cost]) -> list[Cost]:
            return [above_empty(lambda: one(False), lambda: one(True)) for _ in range(rounds)]

        dropped(True)  # not counted: it reads the classes from the disk for the first time
        figure = Figure(changes, costs(dropped))
        print(line(bare, figure, "pg_recvlogical", rows, "none", "–"))
        print(line(figure, figure, "Debezium's engine", rows, "none", "–"), flush=True)
        for sink in targets:
            if sink.name == "kafka":
                written = Figure(changes, costs(to_kafka(engine, waiting, changes, sink)))
                print(line(written, figure, "Debezium's engine", rows, "kafka", "–"), flush=True)
    return figure


def to_kafka(
    engine: debezium.Engine, waiting: postgres.Server, changes: int, sink: Sink
) -> Callable[[bool], Cost]:
    """Return the function that lets Debezium's engine write to a new topic, and checks its records."""

    def one(empty: bool) -> Cost:
        with tempfile.TemporaryDirectory(prefix="penstock-throughput-") as name:
            folder = Path(name)
            settings = sink.settings(folder)
            create_topic(settings["bootstrap_servers"], settings["topic"])
            topic = debezium.topic(settings["bootstrap_servers"], settings["topic"])
            cost = engine(waiting, changes, empty=empty, measured=cost_of, to=topic)
            written, expected = sink.lines(folder), 1 if empty else changes
            # It writes whole batches, and after the backlog the log has the changes of empty runs.
            if written < expected:
                raise SystemExit(f"Debezium's engine wrote {written:,} records of {expected:,}")
            return cost

    return one


def create_topic(brokers: str, name: str) -> None:
    """Create a topic as the sink of Penstock does, with the partitions that the broker gives it."""
    from confluent_kafka.admin import AdminClient, NewTopic

    admin = AdminClient({"bootstrap.servers": brokers, "log_level": 3})
    admin.create_topics([NewTopic(name, -1, -1)])[name].result(30)


def peer_snapshot(rows: int, rows_per_statement: int, rounds: int) -> Figure:
    """Print the row of the initial snapshot of Debezium's engine; return its figure."""
    with (
        postgres.server_with_table(rows, rows_per_statement) as (server, _),
        debezium.snapshots(server, rows, cost_of) as run,
    ):
        run(True)  # not counted: it reads the classes from the disk for the first time
        figure = Figure(rows, [above_empty(lambda: run(False), lambda: run(True)) for _ in range(rounds)])
    print(line(figure, figure, "Debezium's snapshot", rows_per_statement, "none", "–"), flush=True)
    return figure


if __name__ == "__main__":
    main()
