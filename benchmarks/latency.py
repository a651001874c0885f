"""From commit to published file at 200 transactions per second, against a bare consumer that writes nothing.

    python benchmarks/latency.py [--rate 200] [--seconds 20] [--rounds 3] [--service simulated] [--no-phases]

Each round starts a new service: Penstock's simulated one, or with `--service emulator` Google's emulator, which sends
the rows of a query only when the query ends. A round has

- a *writer* process: transactions of one mod, a few per second until the first file appears, then at the full rate;
- the *pipeline*, `penstock run spanner-to-files` on Spark with `roll_seconds=0`: one file per epoch;
- a *watcher* that looks at the output folder every 1 to 2 ms and notes when it first sees a file;
- the peer: a *bare consumer* process that polls READ_<stream> in windows of 0.2 s on a bare stub, follows partitions
  to their children, and notes when it sees a record. It has no Spark, no files and no checkpoint. Its latency is that
  of the emulator and of polling, which our pipeline needs as well.

The latency of a transaction is the time when the file with its line (or its record) is first seen minus its commit
timestamp, for every transaction that was committed at the full rate. The clock of the emulator is a few milliseconds
ahead of the machine's clock, which makes all latencies look shorter, ours and the peer's. The writer prints a lower
bound of that lead: commit timestamp minus the time when the commit returned.

A second table shows where the time of the same transactions went, phase by phase: the processes of the pipeline
write a timeline (`penstock.timeline`), and each transaction is followed through it. That costs some CPU time;
`--no-phases` leaves it out.

CPU time is counted for the whole process tree of the pipeline (driver, JVM, daemon, workers) in the same time.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import statistics
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from measure import Spread, Stopwatch, heading, machine, percentile, ratio, row
from measure.live import PATIENCE_SECONDS, Watcher, running, wait_for

from penstock.io.spanner.client import Client
from penstock.io.spanner.decode import Decoder
from penstock.io.spanner.query import ROOT, change_stream_query
from penstock.io.spanner.record import ChildPartitionsRecord, DataChangeRecord
from penstock.io.spanner.source import ChangeStream, Connection
from penstock.timeline import VARIABLE as TIMELINE
from penstock.timestamps import parse_timestamp
from penstock_emulators.simulated_spanner import SimulatedSpanner
from penstock_emulators.spanner import SpannerEmulator

PROJECT, INSTANCE, DATABASE, STREAM = "benchmark", "benchmark", "latency", "Changes"
DDL = [
    "CREATE TABLE Accounts (Id INT64 NOT NULL, Owner STRING(MAX), Balance INT64) PRIMARY KEY (Id)",
    f"CREATE CHANGE STREAM {STREAM} FOR ALL OPTIONS (value_capture_type = 'OLD_AND_NEW_VALUES')",
]
SERVICES = {"simulated": SimulatedSpanner, "emulator": SpannerEmulator}
WARM_RATE, WARM_FILES = 10.0, 5
"""Transactions per second until that many files are published."""
SETTLE_SECONDS = 3.0
"""Seconds at the full rate before the measurement begins."""
WINDOW_NS = 200_000_000
PERCENTS = (50, 95, 99)


@dataclass(frozen=True, slots=True)
class Round:
    """Latencies in seconds of the same commits, and the other figures of the same time."""

    ours: list[float]
    theirs: list[float]
    cpu_per_second: float
    emulator_cpu_per_second: float
    committed_per_second: float
    files_per_second: float
    ahead: float
    phases: dict[str, list[float]]


# The writer.


def write(rate: Any, out: Any) -> None:
    """Commit transactions of one mod, `rate.value` per second, until it is negative; send (commit, returned).

    Both in nanoseconds, for each transaction. Eight threads, so that a slow commit does not hold up the next.
    """
    from google.api_core.exceptions import Aborted
    from google.auth.credentials import AnonymousCredentials
    from google.cloud import spanner

    client = spanner.Client(project=PROJECT, credentials=AnonymousCredentials(), disable_builtin_metrics=True)
    database = client.instance(INSTANCE).database(DATABASE)
    clock, commits = _Clock(rate), []

    def repeat() -> None:
        while (number := clock.next()) is not None:
            try:
                with database.batch() as batch:
                    batch.insert_or_update(
                        "Accounts",
                        ["Id", "Owner", "Balance"],
                        [(number % 1000, f"owner {number % 7}", number)],
                    )
            except Aborted:  # by the emulator, which runs one transaction at a time
                continue
            returned = time.time_ns()
            stamp = batch.committed
            nanos = int(stamp.timestamp()) * 1_000_000_000 + getattr(
                stamp, "nanosecond", stamp.microsecond * 1000
            )
            commits.append((nanos, returned))

    threads = [threading.Thread(target=repeat) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    out.send(commits)


class _Clock:
    """Gives numbers to several threads at a rate that may change."""

    def __init__(self, rate: Any) -> None:
        self._rate = rate
        self._lock = threading.Lock()
        self._due = time.monotonic()
        self._number = 0

    def next(self) -> int | None:
        """Wait until the next number is due and return it; None when the rate is negative."""
        with self._lock:
            rate = self._rate.value
            if rate < 0:
                return None
            self._due = max(self._due + 1 / rate, time.monotonic() - 0.1)
            time.sleep(max(0.0, self._due - time.monotonic()))
            self._number += 1
            return self._number


# The peer.


def consume(host: str, start: int, over: Any, out: Any) -> None:
    """Poll the change stream from `start` until `over` is set; send {commit timestamp: when it was seen}."""
    consumer = _Consumer(Client(_stream(start), Connection(emulator_host=host)), over)
    consumer.follow(ROOT, start)
    over.wait()
    consumer.join()
    out.send(consumer.seen)


@dataclass
class _Consumer:
    """One thread per partition. Children start when the first parent names them, because it needs no order."""

    client: Client
    over: Any
    seen: dict[int, int] = field(default_factory=dict)
    threads: dict[str, threading.Thread] = field(default_factory=dict)

    def follow(self, token: str, start: int) -> None:
        if token not in self.threads:
            self.threads[token] = threading.Thread(target=self._read, args=(token, start))
            self.threads[token].start()

    def join(self) -> None:
        for thread in list(self.threads.values()):
            thread.join()

    def _read(self, token: str, position: int) -> None:
        ended = False
        while not ended and not self.over.is_set():
            until = max(position, time.time_ns() + WINDOW_NS)
            ended = self._window(token, position, until)
            position = until + 1000

    def _window(self, token: str, position: int, until: int) -> bool:
        """Read one window; return whether the partition ended in it."""
        decoder, ended = Decoder(), False
        for message in self.client.open(
            change_stream_query(f"READ_{STREAM}", token, position, until, 1000), "benchmark", 5
        ):
            now = time.time_ns()
            for record in decoder.feed(message):
                if isinstance(record, DataChangeRecord):
                    self.seen.setdefault(record.commit_timestamp, now)
                elif isinstance(record, ChildPartitionsRecord):
                    ended = True
                    for child in record.child_partitions:
                        self.follow(child.token, record.start_timestamp)
        return ended


def _stream(start: int) -> ChangeStream:
    return ChangeStream(PROJECT, INSTANCE, DATABASE, STREAM, start, None)


# A round.


def settings(folder: Path, start: int) -> dict[str, str]:
    """Return the parameters of the pipeline that writes to `folder`/output."""
    seconds, nanos = divmod(start, 1_000_000_000)
    return {
        "project": PROJECT,
        "instance": INSTANCE,
        "database": DATABASE,
        "change_stream": STREAM,
        "output": str(folder / "output"),
        "start": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds)) + f".{nanos:09d}Z",
        "roll_seconds": "0",
    }


def one_round(
    rate: float,
    seconds: float,
    service: Any,
    flags: list[str],
    phases: bool,
    settle_seconds: float = SETTLE_SECONDS,
) -> Round:
    """Measure one round, from the start of a new service to its end."""
    with service.start() as emulator, tempfile.TemporaryDirectory(prefix="penstock-latency-") as name:
        os.environ.update(emulator.environment())
        emulator.create_database(PROJECT, INSTANCE, DATABASE, DDL)
        time.sleep(0.1)  # the emulator's clock is ahead: the stream must not begin after `start`
        start = time.time_ns()
        spawn = multiprocessing.get_context("spawn")
        pace, over = spawn.Value("d", WARM_RATE), spawn.Event()
        commits_in, commits_out = spawn.Pipe(duplex=False)
        seen_in, seen_out = spawn.Pipe(duplex=False)
        writer = spawn.Process(target=write, args=(pace, commits_out), daemon=True)
        consumer = spawn.Process(target=consume, args=(emulator.host, start, over, seen_out), daemon=True)
        folder = Path(name)
        variables = {TIMELINE: str(folder / "timeline")} if phases else {}
        with (
            running("spanner-to-files", folder, settings(folder, start), *flags, **variables) as root,
            Watcher(folder / "output", lambda line: parse_timestamp(line["commit_timestamp"])) as watcher,
        ):
            writer.start()
            consumer.start()
            wait_for(lambda: len(watcher.seen) >= WARM_FILES, "the first files")
            pace.value = rate
            time.sleep(settle_seconds)
            watch, beside, since = Stopwatch(root), Stopwatch(emulator.process_group), time.time_ns()
            time.sleep(seconds)
            cost, emulators, until = watch.stop(), beside.stop(), time.time_ns()
            pace.value = -1.0
            commits: list[tuple[int, int]] = _received(commits_in, "the writer")
            measured = [commit for commit, _ in commits if since <= commit < until]
            wait_for(lambda: set(measured) <= watcher.published().keys(), "the last files")
            over.set()
            theirs: dict[int, int] = _received(seen_in, "the bare consumer")
            ours = watcher.published()
        timeline = Timeline(Path(name) / "timeline") if phases else None
    missing = sum(commit not in theirs for commit in measured)
    if missing:
        raise SystemExit(f"the bare consumer missed {missing} of {len(measured)} transactions")
    return Round(
        ours=[(ours[commit] - commit) / 1e9 for commit in measured],
        theirs=[(theirs[commit] - commit) / 1e9 for commit in measured],
        cpu_per_second=cost.cpu / cost.wall,
        emulator_cpu_per_second=emulators.cpu / emulators.wall,
        committed_per_second=len(measured) / cost.wall,
        files_per_second=sum(since <= seen < until for seen in watcher.seen.values()) / cost.wall,
        ahead=statistics.median((commit - returned) / 1e9 for commit, returned in commits),
        phases=timeline.phases(measured, ours) if timeline else {},
    )


class Timeline:
    """The lines that the pipeline's processes wrote, by what they are about. All times are nanoseconds."""

    def __init__(self, path: Path) -> None:
        self._received: dict[int, int] = {}
        self._emitted: dict[int, tuple[int, int]] = {}
        self._epochs: dict[tuple[str, int], int] = {}
        for line in path.read_bytes().splitlines():
            fields = json.loads(line)
            phase, at = fields["phase"], fields["at"]
            for commit in fields.get("commits", ()):
                if phase == "received":
                    self._received.setdefault(commit, at)
                else:
                    self._emitted[commit] = at, fields["epoch"]
            # Phases of the start have neither. A level ends with its last task.
            if "commits" not in fields and "epoch" in fields:
                key = phase, fields["epoch"]
                self._epochs[key] = max(at, self._epochs.get(key, at))

    def phases(self, commits: list[int], published: dict[int, int]) -> dict[str, list[float]]:
        """Return the seconds of each phase, for each of these transactions."""
        found: dict[str, list[float]] = {}
        for commit in commits:
            emitted, epoch = self._emitted[commit]
            steps = [
                ("received by the reader", self._received[commit]),
                ("emitted: the next epoch has begun to read", emitted),
                ("all tasks of level 0 have ended", self._epochs["level 0 ended", epoch]),
                ("level 1 has begun", self._epochs["level 1 began", epoch]),
                ("staged: all tasks of level 1 have ended", self._epochs["level 1 ended", epoch]),
                ("the driver has the reports", self._epochs["reported", epoch]),
                ("committed", self._epochs["committed", epoch]),
                ("published", published[commit]),
            ]
            before = commit
            for name, at in steps:
                found.setdefault(name, []).append((at - before) / 1e9)
                before = at
        return found


