"""Errors when Spark cannot start or dies: they come at once and name the cause and the fix."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

pytestmark = [pytest.mark.spark, pytest.mark.long]

ROOT = Path(__file__).resolve().parents[3]


@dataclass(frozen=True, slots=True)
class Told:
    type: str
    text: str
    tries: int
    printed: str


def told(
    how: str,
    *options: str,
    limit: str = "",
    environment: Mapping[str, str] | None = None,
    extra_path: str = "",
) -> Told:
    """Run a pipeline that fails in a separate process; return its error and its other output."""
    program = [sys.executable, "-m", "tests.integration.runner.programs.failing", how, *options]
    command = ["/bin/sh", "-c", f'{limit}; exec "$@"', "sh", *program] if limit else program
    variables = {
        name: value for name, value in os.environ.items() if name not in ("PYSPARK_PYTHON", "SPARK_HOME")
    }
    path = os.pathsep.join(filter(None, (extra_path, str(ROOT), os.environ.get("PYTHONPATH", ""))))
    ran = subprocess.run(
        command,
        env={**variables, "PYTHONPATH": path, **(environment or {})},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    *_, last = ran.stdout.splitlines() or [ran.stderr]
    return Told(**json.loads(last), printed=ran.stderr)


@pytest.mark.parametrize(
    ("environment", "limit", "option", "said"),
    [
        (
            {"SPARK_HOME": "/nowhere"},
            "",
            "",
            "SPARK_HOME is '/nowhere', which has no bin/spark-submit: unset it",
        ),
        (
            {"PYSPARK_PYTHON": "/nowhere/python"},
            "",
            "",
            "PYSPARK_PYTHON is '/nowhere/python', which is not a program",
        ),
        ({}, "ulimit -n 256", "", "the limit of open files is 256 and Spark needs at least 1024"),
        ({}, "ulimit -v 2000000", "", "the memory of each process is limited to 2000000 KiB"),
        (
            {},
            "",
            "--spark_conf=spark.driver.memory=64m",
            "spark.driver.memory is 64m, and Spark needs at least 450",
        ),
    ],
)
def test_a_start_that_cannot_work_names_the_cause_and_the_remedy(
    environment: dict[str, str], limit: str, option: str, said: str
) -> None:
    error = told("well", *filter(None, [option]), limit=limit, environment=environment)
    assert said in error.text
    assert error.tries == 1
    assert error.printed == "", "no stack traces of Java besides the error"


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("killed JVM", "Spark's JVM was killed (SIGKILL)"),
        pytest.param("ended JVM", "Spark's JVM was ended by SIGTERM", marks=pytest.mark.campaign),
        pytest.param(
            "full JVM",
            "Spark's JVM ran out of heap memory (spark.driver.memory is 480m)",
            marks=pytest.mark.campaign,
        ),
    ],
)
def test_a_stream_whose_jvm_died_fails_at_once_and_is_not_retried(
    tmp_path: Path, how: str, said: str
) -> None:
    error = told(how, f"--checkpoint_dir={tmp_path / 'c'}", "--spark_conf=spark.driver.memory=480m")
    assert said in error.text
    assert error.tries == 1


@pytest.mark.parametrize(
    ("how", "said"),
    [
        pytest.param(
            "killed worker", "a Python worker died 4 times while it ran", marks=pytest.mark.campaign
        ),
        ("crashing worker", "a Python worker crashed 4 times (Segmentation fault) while it ran"),
    ],
)
def test_the_error_of_a_dead_worker_names_its_step(how: str, said: str) -> None:
    error = told(how)
    assert said in error.text
    assert "Break" in error.text


def test_workers_that_lack_a_module_are_not_started_four_times(tmp_path: Path) -> None:
    # What a check before the start cannot see: the module is there for the driver's Python and not for the workers'.
    python = tmp_path / "python"
    python.write_text(
        '#!/bin/sh\ncase "$*" in *runner.daemon*) set -- -c "import penstock_missing";; esac\n'
        f'exec {sys.executable} "$@"\n'
    )
    python.chmod(0o755)
    error = told("well", f"--checkpoint_dir={tmp_path / 'c'}", environment={"PYSPARK_PYTHON": str(python)})
    assert "No module named 'penstock_missing'" in error.text
    assert "set PYSPARK_PYTHON" in error.text
    assert error.tries == 1


DIES_ONCE = """
import atexit, os, pathlib, sys
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == "apache_beam" and "runner.daemon" in " ".join(sys.orig_argv):
            print("a line that some package prints when it is imported", flush=True)
            marker = pathlib.Path(os.environ["DIED_ONCE"])
            if not marker.exists():
                marker.touch()
                os._exit(9)
sys.meta_path.insert(0, Finder())
"""


def test_a_daemon_that_dies_at_its_start_is_replaced_after_any_output(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(DIES_ONCE)
    marker = tmp_path / "died"
    # With variables of their own, workers get a daemon that Spark starts.
    error = told(
        "well",
        "--spark_conf=spark.executorEnv.ANY=1",
        environment={"DIED_ONCE": str(marker)},
        extra_path=str(tmp_path),
    )
    assert marker.exists()
    assert error.text == ""


def test_a_daemon_that_dies_while_its_job_is_cancelled_leaves_a_session_that_works(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text(
        f"""#!/bin/sh
case "$*" in *runner.daemon*)
  if mkdir {tmp_path}/starting 2>/dev/null; then
    until [ -e {tmp_path}/die ]; do sleep 0.1; done; exec >&-; sleep 3; exit 1
  fi;;
esac
exec {sys.executable} "$@"
"""
    )
    python.chmod(0o755)
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH", ""))))
    ran = subprocess.run(
        [sys.executable, "-m", "tests.integration.runner.programs.cancelled_start", str(tmp_path)],
        env={**os.environ, "PYTHONPATH": path, "PYSPARK_PYTHON": str(python)},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert ran.stdout.endswith("ran\n"), ran.stderr
