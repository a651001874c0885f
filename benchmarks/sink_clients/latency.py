"""The time from a writer's commit until a reader of the target sees the change, through a whole pipeline.

The pipeline, its source and its targets are the ones of the kill campaigns (`tests.integration.sinks`). Writers make
their changes at known times, so the age of a change is known when it is seen.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from penstock_emulators.oracle.kill import Run, python
from tests.support.sinks import TARGETS, TargetUnderTest
from tests.support.sinks.queues import message_entry
from tests.support.sinks.source import PER_SECOND, number_at

Newest = Callable[[], int]
"""Returns the number of the newest change that a reader sees, -1 if there is none."""

WARM_SECONDS = 3.0
"""Not measured, after the first change is visible: Spark's workers are new."""
START_SECONDS = 120.0
ROLLING = ("files", "delta", "iceberg")


def latencies(name: str, seconds: float) -> list[float]:
    """Run a pipeline into the target `name`; return the times from commit to visible, in seconds.

    Raises:
        RuntimeError: the pipeline ended or nothing became visible.
    """
    folder = Path(tempfile.mkdtemp(prefix="penstock-latency-"))
    hooks = folder / "hooks"
    hooks.mkdir()
    with ExitStack() as stack:
        target = TARGETS[name](folder / name, hooks)
        target.start()
        target.create("shop")
        stack.callback(target.stop)
        options = {**target.options(), **({"roll_seconds": 0} if name in ROLLING else {})}
        given = {
            "checkpoint": str(folder / "checkpoint"),
            "hooks": str(hooks),
            "refused": str(folder / "refused"),
            "master": "local[2]",
            "sinks": {name: options},
        }
        (folder / "configuration.json").write_text(json.dumps(given))
        newest = READERS[name](target)
        begun = time.time()
        (hooks / "begun").touch()
        command = python("tests.integration.sinks.program", str(folder / "configuration.json"))
        run = stack.enter_context(Run(command, log=folder / "log"))
        return _watch(run, newest, begun, seconds, folder / "log")


def _watch(run: Run, newest: Newest, begun: float, seconds: float, log: Path) -> list[float]:
    seen, ages = -1, []
    warm = end = latest = time.time() + START_SECONDS
    # Longer if a slow reader has not seen two changes yet.
    while (now := time.time()) < end or (not ages and now < latest):
        if not run.alive():
            raise RuntimeError(f"the pipeline ended; read {log}")
        number = newest()
        now = time.time()
        if seen < 0 <= number:
            warm = now + WARM_SECONDS
            end = warm + seconds
        if now >= warm and seen >= 0:
            ages += [now - begun - (each + 1) / PER_SECOND for each in range(seen + 1, number + 1)]
        seen = max(seen, number)
        time.sleep(0.01)
    if not ages:
        raise RuntimeError(f"no change became visible; read {log}")
    return ages


def _files(target: TargetUnderTest) -> Newest:
    known: set[Path] = set()
    best = [-1]

    def newest() -> int:
        for path in set(Path(target.options()["output"], "json").glob("counts/*/*.jsonl")) - known:
            known.add(path)
            times = [json.loads(line)["time"] for line in path.read_bytes().splitlines()]
            best[0] = max(best[0], *map(number_at, times))
        return best[0]

    return newest


def _spark(target: TargetUnderTest) -> Newest:
    import pyarrow.parquet

    known: set[Path] = set()
    best = [-1]

    def newest() -> int:
        for path in {each.parent for each in Path(target.options()["lake"]).glob("epoch=*/_SUCCESS")} - known:
            known.add(path)
            for file in path.glob("*.parquet"):
                times = pyarrow.parquet.ParquetFile(file).read(["timestamp"])["timestamp"].to_pylist()
                best[0] = max(
                    [best[0], *(number_at(round(each.timestamp()) * 1_000_000_000) for each in times)]
                )
        return best[0]

    return newest