def _received(pipe: Any, who: str) -> Any:
    if not pipe.poll(PATIENCE_SECONDS):
        raise SystemExit(f"{who} did not answer within {PATIENCE_SECONDS:g} s")
    return pipe.recv()


def tell(rounds: list[Round]) -> None:
    """Print percentiles, CPU time and the lead of the emulator's clock, with their spread over the rounds."""
    print(heading("commit to seen, ms", "published by penstock", "seen by the bare consumer", "ratio"))
    for percent in PERCENTS:
        ours = Spread.of(percentile(each.ours, percent) for each in rounds)
        theirs = Spread.of(percentile(each.theirs, percent) for each in rounds)
        print(row(f"p{percent}", ours.text(0, 1e-3), theirs.text(0, 1e-3), ratio(ours, theirs)))
    print()
    print(heading("in the same time", "median (lowest to highest)"))
    print(row("transactions committed per second", Spread.of(r.committed_per_second for r in rounds).text(0)))
    print(
        row(
            "files (that is, epochs) published per second",
            Spread.of(r.files_per_second for r in rounds).text(),
        )
    )
    print(
        row(
            "CPU of the pipeline's process tree, s per second",
            Spread.of(r.cpu_per_second for r in rounds).text(),
        )
    )
    print(
        row("CPU of the service, s per second", Spread.of(r.emulator_cpu_per_second for r in rounds).text())
    )
    ahead = Spread.of(each.ahead for each in rounds).text(1, 1e-3)
    print(row("service's clock ahead by at least, ms", ahead))
    if not rounds[0].phases:
        return
    print()
    print(heading("from the phase above to this one, ms", *(f"p{percent}" for percent in PERCENTS)))
    for name in rounds[0].phases:
        cells = (
            Spread.of(percentile(r.phases[name], percent) for r in rounds).text(0, 1e-3)
            for percent in PERCENTS
        )
        print(row(name, *cells))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rate", type=float, default=200.0, help="transactions per second")
    parser.add_argument("--seconds", type=float, default=20.0, help="measured seconds per round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--service", choices=sorted(SERVICES), default="simulated")
    parser.add_argument("--epoch-seconds", type=float, help="as of `penstock run`")
    parser.add_argument(
        "--no-phases", action="store_true", help="write no timeline, print no table of phases"
    )
    options = parser.parse_args()
    print(
        f"{machine()}; {options.rate:g} transactions per second, {options.seconds:g} s per round, {options.service} "
        f"service; median of {options.rounds} (lowest to highest); load average {os.getloadavg()[0]:.1f}\n",
        flush=True,
    )
    flags = [] if options.epoch_seconds is None else ["--epoch-seconds", str(options.epoch_seconds)]
    service, phases = SERVICES[options.service], not options.no_phases
    tell([one_round(options.rate, options.seconds, service, flags, phases) for _ in range(options.rounds)])


if __name__ == "__main__":
    main()
