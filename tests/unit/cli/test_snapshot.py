"""`penstock snapshot` leaves a request where a job looks for it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from penstock.cli.commands import cli
from penstock.io.change_streams.incremental.signals import (
    ExecuteSnapshot,
    PauseSnapshot,
    ResumeSnapshot,
    Signal,
    StopSnapshot,
    parse_signal_line,
)


def test_a_request_is_left_in_the_signal_folder_of_a_job(tmp_path: Path) -> None:
    job = tmp_path / "job.yaml"
    job.write_text(f"template: postgres-to-files\nparameters:\n  signal_folder: {tmp_path / 'signals'}\n")
    options = ["--table", "public.orders", "--condition", "public.orders=total > 10", "--chunk-size", "5"]
    result = CliRunner().invoke(cli, ["snapshot", str(job), *options])
    assert result.exit_code == 0, result.output
    (path,) = (tmp_path / "signals").glob("*.json")
    id_ = json.loads(path.read_text())["id"]
    conditions = (("public.orders", "total > 10"),)
    assert parse_signal_line(path.read_text(), "") == ExecuteSnapshot(
        id_, ("public.orders",), conditions, (), 5
    )


def test_a_folder_that_does_not_exist_is_refused_and_not_made(tmp_path: Path) -> None:
    for job in ("signalss", "job.yaml"):
        result = CliRunner().invoke(cli, ["snapshot", str(tmp_path / job), "--table", "x"])
        assert result.exit_code == 2, job
        assert "folder" in result.output
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--table", "t", "--surrogate-key", "a,b"], ExecuteSnapshot("1", ("t",), (), ("a", "b"))),
        (["--action", "stop", "--table", "t"], StopSnapshot("1", ("t",))),
        (["--action", "stop"], StopSnapshot("1")),
        (["--action", "pause"], PauseSnapshot("1")),
        (["--action", "resume"], ResumeSnapshot("1")),
    ],
)
def test_every_action_reaches_the_folder(tmp_path: Path, options: list[str], expected: Signal) -> None:
    result = CliRunner().invoke(cli, ["snapshot", str(tmp_path), *options])
    assert result.exit_code == 0, result.output
    (path,) = tmp_path.glob("*.json")
    assert replace(parse_signal_line(path.read_text(), ""), id="1") == expected


def test_a_request_without_tables_is_refused(tmp_path: Path) -> None:
    result = CliRunner().invoke(cli, ["snapshot", str(tmp_path)])
    assert result.exit_code == 2
    assert "needs the tables" in result.output
