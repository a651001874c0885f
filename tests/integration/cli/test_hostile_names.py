"""Names and keys that break careless programs, in real runs: quotes, slashes, dots, newlines, Unicode, great length."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock_emulators.bigtable import BigtableEmulator
from tests.integration.cli.conftest import INSTANCE, PROJECT, Program
from tests.integration.emulators.bigtable.client import Client, set_cell

pytestmark = [pytest.mark.spark, pytest.mark.emulator, pytest.mark.long(seconds=25)]

TEXTS = [
    "",
    "..",
    "../../etc",
    "a/b\\c",
    'it\'s "quoted" `so`',
    "two\nlines\r\n",
    "\x00\x1b[31m\x7f",
    "Zürich 東京 🛢 \u2028 \u202e",
    "%2F?#&=;$(true)",
    "x" * 4000,
]
LONGEST = "T" * 128
FOLDER = "o'u\"t ü?#%41;$(true) x"
CHECKPOINT = f"checkpoint {FOLDER}"


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Callable[..., Program]]:
    """Starts `penstock run` with hostile folders, and kills it after the test."""
    started: list[Program] = []

    def start(
        command: list[str],
        environment: dict[str, str],
        template: str,
        checkpoint: Path = tmp_path / CHECKPOINT,
        **parameters: str,
    ) -> Program:
        given = {"project": PROJECT, "instance": INSTANCE, "output": str(tmp_path / FOLDER), **parameters}
        sets = [f"--set={name}={value}" for name, value in given.items()]
        flags = ("--checkpoint-dir", str(checkpoint), "--master", "local[2,4]")
        started.append(Program([*command, "run", template, *sets, *flags], environment, tmp_path))
        return started[-1]

    yield start
    for program in started:
        program.end()


def lines_of(output: Path) -> list[dict[str, Any]]:
    """All published lines. They end with a newline and nothing else, whatever is in their text."""
    files = sorted(output.glob("*/*/*.jsonl"))
    return [json.loads(line) for file in files for line in file.read_bytes().decode().split("\n") if line]


def test_spanner_keys_and_names_of_any_form_are_published_once_also_from_a_copied_checkpoint(
    emulator: Any, run: Callable[..., Program], penstock: list[str], tmp_path: Path
) -> None:
    from google.auth.credentials import AnonymousCredentials
    from google.cloud import spanner

    ddl = [
        "CREATE TABLE `Select` (`From` STRING(MAX), `Order` BYTES(MAX)) PRIMARY KEY (`From`, `Order`)",
        f"CREATE TABLE {LONGEST} (Id STRING(MAX)) PRIMARY KEY (Id)",
        "CREATE CHANGE STREAM `Group` FOR ALL",
    ]
    emulator.create_database(PROJECT, INSTANCE, "hostile", ddl)
    with pytest.MonkeyPatch.context() as environment:
        for name, value in emulator.environment().items():
            environment.setenv(name, value)
        client = spanner.Client(
            project=PROJECT, credentials=AnonymousCredentials(), disable_builtin_metrics=True
        )
        database = client.instance(INSTANCE).database("hostile")
        names = {"database": "hostile", "change_stream": "Group", "roll_seconds": "1"}
        program = run(penstock, emulator.environment(), "spanner-to-files", **names)
        program.until(
            lambda: bool(program.events("progress")) and program.events("progress")[-1]["epochs"] > 1
        )
        with database.batch() as batch:
            batch.insert("Select", ("From", "Order"), [(text, "AP8vLi4K") for text in TEXTS])
            batch.insert(LONGEST, ("Id",), [(text,) for text in TEXTS])
        output = tmp_path / FOLDER
        program.until(lambda: len(lines_of(output)) >= 2 * len(TEXTS))
        assert program.interrupt(2) == 130
        # While no pipeline uses the checkpoint it may be copied, and one of the copies may be continued.
        copy = tmp_path / f"a copy of {FOLDER}"
        shutil.copytree(tmp_path / CHECKPOINT, copy)
        with database.batch() as batch:
            batch.insert(LONGEST, ("Id",), [("later",)])
        again = run(penstock, emulator.environment(), "spanner-to-files", copy, **names)
        again.until(lambda: len(lines_of(output)) > 2 * len(TEXTS))
        assert again.interrupt(2) == 130
    lines = lines_of(output)
    of_select = [line["keys"] for line in lines if line["table_name"] == "Select"]
    assert sorted(keys["From"] for keys in of_select) == sorted(TEXTS)
    assert {keys["Order"] for keys in of_select} == {"AP8vLi4K"}
    of_longest = sorted(line["keys"]["Id"] for line in lines if line["table_name"] == LONGEST)
    assert of_longest == sorted([*TEXTS, "later"])
    assert {path.name for path in output.iterdir() if path.name[0] != "."} == {"Select", LONGEST}


@pytest.mark.campaign
def test_bigtable_row_keys_and_names_of_any_form_are_published_as_they_are(
    run: Callable[..., Program], penstock: list[str], tmp_path: Path
) -> None:
    table, keys = "_..-It", [text.encode() for text in TEXTS if text]
    with BigtableEmulator.start() as service:
        client = Client(service.host, table)
        client.create({"f": {}})
        program = run(
            penstock,
            {"BIGTABLE_EMULATOR_HOST": service.host},
            "bigtable-to-files",
            project="penstock-test",
            instance="penstock-test",
            table=table,
            roll_seconds="1",
        )
        program.until(
            lambda: bool(program.events("progress")) and program.events("progress")[-1]["epochs"] > 1
        )
        for key in keys:
            client.write(key, set_cell("f", key, key))
        client.close()
        output = tmp_path / FOLDER
        program.until(lambda: len(lines_of(output)) >= len(keys))
        assert program.interrupt(2) == 130
    lines = lines_of(output)
    assert sorted(line["row_key"] for line in lines) == sorted(text for text in TEXTS if text)
    assert all(line["row_key"] == line["column"] == line["value"] for line in lines)
    assert [path.name for path in output.iterdir() if path.name[0] != "."] == ["%5F..-It"]
