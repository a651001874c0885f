"""The Spark context of a pipeline: settings of spark-submit are used; other settings come from the runner."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pyspark
import pytest

pytestmark = [pytest.mark.spark, pytest.mark.slow]

PROGRAM = """
    import json
    from penstock.runner.spark.session import context

    conf = context({master!r}, {settings!r}).getConf()
    names = ("app.name", "master", "speculation", "worker.x", "python.daemon.module")
    print(json.dumps({{name: conf.get("spark." + name) for name in names}}))
"""


def _settings(
    folder: Path, *command: str, master: str | None, settings: dict[str, str]
) -> tuple[dict[str, str], str]:
    """Return the settings of a context in a separate process, and its whole output: spark-submit mixes the streams."""
    program = folder / "program.py"
    program.write_text(textwrap.dedent(PROGRAM.format(master=master, settings=settings)))
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable}
    ran = subprocess.run(
        [*command, str(program)], env=environment, capture_output=True, text=True, timeout=180, check=True
    )
    return json.loads(_last_object(ran.stdout)), ran.stdout + ran.stderr


def _last_object(text: str) -> str:
    return [line for line in text.splitlines() if line.startswith("{")][-1]


def test_under_spark_submit_the_settings_of_the_submission_are_used(tmp_path: Path) -> None:
    submit = str(Path(pyspark.__file__).parent / "bin" / "spark-submit")
    given = ("--master", "local[2,4]", "--name", "mine", "--conf", "spark.speculation=true")
    found, said = _settings(tmp_path, submit, *given, master="local[1]", settings={"spark.worker.x": "y"})
    assert found == {
        "app.name": "mine",
        "master": "local[2,4]",
        "speculation": "true",
        "worker.x": None,
        "python.daemon.module": "penstock.runner.daemon",
    }
    assert "--spark_master and --spark_conf do not count under spark-submit" in said


@pytest.mark.long(seconds=5)
def test_a_context_that_the_runner_creates_has_every_setting_and_the_master(tmp_path: Path) -> None:
    settings = {"spark.master": "local[1]", "spark.worker.x": "y"}
    found, _ = _settings(tmp_path, sys.executable, master=None, settings=settings)
    assert (found["app.name"], found["master"], found["worker.x"]) == ("penstock", "local[1]", "y")
