"""`penstock wait --target`: the marks of a target, without a checkpoint."""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path

import pyiceberg.catalog
import pytest
from click.testing import CliRunner, Result
from pyiceberg.utils.config import Config

from penstock.cli.commands import cli
from penstock.compat import UTC
from penstock.complete import wait_until_complete
from penstock.io.staging.complete_marks import Mark, mark_complete
from penstock.io.staging.names import sink_name
from penstock.io.staging.store import store_of
from penstock.launch.run import ExitCode
from tests.unit.tables.histories import Writer
from tests.unit.tables.test_complete import Lake, delta_lake, iceberg_lake, table_of

NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)
AT_NOON, LATER = "2026-01-31T12:00:00Z", "2026-01-31T12:00:00.000001Z"


def wait(*arguments: str, timeout: str = "0s") -> Result:
    return CliRunner().invoke(cli, ["wait", *arguments, "--timeout", timeout])


def mark(folder: Path, job: str, at: datetime) -> None:
    us = (at - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)
    mark_complete(store_of(folder), Mark.of(job, sink_name("sink"), 1, us))


def assert_complete_until_noon(*arguments: str) -> None:
    done, late = wait(*arguments, "--until", AT_NOON), wait(*arguments, "--until", LATER)
    assert (done.exit_code, done.output) == (0, "complete until 2026-01-31T12:00:00.000Z\n")
    assert late.exit_code == ExitCode.FAILED
    assert late.stderr.endswith(" is complete until 2026-01-31T12:00:00.000Z\n")


def test_a_folder_of_files_is_complete_until_its_mark(tmp_path: Path) -> None:
    mark(tmp_path, "one", NOON)
    assert_complete_until_noon(str(tmp_path), "--target", "files")


def marked_table(lake: Lake) -> str:
    writer, sink = Writer(1), lake.sink()
    lake.publish(sink, writer.changes(3), 5)
    lake.mark(sink, 10, NOON)
    return table_of(writer)


def test_a_delta_table_is_complete_until_its_mark(tmp_path: Path) -> None:
    table = marked_table(delta_lake(tmp_path, "log"))
    assert_complete_until_noon(f"{tmp_path}/lake/{table}", "--target", "delta")


def test_an_iceberg_table_is_complete_until_its_mark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = marked_table(iceberg_lake(tmp_path, "log"))
    monkeypatch.setenv("PYICEBERG_CATALOG__TEST__TYPE", "sql")
    monkeypatch.setenv("PYICEBERG_CATALOG__TEST__URI", f"sqlite:///{tmp_path}/catalog.db")
    # The library reads its configuration once.
    monkeypatch.setattr(pyiceberg.catalog, "_ENV_CONFIG", Config())
    assert_complete_until_noon(f"shop.{table}", "--target", "iceberg", "--catalog", "test")


def test_every_job_that_has_marked_a_target_counts_unless_some_are_chosen(tmp_path: Path) -> None:
    mark(tmp_path, "20260131-old", NOON)
    mark(tmp_path, "20260201-new", NOON + timedelta(hours=1))
    until = ("--target", "files", "--until", LATER)
    late = wait(str(tmp_path), *until)
    assert late.exit_code == ExitCode.FAILED
    assert "20260131-old is complete until" in late.stderr
    assert "20260201-new" not in late.stderr
    assert wait(str(tmp_path), *until, "--job", "new").exit_code == 0
    unknown = wait(str(tmp_path), *until, "--job", "third")
    assert unknown.exit_code == ExitCode.CONFIGURATION
    assert "no job has the name 'third'; there are 20260131-old, 20260201-new" in unknown.stderr


def test_a_folder_without_marks_is_waited_for(tmp_path: Path) -> None:
    late = wait(str(tmp_path), "--target", "files", "--until", AT_NOON)
    assert late.exit_code == ExitCode.FAILED
    assert late.stderr.splitlines()[-1] == "not complete after 0.0 s: no mark is in the target yet"
    clock = iter(range(9))

    def look() -> dict[str, datetime]:
        if next(clock) == 2:
            mark(tmp_path, "one", NOON)
        from penstock.io.files import complete_until

        return complete_until(tmp_path)

    assert wait_until_complete(look, NOON, what="job", pause=lambda seconds: None)
    assert next(clock) == 3


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["none", "--target", "delta"], "the Delta table none cannot be read"),
        (
            ["shop.none", "--target", "iceberg"],
            "the Iceberg table shop.none of the catalogue default cannot be read",
        ),
        (["x", "--target", "files", "--sink", "To"], "--sink has no meaning with --target"),
        (["x", "--catalog", "lake", "--job", "j"], "--catalog, --job has no meaning without --target"),
        (["x", "--target", "files", "--catalog", "lake"], "--catalog is only for --target iceberg"),
        (["."], "pass --target for a target with marks"),
    ],
)
def test_what_cannot_be_waited_for_is_refused(
    arguments: list[str], text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    refused = wait(*arguments, "--until", AT_NOON)
    assert refused.exit_code == ExitCode.CONFIGURATION
    assert text in refused.stderr
