"""The packages of --setup_file, --extra_package and --requirements_file are importable in the workers."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.spark, pytest.mark.long(seconds=30)]

PROGRAM = """
import sys
import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions
from penstock.runner import PySparkRunner


def greet(name):
    import penstock_toy

    return penstock_toy.greeting(name)


if __name__ == "__main__":
    with beam.Pipeline(runner=PySparkRunner(), options=PipelineOptions(sys.argv[2:])) as p:
        _ = p | beam.Create(["world"]) | beam.Map(greet) | beam.io.WriteToText(sys.argv[1])
"""


@pytest.fixture
def toy(tmp_path: Path) -> Path:
    """A package that is not installed here, with its setup.py."""
    folder = tmp_path / "toy"
    (folder / "penstock_toy").mkdir(parents=True)
    (folder / "penstock_toy" / "__init__.py").write_text("def greeting(name):\n    return f'hello {name}'\n")
    (folder / "setup.py").write_text(
        "from setuptools import setup\nsetup(name='penstock-toy', version='1.0', packages=['penstock_toy'])\n"
    )
    return folder


def _run(tmp_path: Path, *flags: str) -> subprocess.CompletedProcess[str]:
    script = tmp_path / "program.py"
    script.write_text(PROGRAM)
    path = os.pathsep.join(filter(None, sys.path))
    return subprocess.run(
        [sys.executable, str(script), str(tmp_path / "greetings"), *flags],
        # Executors of a cluster do not inherit this variable, but those of the test need it to import penstock.
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


@pytest.mark.campaign
def test_without_the_option_a_worker_does_not_find_the_package(toy: Path, tmp_path: Path) -> None:
    done = _run(tmp_path, "--spark_master=local[2]")
    assert done.returncode != 0
    assert "No module named 'penstock_toy'" in done.stderr


@pytest.mark.parametrize(
    "option",
    [
        "setup_file",
        pytest.param("extra_package", marks=pytest.mark.campaign),
        pytest.param("requirements_file", marks=pytest.mark.campaign),
    ],
)
def test_workers_of_a_local_master_import_the_package(option: str, toy: Path, tmp_path: Path) -> None:
    requirements = tmp_path / "requirements.txt"
    requirements.write_text(f"click\n{toy}\n")  # click is installed here already
    value = {"setup_file": toy / "setup.py", "extra_package": toy, "requirements_file": requirements}[option]
    done = _run(tmp_path, "--spark_master=local[2]", f"--{option}={value}")
    assert done.returncode == 0, done.stderr
    assert [file.read_text() for file in tmp_path.glob("greetings*")] == ["hello world\n"]


@pytest.mark.campaign
def test_executors_of_a_cluster_import_the_package(toy: Path, tmp_path: Path) -> None:
    done = _run(
        tmp_path,
        "--spark_master=local-cluster[2,1,1024]",
        f"--spark_conf=spark.executorEnv.PYTHONPATH={os.pathsep.join(filter(None, sys.path))}",
        f"--setup_file={toy / 'setup.py'}",
    )
    assert done.returncode == 0, done.stderr
    assert [file.read_text() for file in tmp_path.glob("greetings*")] == ["hello world\n"]


def test_a_package_that_pip_cannot_install_is_reported_with_what_pip_said(tmp_path: Path) -> None:
    requirements = tmp_path / "requirements.txt"
    requirements.write_text("/does/not/exist\n")
    done = _run(tmp_path, "--spark_master=local[2]", f"--requirements_file={requirements}")
    assert "pip could not install the packages of --requirements_file" in done.stderr
    assert "/does/not/exist" in done.stderr


def test_a_file_that_does_not_exist_is_refused_before_spark_starts(tmp_path: Path) -> None:
    done = _run(tmp_path, "--setup_file=/does/not/exist/setup.py")
    assert "--setup_file=/does/not/exist/setup.py does not exist" in done.stderr