def _newest_of(timestamps: Any) -> int:
    import pyarrow.compute

    found = pyarrow.compute.max(timestamps).as_py()
    return -1 if found is None else number_at(round(found.timestamp()) * 1_000_000_000)


def _delta(target: TargetUnderTest) -> Newest:
    from deltalake import DeltaTable
    from deltalake.exceptions import TableNotFoundError

    options = target.options()

    def newest() -> int:
        try:
            table = DeltaTable(f"{options['uri']}/current", storage_options=options["storage_options"])
        except TableNotFoundError:
            return -1
        return _newest_of(table.to_pyarrow_table(columns=["_penstock_timestamp"])["_penstock_timestamp"])

    return newest


def _iceberg(target: TargetUnderTest) -> Newest:
    from pyiceberg.catalog import load_catalog
    from pyiceberg.exceptions import NoSuchTableError

    # The name that the sink uses: a catalogue in SQL keeps the tables of each name apart.
    catalog = load_catalog("default", **target.options())

    def newest() -> int:
        try:
            scan = catalog.load_table("shop.counts_current").scan(selected_fields=("_penstock_timestamp",))
        except NoSuchTableError:
            return -1
        return _newest_of(scan.to_arrow()["_penstock_timestamp"])

    return newest


def _sql(target: TargetUnderTest) -> Newest:
    import psycopg

    # The limits of the options are for the sink.
    session = psycopg.connect(target.options()["dsn"].partition(" options=")[0], autocommit=True)

    def newest() -> int:
        if session.execute("select to_regclass('counts')").fetchone() == (None,):
            return -1
        ((found,),) = session.execute("select coalesce(max(greatest(a, b)), -1) from counts").fetchall()
        return int(found)

    return newest


def _kafka(target: TargetUnderTest) -> Newest:
    from confluent_kafka import Consumer

    settings = {
        "bootstrap.servers": target.options()["servers"],
        "group.id": "latency",
        "isolation.level": "read_committed",
        "auto.offset.reset": "earliest",
        "allow.auto.create.topics": False,
        "topic.metadata.refresh.interval.ms": 500,
        "fetch.wait.max.ms": 5,
    }
    consumer = Consumer(settings)
    consumer.subscribe([f"{target.options()['place']}-transactional"])
    best = [-1]

    def newest() -> int:
        while (message := consumer.poll(0)) is not None:
            if message.error() is None and not (value := message.value() or b"").startswith(b"x"):
                best[0] = max(best[0], number_at(message_entry(value)[2]))
        return best[0]

    return newest


def _pubsub(target: TargetUnderTest) -> Newest:
    place, best = [0], [-1]

    def newest() -> int:
        taken = target._taken  # type: ignore[attr-defined]
        for message in taken[place[0] :]:
            place[0] += 1
            best[0] = max(best[0], number_at(message_entry(message.data)[2]))
        return best[0]

    return newest


def _spanner(target: TargetUnderTest) -> Newest:
    database = target.database()  # type: ignore[attr-defined]

    def newest() -> int:
        with database.snapshot() as snapshot:
            ((found,),) = snapshot.execute_sql("SELECT MAX(GREATEST(a, b)) FROM counts")
        return -1 if found is None else int(found)

    return newest


def _bigtable(target: TargetUnderTest) -> Newest:
    client = target._client  # type: ignore[attr-defined]

    def newest() -> int:
        values = [
            int(value)
            for cells in client.cells().values()
            for (family, _, _), value in cells.items()
            if family == "f"
        ]
        return max(values, default=-1)

    return newest


READERS: dict[str, Callable[[TargetUnderTest], Newest]] = {
    "files": _files,
    "spark": _spark,
    "delta": _delta,
    "iceberg": _iceberg,
    "sql": _sql,
    "kafka": _kafka,
    "pubsub": _pubsub,
    "spanner": _spanner,
    "bigtable": _bigtable,
}
"""How the newest change of each target is read, by its own client."""
