"""The code of docs/schedulers.md runs in Airflow and Dagster, in an environment without Beam and Spark.

The job is the counting program. The report of the page copies the target, so that a test sees what a report had.
"""

from __future__ import annotations

import json
import math
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from penstock.compat import UTC
from penstock.runner import RemoteJob
from penstock_emulators.oracle.kill import Run, python
from penstock_emulators.oracle.lines import read_lines
from tests.integration.files.counting import START, expected
from tests.support.waiting import RUN_PATIENCE_SECONDS, end_of, wait_for_run
from tools.environments import ROOT, install_command

pytestmark = [pytest.mark.spark, pytest.mark.long(seconds=90)]

PAGE = (ROOT / "docs" / "schedulers.md").read_text("utf-8")
KEYS = 2
HOUR = timedelta(hours=1)
FIRST = datetime.fromtimestamp(START, UTC)
"""An hour of the job's event time takes five seconds."""


class Job:
    """The counting program in a folder. The report of a scheduler copies its output to `seen`."""

    def __init__(self, root: Path) -> None:
        self.output, self.checkpoint, self.seen = root / "output", root / "checkpoint", root / "seen"
        self.hooks, self.log = root / "hooks", root / "job.log"
        self.hooks.mkdir()
        folders = map(str, (self.output, self.checkpoint, self.hooks))
        self.run = Run(python("tests.integration.files.counting", *folders, str(KEYS)), log=self.log)

    def complete_until(self) -> datetime:
        """Until when all sinks are complete; 1970 while that is not known."""
        try:
            times = RemoteJob.open(str(self.checkpoint)).complete_until().values()
        except Exception:  # no checkpoint yet
            return datetime.fromtimestamp(0, UTC)
        return min(
            (at or datetime.fromtimestamp(0, UTC) for at in times), default=datetime.fromtimestamp(0, UTC)
        )

    def pause_at(self, time: datetime) -> datetime:
        """Stop the processes when the targets are complete until `time` or later; return until when they are."""
        wait_for_run(self.run, lambda: self.complete_until() >= time, f"the time {time}", self.log)
        self.run.pause()
        return self.complete_until()

    def end(self) -> None:
        """Let the job end at the numbers that it has read."""
        (self.hooks / "end").write_text("0")
        assert self.run.wait(RUN_PATIENCE_SECONDS) == 0, end_of(self.log)

    def lost(self, until: datetime) -> list[str]:
        """Return the keys that lacked changes before `until` when the report ran."""
        below = math.ceil((until - FIRST) / timedelta(seconds=2))
        numbers: dict[str, set[int]] = {key: set() for key in expected(KEYS, below)}
        for line in read_lines(self.seen):
            numbers[line.content["key"]].add(line.content["n"])
        return [key for key, known in numbers.items() if not known >= set(range(below))]


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    started = Job(tmp_path)
    with started.run:
        yield started


@pytest.fixture(scope="module")
def scheduler(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of an environment with both schedulers, and Penstock without its dependencies."""
    folder = tmp_path_factory.mktemp("schedulers")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder / "venv")], check=True)
    program = folder / "venv" / "bin" / "python"
    lock = str(ROOT / "requirements" / "schedulers.txt")
    subprocess.run(
        install_command(program, "--no-deps", "--require-hashes", "-r", lock), check=True, timeout=600
    )
    (packages,) = folder.glob("venv/lib/python*/site-packages")
    (packages / "penstock.pth").write_text(str(ROOT / "src"))
    return program


def code_of_the_page(mark: str, changes: Mapping[str, str]) -> str:
    """Return the block of code with `mark`, with other texts in place of those that are not for a test."""
    (code,) = (block for block in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL) if mark in block)
    for old, new in changes.items():
        assert code.count(old) == 1, old
        code = code.replace(old, new)
    return code


def environment(folder: Path) -> dict[str, str]:
    """Return variables of programs in the other environment, which must not see this one."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PYTHON", "AIRFLOW", "DAGSTER"))
    }
    return {
        **kept,
        "AIRFLOW_HOME": str(folder),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__USAGE_DATA_COLLECTION__ENABLED": "False",
        "DAGSTER_DISABLE_TELEMETRY": "1",
    }


def job_of_the_test(job: Job, code: str, report: str) -> dict[str, str]:
    """Return the changes of a block: the checkpoint, and a report that copies what the target has."""
    (line,) = re.findall(rf"^ *{report}\(.*\)$", code, re.MULTILINE)
    copy = f"__import__('shutil').copytree({str(job.output)!r}, {str(job.seen)!r}, dirs_exist_ok=True)"
    return {"/data/checkpoints/orders": str(job.checkpoint), line.strip(): copy}


