"""The steps of `penstock quickstart`: start, write, watch, kill, resume, stop, compare. Each says what to type next.

The database is the simulated Spanner, the pipeline a real `penstock run` in processes of its own, and the comparison
is the comparison of the tests. Everything that is started ends when `run` returns or raises, or when the process ends.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from penstock_emulators.demo import bank
from penstock_emulators.demo.proof import Proof, prove
from penstock_emulators.demo.waiting import stop, wait_for
from penstock_emulators.demo.writers import connect, finish, writing
from penstock_emulators.guard import guarded
from penstock_emulators.oracle.kill import Run
from penstock_emulators.oracle.lines import count_lines, read_lines
from penstock_emulators.simulated_spanner import SimulatedSpanner

PROJECT, INSTANCE, DATABASE = SOURCE = ("penstock-quickstart", "demo", "bank")
MODS_PER_SECOND = 100
CHURN_SECONDS = 3.0
"""Time between two changes of the partitions: a run has about ten, and catching up passes them soon."""

MORE_LINES = 500
"""Lines that are published between two steps, at least."""

SILENT_SECONDS = 5.0
"""A wait says what it waits for this often."""

_COLUMNS = 100
_SHOWN_FINDINGS = 20

_JOB = """\
template: spanner-to-files
parameters:
  project: {project}
  instance: {instance}
  database: {database}
  change_stream: {stream}
  start: '{start}'
  output: {output}
  roll_seconds: 1
runner:
  checkpoint_dir: {checkpoint}
"""


@dataclass(frozen=True, slots=True)
class Folder:
    """What the quickstart leaves: its job file, output, checkpoint, and the log of both runs."""

    path: Path

    @property
    def job(self) -> Path:
        return self.path / "job.yaml"

    @property
    def output(self) -> Path:
        return self.path / "output"

    @property
    def checkpoint(self) -> Path:
        return self.path / "checkpoint"

    @property
    def log(self) -> Path:
        return self.path / "pipeline.log"

    def lines(self) -> int:
        """Return the number of published lines."""
        return count_lines(self.output)

    def end_of_log(self) -> str:
        """Return the last lines that the pipeline has printed; empty if it has printed none."""
        text = self.log.read_text("utf-8", "replace") if self.log.exists() else ""
        return "\n".join(text.splitlines()[-15:])


class Narrator:
    """Prints the steps with the seconds since the start."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._start = self._last = clock()

    def step(self, text: str, *details: str) -> None:
        """Print a step, and below it details, such as commands to type."""
        self._last = self._clock()
        print(f"{self._last - self._start:4.0f} s  {text}")
        for detail in details:
            print(f"          {detail}")
        sys.stdout.flush()

    def waiting(self, text: Callable[[], str]) -> None:
        """Print a step if the last one was `SILENT_SECONDS` ago."""
        if self._clock() - self._last >= SILENT_SECONDS:
            self.step(text())


