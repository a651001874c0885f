"""Checkpoints of jobs whose drivers the test plays: they commit a record each second, up to now."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from apache_beam.metrics import monitoring_infos
from apache_beam.metrics.cells import GaugeData
from apache_beam.transforms.window import GlobalWindow
from apache_beam.utils.timestamp import Timestamp
from apache_beam.utils.windowed_value import WindowedValue

from penstock.cli.common import build, configuration_of
from penstock.io.spanner.frontier import Frontier, Waiting
from penstock.io.spanner.position import Position
from penstock.io.spanner.source import ChangeStream
from penstock.runner.driver.residuals import Residuals
from penstock.runner.harness.bundle import PlanContext
from penstock.runner.planning.graph import build_plan
from penstock.runner.protocol import Coordinator, EpochState, Publication, Residual
from penstock.runner.protocol.record import WatermarkKey
from penstock.runner.store import Checkpoint
from penstock.runner.store.drivers import DriverNotes, Ended, Pipeline, Process, Started
from penstock.table_times import NAMESPACE_PREFIX as TABLES_PREFIX

READ, PUBLISH = "ReadChangeStream/Read/ParDo(ReadFn)", "WriteFiles/Files/Write/Publish/Publish"
COMMITS = 8


def counter(namespace: str, name: str, value: int, step: str = READ) -> bytes:
    """Return a committed counter of a step."""
    info = monitoring_infos.int64_user_counter(f"penstock.io.{namespace}", name, value, ptransform=step)
    return bytes(info.SerializeToString())


def table_time(table: str, seconds: float) -> bytes:
    """Return the committed gauge of a table's newest change, in seconds since 1970."""
    time_ms = int(seconds * 1000)
    gauge = GaugeData(time_ms, time_ms)
    info = monitoring_infos.int64_user_gauge(f"{TABLES_PREFIX}spanner", table, gauge, ptransform=READ)
    return bytes(info.SerializeToString())


def state(watermark: float, changes: int, *, waiting: int = 0, **more: int) -> EpochState:
    """Return the state of a job that reads. `watermark`: seconds since 1970; `more`: counters of the reader."""
    us = int(watermark * 1e6)
    counters = {"changes": changes, "records": changes, **more}
    published = counter("staging", "published_files", changes // 10, PUBLISH)
    return EpochState(
        residuals=(Residual(READ, "id", b"", us, 0),),
        publications=tuple(Publication(PUBLISH, b"") for _ in range(waiting)),
        watermarks={WatermarkKey.output(READ): us, WatermarkKey.carried(PUBLISH): us},
        metrics=(
            table_time("Orders", watermark),
            *(counter("spanner", name, value) for name, value in counters.items()),
            published,
        ),
    )


def play(
    folder: Path | str,
    *,
    lag: float = 1.0,
    pace: int = 100,
    ended: Ended | None = None,
    process: Process | None = None,
    last: Mapping[str, Any] | None = None,
    age: float = 0.0,
    name: str = "spanner-to-files",
) -> Checkpoint:
    """Commit some records, a second apart and the last one `age` seconds ago, with a watermark `lag` seconds behind.

    `last` replaces fields of the last state. `name` is the name of the pipeline.
    """
    checkpoint = Checkpoint.open(str(folder))
    now = [time.time() - age - COMMITS]
    coordinator = Coordinator(checkpoint, clock=lambda: int(now[0] * 1e6))
    coordinator.take_over()
    for number in range(1, COMMITS + 1):
        now[0] += 1
        committed = state(now[0] - lag, 1000 + number * pace, waiting=1)
        if number == COMMITS:
            committed = replace(committed, **last or {})
        coordinator.commit(coordinator.begin(), committed)
    notes = DriverNotes(checkpoint)
    pipeline = Pipeline(name, ("change stream OrdersStream",))
    notes.note_start(coordinator.record.generation, Started(process or Process.current(), pipeline))
    if ended is not None:
        notes.note_end(coordinator.record.generation, ended)
    return checkpoint


def job_file(file: Path, checkpoint: Path, **parameters: str) -> Path:
    """Write the job file of a pipeline from Spanner to files."""
    content = {
        "template": "spanner-to-files",
        "parameters": {
            "project": "my-project",
            "instance": "main",
            "database": "shop",
            "change_stream": "OrdersStream",
            "output": str(checkpoint.parent / f"out-{file.stem}"),
            "format": "debezium",
            **parameters,
        },
        "runner": {"checkpoint_dir": str(checkpoint)},
    }
    file.write_text(json.dumps(content))  # JSON is YAML
    return file


def waiting_residual(
    job: Path, start: float, partition: str, parents: Sequence[str], read: Sequence[str]
) -> Residual:
    """Return the residual of a job file: a partition that waits for others, and those that are `read`.

    `start`, in seconds since 1970, is the position of the one that waits; the others are a minute ahead.
    """
    configuration = configuration_of(str(job))
    assert configuration is not None
    plan = build_plan(build(configuration, to_run=False).to_runner_api(), streaming=True)
    residuals = Residuals(PlanContext(plan))
    ((step, reader),) = residuals._readers.items()
    stream = ChangeStream("my-project", "main", "shop", "OrdersStream", int(start * 1e9), None)
    ahead = Position(int((start + 60) * 1e9))
    waiting = {partition: Waiting(int(start * 1e9), frozenset(parents))}
    frontier = Frontier(dict.fromkeys(read, ahead), waiting, dealt=True)
    at = Timestamp(micros=int(start * 1e6))
    element = residuals._encode(reader, WindowedValue(None, at, (GlobalWindow(),)), stream, frontier, at)
    return Residual(step, "id", element, int(start * 1e6), 0)


def lineage_log(folder: Path, events: Sequence[Mapping[str, Any]]) -> None:
    """Publish a lineage log with these events."""
    hour = folder / "partitions" / "2026-01-31T12"
    hour.mkdir(parents=True)
    (hour / "1.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))


def dead_letters(folder: Path, table: str, reason: str, count: int, file: str = "1.jsonl") -> None:
    """Publish dead letters of one table."""
    letter = {
        "reason": reason,
        "attempt": 1,
        "element_type": "ChangeEvent",
        "version": None,
        "data": "c2VjcmV0LXJvdw==",
        "source": {"schema": "", "table": table},
    }
    hour = folder / "dead_letters" / "2026-01-31T12"
    hour.mkdir(parents=True, exist_ok=True)
    (hour / file).write_text(f"{json.dumps(letter)}\n" * count)