def airflow(job: Job, scheduler: Path, folder: Path, logical: datetime) -> tuple[Run, Path]:
    """Start a run of the page's DAG; return the process and its log."""
    changes = {
        "2026, 1, 31": "2025, 11, 21",
        "poke_interval=60": "poke_interval=1, retries=3",
    }
    code = code_of_the_page("airflow", changes)
    code = code_of_the_page("airflow", changes | job_of_the_test(job, code, "print"))
    dag = folder / "dags" / "orders.py"
    dag.parent.mkdir(parents=True)
    run = f"dag_of_orders.test(logical_date=datetime.fromisoformat({logical.isoformat()!r}))"
    dag.write_text(f"{code}\nif __name__ == '__main__':\n    print('the run is', {run}.state)\n")
    variables, log = environment(folder), folder / "log"
    migrate = [str(scheduler.with_name("airflow")), "db", "migrate"]
    subprocess.run(migrate, env=variables, check=True, capture_output=True, timeout=RUN_PATIENCE_SECONDS)
    return Run(["env", "-u", "PYTHONPATH", str(scheduler), str(dag)], log=log, environment=variables), log


def test_a_dag_of_airflow_waits_for_a_running_job_and_its_report_lacks_nothing(
    job: Job, scheduler: Path, tmp_path: Path
) -> None:
    # After the time until which the targets are complete, so that the sensor must look again.
    now = job.pause_at(FIRST)
    until = now.replace(minute=0, second=0, microsecond=0) + 2 * HOUR
    run, log = airflow(job, scheduler, tmp_path / "airflow", until)
    with run:
        wait_for_run(run, lambda: "Rescheduling task" in log.read_text(), "the first look", log)
        assert not job.seen.exists()
        job.run.resume()
        assert run.wait(RUN_PATIENCE_SECONDS) == 0, end_of(log)
    text = log.read_text()
    assert "the run is success" in text, text[-5_000:]
    assert "is complete until" in text
    assert job.lost(until) == []


def test_a_dag_that_waits_for_a_job_that_has_ended_fails_without_a_retry(
    job: Job, scheduler: Path, tmp_path: Path
) -> None:
    now = job.pause_at(FIRST)
    job.run.resume()
    job.end()
    run, log = airflow(job, scheduler, tmp_path / "airflow", now.replace(minute=0, second=0, microsecond=0))
    with run:
        assert run.wait(RUN_PATIENCE_SECONDS) == 0, end_of(log)
    text = log.read_text()
    assert "the run is failed" in text, text[-5_000:]
    assert "has ended, so its targets get no more changes" in text
    assert not job.seen.exists()


DAGSTER = """
import json
from dagster import DagsterInstance, build_sensor_context

with DagsterInstance.ephemeral() as instance:
    def tick(cursor):
        context = build_sensor_context(instance=instance, cursor=cursor, definitions=definitions)
        return complete_hours.evaluate_tick(context)

    first = tick(None)
    again = tick(first.cursor)
    asked = [[each.partition_key for each in data.run_requests] for data in (first, again)]
    job = definitions.resolve_implicit_global_asset_job_def()
    done = job.execute_in_process(instance=instance, partition_key=asked[0][-1])
    print(json.dumps([*asked, done.success]))
"""


def test_a_sensor_of_dagster_requests_the_complete_hours_once_and_their_asset_lacks_nothing(
    job: Job, scheduler: Path, tmp_path: Path
) -> None:
    code = code_of_the_page("dagster", {})
    changes = {"2026-01-31-00:00": "2025-11-21-16:00"} | job_of_the_test(job, code, "context.log.info")
    (tmp_path / "program.py").write_text(code_of_the_page("dagster", changes) + DAGSTER)
    now = job.pause_at(FIRST + 2 * HOUR)
    done = subprocess.run(
        [str(scheduler), str(tmp_path / "program.py")],
        env=environment(tmp_path / "dagster"),
        capture_output=True,
        text=True,
        check=False,
        timeout=RUN_PATIENCE_SECONDS,
    )
    assert done.returncode == 0, done.stderr[-5_000:]
    first, again, success = json.loads(done.stdout.splitlines()[-1])
    hours = [FIRST + HOUR * number for number in range((now - FIRST) // HOUR)]
    assert [datetime.strptime(each, "%Y-%m-%d-%H:%M").replace(tzinfo=UTC) for each in first] == hours
    assert len(hours) >= 2
    assert (again, success) == ([], True)
    assert job.lost(hours[-1] + HOUR) == []