class Quickstart:
    """One run in an empty folder. `penstock` is the command as a reader types it."""

    def __init__(self, folder: Folder, penstock: str) -> None:
        self._folder = folder
        self._penstock = penstock
        self._tell = Narrator()

    def run(self) -> int:
        """Run all steps; return 0 if the proof holds, else 1.

        Raises:
            EmulatorStartError: the simulated Spanner does not start.
            PipelineEndedError: the pipeline ended before it was stopped; its log has the reason.
            RuntimeError: the pipeline published nothing for minutes, or the writers failed.
        """
        self._tell.step(
            "Starting a simulated Spanner, whose partitions split and merge, and a bank that writes to it.",
            f"$ {self._penstock} emulator spanner --simulated",
        )
        with SimulatedSpanner.start(churn_seconds=CHURN_SECONDS, seed=1) as service:
            os.environ.update(service.environment())
            service.create_database(*SOURCE, list(bank.DDL))
            database = connect(*SOURCE)
            start = _now(database)
            self._write_job(start)
            self._publish(database)
            self._tell.step("Comparing files and database, by a checker that shares no code with the reader.")
            proof = prove(self._folder.output, database, start, _now(database))
        return self._report(proof)

    def _write_job(self, start: Any) -> None:
        text = _JOB.format(
            project=PROJECT,
            instance=INSTANCE,
            database=DATABASE,
            stream=bank.STREAM,
            start=start.rfc3339(),
            output=json.dumps(str(self._folder.output)),
            checkpoint=json.dumps(str(self._folder.checkpoint)),
        )
        self._folder.job.write_text(text, "utf-8")

    def _publish(self, database: Any) -> None:
        """Write, and publish everything that is written, with a kill in the middle."""
        job, tell = shlex.quote(str(self._folder.job)), self._tell
        tell.step(
            "Starting a pipeline from the change stream to files: a job file of ten lines.",
            f"$ cat {job}",
            f"$ {self._penstock} run {job}",
        )
        with self._pipeline() as first:  # Spark starts while the bank opens
            opened = bank.open_accounts(database)
            with writing(SOURCE, {}, seed=1, min_mods=MORE_LINES, rate=MODS_PER_SECOND) as writers:
                self._wait_for_lines(first, 1)
                tell.step("Changes arrive:", *_some_changes(self._folder.output))
                self._wait_for_lines(first, self._folder.lines() + MORE_LINES)
                died = first.kill() - 1  # the guard is none of the pipeline's
                before = self._folder.lines()
                tell.step(
                    f"kill -9 after {before:,} changes: the driver, its JVM and all workers, {died} processes.",
                    "The bank goes on. The same command again continues from the checkpoint:",
                    f"$ {self._penstock} run {job}",
                )
                with self._pipeline() as second:
                    self._wait_for_lines(second, before + MORE_LINES)
                    written = finish(writers)
                    tell.step(f"The bank stops after {written.transactions:,} transactions.")
                    self._wait_for_lines(second, opened + written.mods)
                    tell.step("Everything is in files. Ctrl-C stops the pipeline with a checkpoint.")
                    stop(second)

    @contextmanager
    def _pipeline(self) -> Iterator[Run]:
        # By its module: the command need not be on PATH.
        command = [sys.executable, "-m", "penstock.cli.main", "run", str(self._folder.job)]
        command = guarded([*command, "--progress", "line"])
        with Run(command, log=self._folder.log, stdin=subprocess.PIPE) as run:
            yield run

    def _wait_for_lines(self, run: Run, count: int) -> None:
        lines = self._folder.lines()

        def words() -> str:
            published = self._folder.lines()
            return "Spark is starting." if published == lines else f"{published:,} changes are in files."

        wait_for(
            run,
            self._folder.output,
            lambda: self._folder.lines() >= count,
            f"line {count}",
            lambda: self._tell.waiting(words),
        )

    def _report(self, proof: Proof) -> int:
        events, counts, folder = proof.stream.events, proof.counts, self._folder
        self._tell.step(
            f"Compared {proof.mods:,} changes of {proof.transactions:,} transactions in {proof.files} files with "
            f"{proof.rows:,} rows,",
            f"over {events['splits']} splits, {events['merges']} merges and {events['moves']} moves of partitions:",
        )
        print(f"\n          lost {counts.lost}, doubled {counts.doubled}, out of order {counts.out_of_order}")
        if proof.wrong:
            print()
        for sentence in proof.wrong[:_SHOWN_FINDINGS]:
            print(f"          WRONG: {sentence}")
        if proof.wrong:
            print(
                f"          {len(proof.wrong)} findings. This must not happen: please report it with the folder."
            )
        job, penstock = shlex.quote(str(folder.job)), self._penstock
        _print_table(
            f"In {folder.path}:",
            [
                ("job.yaml", f"steps and guarantees: {penstock} plan {job}"),
                ("output", f"a line for each change: head -1 {shlex.quote(str(folder.output))}/Accounts/*/*"),
                ("checkpoint", f"position and state: {penstock} status {job}"),
                ("pipeline.log", "what the pipeline has printed, before and after the kill"),
            ],
        )
        _print_table(
            "Next:",
            [
                (f"{penstock} list", "all sources and sinks"),
                (f"{penstock} init postgres-to-delta", "a job file for your own database"),
                (f"{penstock} emulator postgres", "a PostgreSQL server to try it on"),
            ],
        )
        return 1 if proof.wrong else 0


def _now(database: Any) -> Any:
    """Return the time of the database's clock."""
    with database.snapshot() as snapshot:
        ((now,),) = snapshot.execute_sql("SELECT CURRENT_TIMESTAMP")
    return now


def _some_changes(output: Path) -> list[str]:
    """Return the newest published change of each table, shortened to one line."""
    newest = {line.table: line.content for line in read_lines(output)}
    return [_shortened(table, content) for table, content in islice(newest.items(), 3)]


def _shortened(table: str, content: dict[str, Any]) -> str:
    values = json.dumps({**content["keys"], **(content["new_values"] or {})}, ensure_ascii=False)
    text = f"{table:<9} {content['mod_type']:<6} {values}"
    return text if len(text) <= _COLUMNS else f"{text[: _COLUMNS - 1]}…"


def _print_table(title: str, rows: Sequence[tuple[str, str]]) -> None:
    print(f"\n{title}")
    width = max(len(name) for name, _ in rows)
    for name, text in rows:
        print(f"  {name:<{width}}  {text}")
