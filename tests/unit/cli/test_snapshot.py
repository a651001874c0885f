"""`penstock snapshot` leaves a request where a job looks for it."""

from __future__ import annotations

import json
from pathlib import Path

from click.testing import CliRunner

from penstock.cli.commands import cli
from penstock.io.change_streams.snapshots.signals import ExecuteSnapshot, parse_signal_line


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


def test_a_request_without_tables_is_refused(tmp_path: Path) -> None:
    result = CliRunner().invoke(cli, ["snapshot", str(tmp_path)])
    assert result.exit_code == 2
    assert "needs the tables" in result.output
