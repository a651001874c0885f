"""`penstock rewind`: what it shows before it changes anything, what it refuses, and its exit codes."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner, Result

from penstock.cli import rewind as command
from penstock.cli.commands import cli
from penstock.errors import ServiceError
from penstock.rewind import RewindPlan, TableRewind

PLAN = RewindPlan(3_600_000_000, (TableRewind("/lake/orders", 12, 3_599_000_000), TableRewind("/lake/log")))


@pytest.fixture
def planned(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A rewind that only counts how often it is done."""
    found = SimpleNamespace(plan=PLAN, has_begun=False, lost="", done=0, error=None, asked=None)

    def perform() -> None:
        found.done += 1
        if found.error is not None:
            raise found.error

    def of(job: str, sets: Any, to_us: int) -> Any:
        found.asked = to_us
        return found

    found.perform = perform
    monkeypatch.setattr(command, "_planned", of)
    return found


def invoked(*options: str, job: str = "job.yaml", to: str = "1970-01-01T01:00:00.5Z") -> Result:
    return CliRunner().invoke(cli, ["rewind", job, "--to", to, *options])


def test_the_plan_is_shown_first_and_a_dry_run_changes_nothing(planned: Any) -> None:
    result = invoked("--dry-run")
    assert result.output.splitlines() == [
        "back to 1970-01-01T01:00:00.000000000Z: changes from then on are read again",
        "  /lake/orders: version 12, committed at 1970-01-01T00:59:59.000000000Z",
        "  /lake/log: rows from then on are deleted",
    ]
    assert (result.exit_code, planned.done, planned.asked) == (0, 0, 3_600_500_000)
    assert "done: the next run continues from there" in invoked().output
    assert planned.done == 1


def test_the_plan_as_json(planned: Any) -> None:
    shown = json.loads(invoked("--json").output)
    assert shown["tables"][0] == {
        "name": "/lake/orders",
        "version": 12,
        "committed": "1970-01-01T00:59:59.000000000Z",
    }
    assert (shown["to"], shown["dry_run"]) == ("1970-01-01T01:00:00.000000000Z", False)


def test_snapshots_that_would_be_lost_must_be_accepted(planned: Any) -> None:
    planned.lost = "the job can read snapshots"
    result = invoked()
    assert (result.exit_code, planned.done) == (2, 0)
    assert "add --accept-lost-snapshots" in result.output
    assert (invoked("--accept-lost-snapshots").exit_code, planned.done) == (0, 1)


def test_a_failure_says_that_the_command_must_be_repeated(planned: Any) -> None:
    planned.error = ServiceError("the catalogue does not answer")
    result = invoked()
    assert result.exit_code == 4
    assert "Repeat the command" in result.output


def test_a_checkpoint_folder_is_refused(tmp_path: Path) -> None:
    result = invoked(job=str(tmp_path))
    assert result.exit_code == 2
    assert "is not a job file" in result.output
