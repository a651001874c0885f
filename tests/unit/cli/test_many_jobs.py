"""`penstock plan` and `penstock status` with folders of job files: one table, one exit code."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from penstock import preflight
from penstock.cli.commands import cli
from penstock.cli.inputs import is_meant_as_job
from penstock.errors import SetupError
from penstock.launch.run import ExitCode
from penstock.runner.protocol import Residual
from penstock.runner.store.drivers import Ended
from tests.support.played_jobs import PUBLISH, counter, job_file, play, waiting_residual

pytestmark = pytest.mark.slow

TYPING_ERROR = "template: spanner-to-files\nparameters:\n\tproject: my-project\n"


def penstock(*arguments: Path | str) -> Result:
    return CliRunner().invoke(cli, list(map(str, arguments)))


def rows(result: Result) -> dict[str, list[str]]:
    """Return the cells of a table by the name of the job file or the checkpoint."""
    table = result.output.partition("\n\n")[0].splitlines()[1:]
    cells = [[cell.strip() for cell in line.split("  ") if cell] for line in table]
    return {Path(first).name: rest for first, *rest in cells}


@pytest.fixture
def jobs(tmp_path: Path) -> Path:
    """A folder with the job file of a job that was not started, and with a file that is no job."""
    folder = tmp_path / "jobs"
    folder.mkdir()
    job_file(folder / "new.yaml", tmp_path / "checkpoints" / "new")
    (folder / "compose.yaml").write_text("services:\n  template: {}\n")
    (folder / "notes.txt").write_text("template: spanner-to-files\n")
    return folder


def begun(jobs: Path, stem: str, **played: Any) -> Path:
    """Add a job that has committed, with its job file."""
    checkpoint = jobs.parent / "checkpoints" / stem
    file = job_file(jobs / f"{stem}.yaml", checkpoint)
    residual = waiting_residual(file, 1e9, "b", ("a",), ("a",))
    play(checkpoint, last={"residuals": (residual,), **played.pop("last", {})}, **played)
    return file


def test_a_plan_of_a_folder_says_for_each_job_what_a_start_does(jobs: Path) -> None:
    begun(jobs, "orders")
    (jobs / "bad.yaml").write_text(TYPING_ERROR)
    done = penstock("plan", jobs)
    assert rows(done) == {
        "bad.yaml": ["-", "-", "is refused", "-"],
        "new.yaml": ["spanner-to-files", "none", "begins", "-"],
        "orders.yaml": ["spanner-to-files", "running", "continues", "-"],
    }
    assert "bad.yaml:3:1: not YAML: a tab" in done.output
    assert done.exit_code == ExitCode.CONFIGURATION
    assert not (jobs.parent / "checkpoints" / "new").exists()


def test_a_plan_as_json_is_a_list_of_jobs(jobs: Path) -> None:
    done = penstock("plan", jobs, "--json")
    assert done.exit_code == ExitCode.DONE
    assert json.loads(done.output) == [
        {
            "file": str(jobs / "new.yaml"),
            "template": "spanner-to-files",
            "checkpoint": str(jobs.parent / "checkpoints" / "new"),
            "state": "none",
            "start": "begins",
            "warnings": [],
            "problems": [],
            "exit_code": 0,
        }
    ]


def test_a_checkpoint_that_does_not_fit_is_refused_with_the_code_of_its_start(jobs: Path) -> None:
    stranger = Residual("Elsewhere", "id", b"", 0, 0)
    begun(jobs, "orders", last={"residuals": (stranger,)})
    done = penstock("plan", jobs / "orders.yaml", jobs)
    assert rows(done)["orders.yaml"] == ["spanner-to-files", "running", "is refused", "-"]
    assert rows(done)["new.yaml"][2] == "begins"
    assert "Elsewhere (residuals)" in done.output
    assert done.exit_code == ExitCode.PREFLIGHT


def test_a_pipeline_that_has_ended_reads_nothing(jobs: Path) -> None:
    fired = {"ReadChangeStream/Stream/Impulse": ("ReadChangeStream/Read",)}
    last = {"residuals": (), "publications": (), "fired_impulses": fired, "done": True}
    begun(jobs, "orders", last=last)
    assert rows(penstock("plan", jobs))["orders.yaml"][1:3] == ["done", "has ended"]


def test_the_checkpoint_of_a_pipeline_with_another_name_is_a_warning(jobs: Path) -> None:
    begun(jobs, "orders", name="orders-of-yesterday")
    done = penstock("plan", jobs)
    assert rows(done)["orders.yaml"][2:] == ["continues", "1"]
    assert done.output.count("is the checkpoint of orders-of-yesterday") == 1


def test_jobs_with_one_checkpoint_are_refused(jobs: Path) -> None:
    (jobs / "copy.yaml").write_text((jobs / "new.yaml").read_text())
    done = penstock("plan", jobs)
    assert {name: row[2] for name, row in rows(done).items()} == dict.fromkeys(
        ("copy.yaml", "new.yaml"), "is refused"
    )
    assert done.output.count("give each job its own folder") == 2
    assert done.exit_code == ExitCode.CONFIGURATION
    # One file that is given twice is one job.
    assert penstock("plan", jobs / "new.yaml", jobs / "." / "new.yaml").exit_code == ExitCode.DONE


def test_an_online_plan_asks_the_services_of_each_job(jobs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun(jobs, "orders")

    def asked(pipeline: Any) -> list[str]:
        if "orders" in pipeline._options.get_all_options()["checkpoint_dir"]:
            raise SetupError("there is no change stream OrdersStream")
        return ["the retention is an hour"]

    monkeypatch.setattr(preflight, "preflight", asked)
    done = penstock("plan", jobs, "--online")
    assert {name: row[2:] for name, row in rows(done).items()} == {
        "new.yaml": ["begins", "1"],
        "orders.yaml": ["is refused", "0"],
    }
    assert "Warning: the retention is an hour" in done.output
    assert "there is no change stream OrdersStream" in done.output
    assert done.exit_code == ExitCode.PREFLIGHT


@pytest.mark.parametrize("command", ["plan", "status"])
def test_options_of_one_job_are_refused_for_many(jobs: Path, command: str) -> None:
    option = {"plan": "--svg", "status": "--html"}[command]
    done = penstock(command, jobs, option, jobs / "x")
    assert done.exit_code == ExitCode.CONFIGURATION
    assert f"{option}: only for one job" in done.output
    assert not (jobs / "x").exists()


@pytest.mark.parametrize("command", ["plan", "status"])
def test_a_folder_with_neither_jobs_nor_a_checkpoint_is_refused(command: str, tmp_path: Path) -> None:
    (tmp_path / "compose.yaml").write_text("services: {}\n")
    done = penstock(command, tmp_path)
    assert done.exit_code == ExitCode.CONFIGURATION
    assert "there is no checkpoint and no job file in" in done.output


def test_a_plan_needs_job_files(jobs: Path) -> None:
    begun(jobs, "orders")
    checkpoints = jobs.parent / "checkpoints"
    for folder in (checkpoints, checkpoints / "orders"):
        assert "only checkpoints such as" in penstock("plan", folder).output
    done = penstock("plan", checkpoints, jobs / "new.yaml")
    assert {name: row[2] for name, row in rows(done).items()} == {
        "new.yaml": "begins",
        "checkpoints": "is refused",
    }
    assert done.exit_code == ExitCode.CONFIGURATION


def test_a_template_is_planned_also_if_a_folder_has_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "spanner-to-files").mkdir()
    assert "required" in penstock("plan", "spanner-to-files").output


def test_the_status_of_a_folder_is_one_row_for_each_job(jobs: Path) -> None:
    letters = counter("staging", "dead_letters", 3, PUBLISH)
    begun(jobs, "orders")
    begun(jobs, "users", lag=90.0, last={"metrics": (letters,), "publications": ()})
    begun(jobs, "visits", ended=Ended("FAILED", "table visits has no primary key"))
    (jobs / "bad.yaml").write_text(TYPING_ERROR)
    done = penstock("status", jobs)
    assert done.exit_code == ExitCode.FAILED
    found = rows(done)
    assert list(found) == ["bad.yaml", "new.yaml", "visits.yaml", "users.yaml", "orders.yaml"]
    assert {name: row[0] for name, row in found.items()} == {
        "bad.yaml": "unreadable",
        "new.yaml": "unreadable",
        "visits.yaml": "failed",
        "users.yaml": "behind",
        "orders.yaml": "running",
    }
    assert found["visits.yaml"][1] == "-"
    assert found["users.yaml"][-1] == "3"
    assert found["users.yaml"][3].endswith("Z")
    assert "failed: table visits has no primary key" in done.output
    assert "bad.yaml:3:1: not YAML" in done.output


def test_the_status_of_a_folder_as_json_has_the_fields_of_one_job(jobs: Path) -> None:
    file = begun(jobs, "orders")
    (orders,) = json.loads(penstock("status", jobs.parent / "checkpoints", "--json").output)
    one = json.loads(penstock("status", file, "--json").output)
    assert orders.keys() - one.keys() == {"job_file", "exit_code"}
    assert (orders["state"], orders["epochs"]) == ("running", one["epochs"])
    both = penstock("status", file, jobs / "new.yaml", "--json")
    assert [each["job_file"] for each in json.loads(both.output)] == [str(jobs / "new.yaml"), str(file)]
    assert both.exit_code == ExitCode.CONFIGURATION


@pytest.mark.parametrize("command", ["plan", "status"])
def test_a_place_that_cannot_be_used_is_a_row_without_its_password(jobs: Path, command: str) -> None:
    begun(jobs, "orders")
    done = penstock(command, "s3://user:correct-horse@bucket/x", jobs / "missing.yaml", jobs / "orders.yaml")
    assert sorted(rows(done)) == ["missing.yaml", "orders.yaml", "x"]
    assert "cannot be read: No such file" in done.output
    assert "correct-horse" not in done.output
    assert done.exit_code == ExitCode.CONFIGURATION


def test_the_status_of_a_checkpoint_is_the_status_of_one_job(jobs: Path) -> None:
    begun(jobs, "orders")
    done = penstock("status", jobs.parent / "checkpoints" / "orders")
    assert (done.exit_code, "state: running\n" in done.output) == (ExitCode.DONE, True)


@pytest.mark.parametrize(
    ("text", "is_job"),
    [
        ("template: spanner-to-files\n", True),
        ("# orders\nrunner: {}\ntemplate:\n", True),
        (TYPING_ERROR, True),
        ('{"parameters": {}, "template": "spanner-to-files"}', True),
        ('{\n  "template": "spanner-to-files",,\n}', True),
        ("services: {}\n", False),
        ("spec:\n  template:\n    metadata: {}\n", False),
        ("a: 1\n---\nspec:\n  template: {}\n", False),
        ('{"kind": "Deployment", "spec": {"template": {}}}', False),
        ("", False),
    ],
)
def test_a_job_file_has_the_name_template_at_its_top_level(text: str, is_job: bool) -> None:
    assert is_meant_as_job(text) is is_job
