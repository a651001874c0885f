"""`penstock plan` and `penstock status` of a folder of job files, on real checkpoints and a real Spark."""

from __future__ import annotations

import json
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from penstock.cli.commands import cli
from penstock.compat import UTC

pytestmark = [pytest.mark.spark, pytest.mark.long(seconds=40)]


def write_job(folder: Path, name: str, start: datetime | None = None, end: datetime | None = None) -> Path:
    parameters = {
        "project": "my-project",
        "instance": "main",
        "database": "shop",
        "change_stream": "OrdersStream",
        "output": str(folder / f"out-{name}"),
        "roll_seconds": "0",
    }
    for parameter, moment in (("start", start), ("end", end)):
        if moment is not None:
            parameters[parameter] = f"{moment:%Y-%m-%dT%H:%M:%SZ}"
    runner = {"checkpoint_dir": str(folder / "checkpoints" / name), "master": "local[2,4]"}
    file = folder / "jobs" / f"{name}.yaml"
    file.parent.mkdir(exist_ok=True)
    content = {"template": "spanner-to-files", "parameters": parameters, "runner": runner}
    file.write_text(json.dumps(content))  # JSON is YAML
    return file


@pytest.mark.parametrize("emulator", ["simulated"], indirect=True)
def test_a_folder_of_jobs_is_planned_and_looked_at(
    start: Any, shop: Any, published: Any, penstock: list[str], tmp_path: Path
) -> None:
    # With a start: on a busy machine the end has passed when the pipeline begins.
    begin = datetime.now(UTC) + timedelta(
        seconds=1
    )  # written in whole seconds, and after the stream was created
    end = begin + timedelta(seconds=15)
    ended, endless = write_job(tmp_path, "ended", begin, end), write_job(tmp_path, "endless")

    def ask(command: str) -> tuple[int, dict[str, Any]]:
        # In this process: another one needs two seconds for its imports.
        done = CliRunner().invoke(cli, [command, str(tmp_path / "jobs"), "--json"])
        assert done.stdout, done.stderr
        name = {"plan": "file", "status": "job_file"}[command]
        return done.exit_code, {Path(each[name]).stem: each for each in json.loads(done.stdout)}

    def starts() -> tuple[int, dict[str, str]]:
        code, jobs = ask("plan")
        return code, {name: each["start"] for name, each in jobs.items()}

    assert starts() == (0, {"ended": "begins", "endless": "begins"})
    assert not (tmp_path / "checkpoints").exists()

    programs = [start(*penstock, "run", str(file), "--progress", "json") for file in (ended, endless)]
    assert programs[0].process.wait(180) == 0, programs[0].output
    shop.order(range(30))
    programs[1].until(lambda: len(published(tmp_path / "out-endless")) >= 30)

    code, jobs = ask("status")
    assert (code, jobs["ended"]["state"], jobs["endless"]["state"]) == (0, "done", "running")
    assert jobs["endless"]["changes"] >= 30
    # The driver that runs is not disturbed.
    assert starts() == (0, {"ended": "has ended", "endless": "continues"})
    write_job(tmp_path, "ended", begin, end + timedelta(hours=1))
    assert starts() == (0, {"ended": "reads on", "endless": "continues"})
    write_job(tmp_path, "ended", begin, end - timedelta(seconds=10))
    assert starts() == (3, {"ended": "is refused", "endless": "continues"})

    programs[1].kill()
    code, jobs = ask("status")
    assert (code, jobs["endless"]["state"].partition(":")[0]) == (4, "killed")
    (tmp_path / "jobs" / "broken.yaml").write_text("template: spanner-to-files\nparameters: [\n")
    code, jobs = ask("plan")
    assert (code, jobs["broken"]["exit_code"], jobs["endless"]["state"]) == (3, 2, "killed")
