"""A job in another process, through its checkpoint folder: status, requests, and what they leave behind."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
from click.testing import CliRunner, Result

from penstock.cli.commands import cli

pytestmark = [pytest.mark.spark, pytest.mark.slow(seconds=40)]


def job_file(folder: Path) -> Path:
    parameters = {
        "project": "my-project",
        "instance": "main",
        "database": "shop",
        "change_stream": "OrdersStream",
        "output": str(folder / "out"),
        "lineage_log": str(folder / "lineage"),
        "roll_seconds": "0",
    }
    runner = {"checkpoint_dir": str(folder / "checkpoint"), "master": "local[2,4]"}
    file = folder / "job.yaml"
    content = {"template": "spanner-to-files", "parameters": parameters, "runner": runner}
    file.write_text(json.dumps(content))  # JSON is YAML
    return file


def look_at_the_page(ui: Any) -> None:
    """Look at the running job as `penstock ui` shows it."""
    ui.until(lambda: ui.output.startswith("http") and ui.output.endswith("\n"))
    address = ui.output.strip()
    with urlopen(address, timeout=120) as answer:
        jobs = answer.read().decode()
    # One job, although the folder has the job file and the checkpoint.
    ((link, name),) = re.findall(r'<a id="job-\w+" href="/([^"]+)">([^<]+)</a>', jobs)
    assert name == "job"
    assert "1 running" in jobs or "1 behind" in jobs
    with urlopen(address + link, timeout=120) as answer:
        job = answer.read().decode()
    for text in (
        "Watermark lag, seconds",
        "Partitions that are not yet read to their end",
        "WriteFiles/Files/Write/Publish/Publish",
        "published up to record",
        "penstock stop ",
        "OrdersStream",
    ):
        assert text in job
    assert job.count('<rect class="open"') >= 1
    ui.kill()


@pytest.mark.long(seconds=27)
@pytest.mark.parametrize("emulator", ["simulated"], indirect=True)
def test_a_job_elsewhere_is_looked_at_stopped_and_drained(
    start: Any, shop: Any, published: Any, penstock: list[str], tmp_path: Path
) -> None:
    file, checkpoint = job_file(tmp_path), tmp_path / "checkpoint"

    def ask(*arguments: str) -> Result:
        # In this process: another one needs two seconds for its imports.
        return CliRunner().invoke(cli, arguments)

    first = start(*penstock, "run", str(file), "--progress", "json")
    first.until(lambda: bool(first.events("progress")) and first.events("progress")[-1]["epochs"] > 1)
    shop.order(range(30))
    first.until(lambda: len(published(tmp_path / "out")) >= 30)

    page = tmp_path / "status.html"
    shown = ask("status", str(file), "--json", "--seconds", "3", "--html", str(page))
    status = json.loads(shown.stdout)
    assert status["state"] == "running", shown.stderr
    assert status["changes"] >= 30
    assert status["open_partitions"] >= 1
    assert -5 < status["watermark_lag_seconds"] < 60
    assert page.read_text().count("<svg") >= 2
    look_at_the_page(start(*penstock, "ui", str(tmp_path), "--port", "0"))

    stopped = ask("stop", str(checkpoint), "--wait", "120")
    assert stopped.exit_code == 0, stopped.output
    assert "stopped, with record" in stopped.stdout
    assert first.process.wait(60) == 0, first.output
    assert "penstock stop" in first.events("stopped")[0]["message"]
    assert list((checkpoint / "requests").iterdir()) == []
    assert "state: stopped with a checkpoint" in ask("status", str(checkpoint)).stdout

    second = start(*penstock, "run", str(file), "--progress", "json")
    shop.order(range(30, 40))
    second.until(lambda: len(published(tmp_path / "out")) >= 40)
    drained = ask("drain", str(file), "--wait", "120")
    assert drained.exit_code == 0, drained.output
    assert second.process.wait(60) == 0, second.output
    assert second.events("done")[0]["message"] == "drained"

    records = json.loads(ask("checkpoints", "show", str(checkpoint), "--json").stdout)["records"]
    assert (records[-1]["done"], records[-1]["draining"]) == (True, True)
    assert "state: drained" in ask("status", str(checkpoint)).stdout
    assert "has already ended" in ask("stop", str(checkpoint)).stdout
    assert sorted(int(line["keys"]["OrderId"]) for line in published(tmp_path / "out")) == list(range(40))
