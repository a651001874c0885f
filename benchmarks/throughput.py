"""Changes per second of whole pipelines over a backlog, with Debezium's engine and `pg_recvlogical` in the same run.

    python benchmarks/throughput.py [--changes 200000] [--rounds 1] [--only SOURCE …]
        [--sinks SINK …] [--workers N …] [--rows N …] [--table-rows N] [--no-peers]

A pipeline is the command that a user types: `penstock run postgres-to-files --set format=debezium …`, from its start to
its exit. It reads `--changes` changes that were committed before, and its figures are the figures of the run minus the
figures of the same command that finds nothing to read. So they do not have the start of Python, the JVM and the
connections.

- *Source*: PostgreSQL, the simulated Spanner, Bigtable's emulator, and the YDB test service; `backlogs/` makes them.
  They share the machine with the pipeline, and their CPU time is not counted. Those in Python limit the wall time.
- *postgres snapshot*: the rows of a table that the first start reads (`snapshot=initial`).
- *Rows*: changes in each transaction (Bigtable: rows in each request).
- *postgres table*: changes of different rows of a table with `--table-rows` rows, which a table of current rows has
  already.
- *Sink*: JSON Lines files and topics of Kafka with Debezium's records, Parquet files, and change logs (`mode=log`) in
  Delta and Iceberg. Every line is counted after the run. *delta current* and *iceberg current* are tables of current
  rows (`mode=current`), for sources whose changes are of different rows.
- *Workers*: Python workers of Spark: `--master local[N,4]`.

The peers read the same log of PostgreSQL in the same run, each from its own copy of the slot:

- *Debezium's engine* makes the same records as JSON and drops them. It has no sink, no checkpoint and no exactly-once.
  With `kafka` among the sinks it also writes them to a topic of the same broker, each batch before it is acknowledged.
  The figures of an empty run are subtracted too: one that ends with its first change. Needs Maven and Java.
- Its *initial snapshot* reads the same table as *postgres snapshot*; an empty run ends with its first row.
- *pg_recvlogical* decodes nothing. It is the most that the server sends.

CPU time is counted for the process tree of the command. *driver* and *JVM* are the parts of it that the Python process
of the driver and the JVM have; all other CPU time is of the Python workers. *driver, MB* is the most memory that the
driver has held, without the JVM. `ratio` is the figure divided by the figure of Debezium's engine with the same rows in
a transaction, or with 500 where it has none: above 1 Penstock is faster.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from backlogs import Backlog, Before, bigtable, postgres, spanner, ydb  # noqa: E402
from measure import Cost, ProgramStopwatch, Spread, heading, machine, row  # noqa: E402
from measure.tree import DRIVER, JVM  # noqa: E402
from peers.debezium import run as debezium  # noqa: E402

from penstock_emulators.kafka import KafkaBroker  # noqa: E402

TABLE = "postgres table"
SOURCES: dict[str, Callable[..., AbstractContextManager[Backlog]]] = {
    "postgres": postgres.backlog,
    "postgres snapshot": postgres.rows_of_a_table,
    TABLE: postgres.changes_all_over,
    "spanner": spanner.backlog,
    "bigtable": bigtable.backlog,
    "ydb": ydb.backlog,
}
SHARE = {"postgres": 1.0, "postgres snapshot": 1.0, TABLE: 1.0, "spanner": 1.0, "bigtable": 0.3, "ydb": 0.5}
"""Changes of a source, as a part of `--changes`: so that its service fills the backlog in less than a minute."""
SMALL_SHARE = 0.25
"""Part of the changes with one row in a transaction, which cost more each."""
DELTA_ROWS, ICEBERG_ROWS = "delta current", "iceberg current"
SINKS = ("files", "parquet", "kafka", "delta", DELTA_ROWS, "iceberg", ICEBERG_ROWS)


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

    def share(self, part: str) -> str:
        """Return the part of a process in the CPU time: the median, in percent."""
        shares = [100 * cost.parts[part] / cost.cpu for cost in self.costs if part in cost.parts]
        return f"{statistics.median(shares):.0f} %" if shares else "–"

    def peak(self) -> str:
        """Return the most memory that the driver has held in any round, in megabytes, its start included."""
        return f"{max(cost.peak for cost in self.costs) / 1e6:.0f}"


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
    start = empty()
    return full().above(start)


@dataclass(frozen=True, slots=True)
class Sink:
    """One kind of output: the last part of its templates, its parameters, and a count of what a run has written.

    `rows`: the number of rows for which a condition of SQL holds, if it is a table of current rows.
    """

    name: str
    template: str
    settings: Callable[[Path], dict[str, str]]
    lines: Callable[[Path], int]
    rows: Callable[[Path, str], int] | None = None

    def written(self, folder: Path, backlog: Backlog) -> int:
        """Return what the changes of a backlog have made: lines, or rows of a table of current rows."""
        if self.rows is None or backlog.written is None:
            return self.lines(folder)
        return self.rows(folder, backlog.written)

    def takes(self, backlog: Backlog) -> bool:
        """Return whether its lines or rows can be counted after a run."""
        return self.rows is None or backlog.written is not None


def files_sink() -> Sink:
    def lines(folder: Path) -> int:
        return sum(path.read_bytes().count(b"\n") for path in (folder / "output").rglob("*.jsonl"))

    return Sink(
        "files", "files", lambda folder: {"output": str(folder / "output"), "format": "debezium"}, lines
    )


def parquet_sink() -> Sink:
    import pyarrow.parquet

    def lines(folder: Path) -> int:
        paths = (folder / "output").rglob("*.parquet")
        return sum(pyarrow.parquet.read_metadata(path).num_rows for path in paths)

    return Sink("parquet", "parquet", lambda folder: {"output": str(folder / "output")}, lines)


def delta_sink(mode: str) -> Sink:
    from deltalake import DeltaTable, QueryBuilder

    def rows(folder: Path, condition: str = "true") -> int:
        count = 0
        for table in (folder / "lake").glob("*"):
            query = QueryBuilder().register("t", DeltaTable(table))
            found = query.execute(f"select count(*) as n from t where {condition}").read_all()
            count += int(found["n"][0].as_py())
        return count

    def settings(folder: Path) -> dict[str, str]:
        own = {"uri": str(folder / "lake" / "{table}"), "mode": mode}
        return own if mode == "log" else {**own, "deletion_vectors": "true"}

    if mode == "log":
        return Sink("delta", "delta", settings, rows)
    return Sink(DELTA_ROWS, "delta", settings, rows, rows)


def iceberg_sink(mode: str) -> Sink:
    from pyiceberg.catalog.sql import SqlCatalog
    from pyiceberg.expressions import AlwaysTrue

    def properties(folder: Path) -> dict[str, str]:
        (folder / "lake").mkdir(exist_ok=True)
        return {"type": "sql", "uri": f"sqlite:///{folder}/catalog.db", "warehouse": f"file://{folder}/lake"}

    def settings(folder: Path) -> dict[str, str]:
        catalog = {f"catalog_properties.{name}": value for name, value in properties(folder).items()}
        return {"target_table": mode + ".{table}", "mode": mode, **catalog}

    def rows(folder: Path, condition: Any = AlwaysTrue()) -> int:
        catalog = SqlCatalog("default", **properties(folder))
        names = [name for space in catalog.list_namespaces() for name in catalog.list_tables(space)]
        column = "op" if mode == "log" else "id"
        tables = map(catalog.load_table, names)
        return sum(len(each.scan(condition, selected_fields=(column,)).to_arrow()) for each in tables)

    if mode == "log":
        return Sink("iceberg", "iceberg", settings, rows)
    return Sink(ICEBERG_ROWS, "iceberg", settings, rows, rows)


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

    return Sink("kafka", "kafka", settings, lines)


class Filled:
    """The folder of a target with the rows that it has before each run. It is at the same path in each run, because
    some tables have it in their metadata."""

    def __init__(self, folder: Path) -> None:
        self._at, self._kept = folder / "run", folder / "filled"

    def fill(self, backlog: Backlog, before: Before, sink: Sink) -> None:
        """Load the rows of a table."""
        self._at.mkdir(parents=True)
        run_pipeline(backlog, before.fill(), sink, self._at, workers=2)
        shutil.rmtree(self._at / "checkpoint")
        self._at.rename(self._kept)

    @contextmanager
    def folder(self) -> Iterator[Path]:
        """Yield the folder as it was after `fill`."""
        shutil.copytree(self._kept, self._at)
        yield self._at
        shutil.rmtree(self._at)


@contextmanager
def new_folder() -> Iterator[Path]:
    """Yield an empty folder for one run."""
    with tempfile.TemporaryDirectory(prefix="penstock-throughput-") as name:
        yield Path(name)


def run_pipeline(
    backlog: Backlog, settings: Mapping[str, str], sink: Sink, folder: Path, workers: int
) -> Cost:
    command: list[object] = [Path(sys.executable).with_name("penstock"), "run"]
    command += [f"{backlog.source}-to-{sink.template}", "--master", f"local[{workers},4]"]
    every = {**settings, **sink.settings(folder)}
    command += [word for key, value in every.items() for word in ("--set", f"{key}={value}")]
    command += ["--checkpoint-dir", folder / "checkpoint", "--progress", "none"]
    return cost_of(command, folder / "log")


def pipeline(
    backlog: Backlog, sink: Sink, workers: int, new: Callable[[], AbstractContextManager[Path]]
) -> Cost:
    """Run the pipeline over nothing and over the backlog; check that each change was written once.

    `new` returns what makes the folder of a run.
    """

    def one(empty: bool) -> Cost:
        with new() as folder:
            cost = run_pipeline(backlog, backlog.settings(empty), sink, folder, workers)
            written, expected = sink.written(folder, backlog), 0 if empty else backlog.changes
            if written != expected:
                raise SystemExit(f"{backlog.source} to {sink.name} wrote {written:,} lines of {expected:,}")
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
            "delta": lambda: delta_sink("log"),
            DELTA_ROWS: lambda: delta_sink("current"),
            "iceberg": lambda: iceberg_sink("log"),
            ICEBERG_ROWS: lambda: iceberg_sink("current"),
            "kafka": lambda: kafka_sink(stack.enter_context(KafkaBroker.start())),
        }
        yield [makers[name]() for name in names]


FIGURES = ("changes/s", "ratio", "changes per CPU s", "ratio", DRIVER, JVM, "driver, MB")
"""The columns of `line` after the names."""


def line(figure: Figure, peer: Figure | None, *names: object) -> str:
    """Return the row of one contender."""
    ratios = ["–", "–"]
    if peer is not None:
        ratios = [
            f"{figure.by_clock.median / peer.by_clock.median:.2f}",
            f"{figure.by_cpu.median / peer.by_cpu.median:.2f}",
        ]
    figures = (figure.by_clock.text(0), ratios[0], figure.by_cpu.text(0), ratios[1])
    return row(*names, *figures, figure.share(DRIVER), figure.share(JVM), figure.peak())


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--changes", type=int, default=200_000)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--only", nargs="+", choices=SOURCES, default=list(SOURCES), metavar="SOURCE")
    parser.add_argument("--sinks", nargs="+", choices=SINKS, default=list(SINKS), metavar="SINK")
    parser.add_argument("--workers", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--rows", nargs="+", type=int, default=[500, 1], help="changes in a transaction")
    parser.add_argument("--table-rows", type=int, default=1_000_000, help=f"of {TABLE}")
    parser.add_argument(
        "--no-peers", action="store_true", help="neither Debezium's engine nor pg_recvlogical"
    )
    options = parser.parse_args()
    print(f"{machine()}; {options.changes:,} changes, {options.rounds} rounds\n", flush=True)
    print(heading("source", "rows", "sink", "workers", *FIGURES), flush=True)
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
                more = (options.table_rows,) if source == TABLE else ()
                beside = peer.get(rows) or peer.get(500)
                with SOURCES[source](changes, rows, *more) as backlog:
                    for sink, workers, figure in figures(backlog, targets, options):
                        print(line(figure, beside, source, rows, sink.name, workers), flush=True)


def figures(
    backlog: Backlog, targets: Sequence[Sink], options: argparse.Namespace
) -> Iterator[tuple[Sink, int, Figure]]:
    """Measure the pipelines from a backlog to each sink, with each number of workers."""
    taking = [sink for sink in targets if sink.takes(backlog)]
    with tempfile.TemporaryDirectory(prefix="penstock-throughput-") as name:
        new: dict[str, Callable[[], AbstractContextManager[Path]]] = {}
        if backlog.before is not None:
            # Before the changes are committed, because rows that are read later would be newer. A log needs none.
            for sink in (each for each in taking if each.rows is not None):
                filled = Filled(Path(name, sink.name))
                filled.fill(backlog, backlog.before, sink)
                new[sink.name] = filled.folder
            backlog.before.commit()
        for sink in taking:
            for workers in options.workers:
                folders = new.get(sink.name, new_folder)
                costs = [pipeline(backlog, sink, workers, folders) for _ in range(options.rounds)]
                yield sink, workers, Figure(backlog.changes, costs)


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
