"""`bigtable-to-files` in every format: small consumers replay the lines to exactly the cells of the table.

In a campaign each pipeline is a program that is killed while it runs.
"""

from __future__ import annotations

import os
import threading
import time
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.options.pipeline_options import PipelineOptions
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer
from confluent_kafka.serialization import MessageField, SerializationContext

from penstock.io.bigtable import AddToCell, DeleteCells, DeleteFamily, MergeToCell, SetCell
from penstock.pipelines.bigtable_to_files import bigtable_to_files
from penstock.runner import PySparkRunner
from penstock_emulators.oracle import kill
from penstock_emulators.oracle.kill import After, python
from penstock_emulators.oracle.lines import Line, read_lines
from tests.integration.bigtable.conftest import INSTANCE, PROJECT, Table, row_key
from tests.integration.bigtable.files import cells_of, differences, rfc3339
from tests.integration.bigtable.replay import Cells, apply
from tests.support.schema_registry import SchemaRegistryServer

pytestmark = [pytest.mark.emulator, pytest.mark.spark, pytest.mark.slow]
SECONDS, SECONDS_A_KILL = 5.0, 13.0

Check = Callable[[list[Line], Table], None]


def replays(consume: Callable[[list[Line]], Cells]) -> Check:
    """Return the check that a consumer ends with exactly the cells of the table."""

    def check(lines: list[Line], table: Table) -> None:
        assert differences(consume(lines), table.cells()) == {}

    return check


def names_keys(key_of: Callable[[dict[str, Any]], bytes]) -> Check:
    """Return the check for records that have only keys: a consumer of them reads each row that they name."""

    def check(lines: list[Line], table: Table) -> None:
        named = {key_of(line.content) for line in lines}
        assert set(table.cells()) <= named <= {row_key(number) for number in range(40)}

    return check


def debezium_cells(payloads: Iterable[dict[str, Any]]) -> Cells:
    """Apply the cells in the `source` of Debezium records, each change once."""
    table: Cells = {}
    seen: set[Any] = set()
    for payload in payloads:
        source, key = payload["source"], b64decode(payload["after"]["row_key"])
        identity = (key, source["ts_ns"], source["source_cluster"], source["tiebreaker"])
        assert identity not in seen, "a change came twice"
        seen.add(identity)
        for cell in source["cells"]:
            apply(table.setdefault(key, {}), _entry(cell))
    return {key: row for key, row in table.items() if row}


def _entry(cell: dict[str, Any]) -> object:
    family, qualifier = cell["family"], b64decode(cell.get("qualifier", ""))
    start, value = cell.get("start_us", 0), b64decode(cell.get("value") or "")
    match cell["mod"]:
        case "SET_CELL":
            return SetCell(family, qualifier, start, value)
        case "DELETE_CELLS":
            return DeleteCells(family, qualifier, start, cell.get("end_us"))
        case "DELETE_FAMILY":
            return DeleteFamily(family)
        case "ADD_TO_CELL":
            return AddToCell(family, qualifier, start, cell["number"])
        case "MERGE_TO_CELL":
            return MergeToCell(family, qualifier, start, value)
    raise AssertionError(cell["mod"])


def _cloudevents(lines: list[Line]) -> Cells:
    assert len({(line.content["source"], line.content["id"]) for line in lines}) == len(lines)
    return debezium_cells(line.content["data"] for line in lines)


def _avro(lines: list[Line], registry: str) -> Cells:
    """Read the records with Confluent's own deserializer, which knows them only by the registry."""
    deserialize = AvroDeserializer(SchemaRegistryClient({"url": registry}))
    payloads = []
    for line in lines:
        message = line.content
        place = SerializationContext(message["topic"], MessageField.VALUE)
        payloads.append(_with_base64(deserialize(b64decode(message["value"]["base64"]), place)))
    return debezium_cells(payloads)


def _with_base64(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _with_base64(each) for name, each in value.items() if each is not None}
    if isinstance(value, list):
        return [_with_base64(each) for each in value]
    return b64encode(value).decode() if isinstance(value, bytes) else value


def cases(registry: str) -> dict[str, tuple[Check, dict[str, Any]]]:
    """Return the check and the parameters of each format; `registry` is the address of a schema registry."""
    avro = {"converter": "avro", "registry_url": registry}
    read_avro = replays(partial(_avro, registry=registry))
    return {**JSON_CASES, "avro": (read_avro, {"format": "debezium", "lines": "messages", "debezium": avro})}


