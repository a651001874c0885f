"""The steps of `make run`: start, write, watch, kill, resume, stop, prove; then the same changes as current rows.

It uses Google's Spanner emulator if that is installed, else the simulated service. `make run ARGS=--simulated` forces
the simulated service. `make run ARGS=postgres` shows PostgreSQL instead (`postgres`), and `make run ARGS=spark` a Spark
program without Beam (`spark`). A run takes about two
minutes (`make run ARGS="--seconds 120"` for longer). The exit status is 0 if the proof holds, 1 if it does not (the
differences are printed), 3 if the machine lacks something (the remedy is printed).
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
import time
from datetime import datetime
from pathlib import Path
from typing import Any

from benchmarks.demo import current_state, postgres, spark
from benchmarks.demo.service import choose
from penstock.compat import UTC
from penstock.launch.run import ExitCode
from penstock_emulators.demo import bank
from penstock_emulators.demo.proof import Proof, prove
from penstock_emulators.demo.waiting import PipelineEndedError, stop, wait_for, wait_for_end
from penstock_emulators.demo.writers import connect, finish, writing
from penstock_emulators.oracle.kill import Run
from penstock_emulators.oracle.lines import count_lines
from penstock_emulators.spanner import EmulatorStartError

PROJECT, INSTANCE, DATABASE = "penstock-demo", "demo", "bank"
MIN_MODS, MIN_EVENTS = 20_000, 15
MODS_PER_SECOND = 400
EPOCH_SECONDS = "1"
"""Longer than the default of 0.5 s: on a busy machine the emulator answers late, and short epochs repeat queries."""


def announce(text: str) -> None:
    """Print the next step between the pipeline's own lines."""
    print(f"\n==> {text}", flush=True)


class Pipeline:
    """The pipeline as a user starts it: `penstock run spanner-to-files`, each time with the same command."""

    def __init__(self, folder: Path, start: datetime, environment: dict[str, str]) -> None:
        self.output = folder / "output"
        self._environment = environment
        settings = {
            "project": PROJECT,
            "instance": INSTANCE,
            "database": DATABASE,
            "change_stream": bank.STREAM,
            "output": str(self.output),
            "start": f"{start:%Y-%m-%dT%H:%M:%S.%fZ}",
            "shards": "2",
            "roll_seconds": "2",
        }
        self._command = [str(Path(sys.executable).with_name("penstock")), "run", "spanner-to-files"]
        self._command += [part for name, value in settings.items() for part in ("--set", f"{name}={value}")]
        self._command += ["--checkpoint-dir", str(folder / "checkpoint"), "--progress", "line"]
        self._command += ["--epoch-seconds", EPOCH_SECONDS]

    def start(self) -> Run:
        """Start it, or continue it from its checkpoint."""
        return Run(self._command, environment=self._environment)

    def lines(self) -> int:
        """Return the number of published lines."""
        return count_lines(self.output)


def wait_for_lines(pipeline: Pipeline, run: Run, count: int) -> None:
    """Wait until `count` lines are published; see `wait_for`."""
    wait_for(run, pipeline.output, lambda: pipeline.lines() >= count, f"line {count}")


def run_killed_in_the_middle(pipeline: Pipeline, seconds: float) -> Run:
    """Run for half the time, kill everything, start again for the other half and return that run."""
    with pipeline.start() as run:
        wait_for_lines(pipeline, run, 1)
        time.sleep(seconds / 2)
        died = run.kill()
    announce(
        f"SIGKILL: the driver, its JVM and all workers, {died} processes. Starting the same command again."
    )
    run = pipeline.start()
    try:
        wait_for_lines(pipeline, run, pipeline.lines() + 1)
        time.sleep(seconds / 2)
    except BaseException:
        run.kill()
        raise
    return run


def report(proof: Proof, folder: Path) -> int:
    """Print what was proved, or the differences; return the exit status."""
    events = proof.stream.events
    announce(
        f"{proof.mods:,} changes of {proof.transactions:,} transactions in {proof.files} files; partitions: "
        f"{events['splits']} splits, {events['merges']} merges, {events['moves']} moves"
    )
    wrong = list(proof.wrong)
    if proof.mods < MIN_MODS:
        wrong.append(f"too few changes to prove anything: {proof.mods:,} of {MIN_MODS:,}")
    if events.total() < MIN_EVENTS:
        wrong.append(f"too few splits, merges and moves: {events.total()} of {MIN_EVENTS}")
    for sentence in wrong[:20]:
        print(f"    WRONG: {sentence}")
    if wrong:
        print(f"    {len(wrong)} findings. Files and checkpoint: {folder}")
        return 1
    print(f"    Replaying the files gives the tables' {proof.rows:,} rows, column by column.")
    print("    Every transaction is complete, no change is duplicated, each key is in commit order,")
    print("    and after every transaction the accounts add up.")
    print(f"    Files: {folder / 'output'}")
    return 0


def main() -> int:
    """Run the demo and return its exit status."""
    if sys.argv[1:2] == ["postgres"]:
        return postgres.main(sys.argv[2:])
    if sys.argv[1:2] == ["spark"]:
        return spark.main(sys.argv[2:])
    try:
        return _demo(_arguments())
    except EmulatorStartError as error:
        print(f"Error: {error}", file=sys.stderr)
        return ExitCode.PREFLIGHT
    except PipelineEndedError as error:
        print(f"Error: {error}", file=sys.stderr)
        return error.status or 1  # a pipeline without an end must not be done


def _demo(arguments: argparse.Namespace) -> int:
    folder = Path(arguments.folder or tempfile.mkdtemp(prefix="penstock-demo-")).resolve()
    choice = choose(simulated=arguments.simulated, seed=arguments.seed)
    announce(choice.line)
    with choice.start() as service:
        service.create_database(PROJECT, INSTANCE, DATABASE, list(bank.DDL))
        os.environ.update(service.environment())
        time.sleep(0.1)  # the emulator's clock is a little ahead: the stream must not begin after `start`
        start = datetime.now(UTC)
        return _with_a_bank(folder, start, arguments.seconds, arguments.seed, service.environment())


def _with_a_bank(
    folder: Path, start: datetime, seconds: float, seed: int, environment: dict[str, str]
) -> int:
    database = connect(PROJECT, INSTANCE, DATABASE)
    opened = bank.open_accounts(database)
    pipeline = Pipeline(folder, start, environment)
    source = (PROJECT, INSTANCE, DATABASE)
    with writing(source, environment, seed=seed, min_mods=MIN_MODS, rate=MODS_PER_SECOND) as writers:
        announce(
            f"Writing, and running spanner-to-files on Spark for {seconds:g} seconds; SIGKILL in the middle"
        )
        with run_killed_in_the_middle(pipeline, seconds) as run:
            written = finish(writers)
            total = written.mods + opened
            announce(f"The writers stopped after {written.transactions:,} transactions; catching up")
            wait_for_lines(pipeline, run, total)
            announce("Everything is published: stopping with Ctrl-C")
            stop(run)
    announce("Comparing the files with the tables, by a checker that shares no code with Penstock")
    end = datetime.now(UTC)
    status = report(prove(pipeline.output, database, start, end), folder)
    return _second_act(folder, database, start, end, environment) or status


def _second_act(
    folder: Path, database: Any, start: datetime, end: datetime, environment: dict[str, str]
) -> int:
    """Maintain the current rows of the same changes in Delta tables, and compare them with the source."""
    announce("Second act: spanner-to-delta maintains the current rows of the same changes in Delta tables")
    source = {
        "project": PROJECT,
        "instance": INSTANCE,
        "database": DATABASE,
        "change_stream": bank.STREAM,
    }
    with current_state.pipeline(folder, source, start, end, environment) as run:
        status = wait_for_end(run, folder / "lake")
        if status != ExitCode.DONE:
            raise PipelineEndedError(status)
    announce("One SQL query (DuckDB) compares the Delta tables with the rows of the source")
    wrong = 0
    for table, rows, differing in current_state.compare(folder, database):
        print(f"    {table}: {rows:,} rows, {differing:,} that only one side has")
        wrong += differing
    print(f"    Tables: {folder / 'lake'}")
    return 1 if wrong else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make run", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="how long to run and write")
    parser.add_argument("--folder", help="where output and checkpoint go; default: a new temporary folder")
    parser.add_argument("--seed", type=int, default=1, help="seed of the generated data")
    parser.add_argument(
        "--simulated", action="store_true", help="use the simulated service also where Google's emulator is"
    )
    return parser.parse_args()


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # end the emulator and the pipeline too
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