JSON_CASES: dict[str, tuple[Check, dict[str, Any]]] = {
    "debezium": (
        replays(lambda lines: debezium_cells(line.content for line in lines)),
        {"format": "debezium"},
    ),
    "cloudevents": (replays(_cloudevents), {"format": "cloudevents"}),
    "bigquery": (replays(cells_of), {"format": "bigquery", "bigquery": {"base64": True}}),
    "ydb": (
        names_keys(lambda record: b64decode(record["key"][0])),
        {"format": "ydb", "ydb": {"mode": "KEYS_ONLY"}},
    ),
    "dynamodb": (
        names_keys(lambda record: b64decode(record["dynamodb"]["Keys"]["row_key"]["B"])),
        {"format": "dynamodb", "dynamodb": {"stream_view_type": "KEYS_ONLY"}},
    ),
}


@pytest.fixture
def registry() -> Iterator[str]:
    with SchemaRegistryServer() as server:
        yield server.url


def test_a_consumer_of_each_format_replays_the_table_exactly(
    request: pytest.FixtureRequest,
    new_table: Callable[..., Table],
    writers: Any,
    registry: str,
    tmp_path: Path,
    campaign: Any,
) -> None:
    figures = {}
    every = cases(registry)
    for name in every if campaign.full else ["debezium"]:
        check, choices = every[name]
        table, folder = new_table(b"\x40", b"\x80", b"\xc0"), tmp_path / name
        folder.mkdir()
        table.control.churn(0.5, seed=campaign.seed, table=table.name)
        spark, rng = None, campaign.random(f"formats of bigtable {name}")
        if not campaign.full:
            spark = request.getfixturevalue("spark")
        begun = time.time()
        with writers(table, threads=2, pause=0.02) as writing:
            if campaign.full:
                kills = killed(table, folder, choices, writing, rng, begun)
            else:
                kills = run(spark, table, folder, choices, writing, begun)
        table.control.churn(0, table=table.name)
        lines = list(read_lines(folder / "out"))
        check(lines, table)
        assert writing.writes > 50
        figures[name] = {"kills": kills, "writes": writing.writes, "lines": len(lines)}
    campaign.record("formats-bigtable", **figures)


def run(spark: Any, table: Table, folder: Path, choices: dict[str, Any], writing: Any, begun: float) -> int:
    """Run the pipeline in this process, without a kill."""
    threading.Timer(begun + SECONDS - 2 - time.time(), writing.stop).start()
    options = PipelineOptions([f"--checkpoint_dir={folder / 'checkpoint'}", "--spark_parallelism=2"])
    pipeline = beam.Pipeline(runner=PySparkRunner(spark), options=options)
    with pytest.MonkeyPatch.context() as environment:
        for name, value in table.emulator.environment().items():
            environment.setenv(name, value)
        bigtable_to_files(
            pipeline,
            project=PROJECT,
            instance=INSTANCE,
            table=table.id,
            output=str(folder / "out"),
            start=rfc3339(begun),
            end=rfc3339(begun + SECONDS),
            heartbeat_seconds=0.2,
            roll_seconds=1,
            shards=2,
            **choices,
        )
        pipeline.run().wait_until_finish()
    return 0


def killed(table: Table, folder: Path, choices: dict[str, Any], writing: Any, rng: Any, begun: float) -> int:
    """Run the pipeline as a program, killed twice; return the number of kills."""
    moments = [("at random", After(8 + 4 * rng.random())) for _ in range(2)]
    seconds = SECONDS_A_KILL * len(moments) + 6
    given = {
        "project": PROJECT,
        "instance": INSTANCE,
        "table": table.id,
        "output": folder / "out",
        "start": rfc3339(begun),
        "end": rfc3339(begun + seconds),
        "heartbeat_seconds": 0.2,
        "roll_seconds": 1,
        "shards": 2,
        **{name: value for name, value in choices.items() if not isinstance(value, dict)},
        **{
            f"{name}.{option}": str(value).lower() if value is True else value
            for name, options in choices.items()
            if isinstance(options, dict)
            for option, value in options.items()
        },
    }
    sets = [word for name, value in given.items() for word in ("--set", f"{name}={value}")]
    done = threading.Timer(begun + seconds - 3 - time.time(), writing.stop)
    done.start()
    kills = kill.campaign(
        python(
            "penstock.cli.main",
            "run",
            "bigtable-to-files",
            *sets,
            f"--checkpoint-dir={folder / 'checkpoint'}",
            "--master=local[2,4]",
        ),
        moments,
        log=folder / "log",
        seconds=seconds + 180,
        environment={**os.environ, **table.emulator.environment()},
    )
    done.join()
    assert len(kills) == len(moments)
    return len(kills)
