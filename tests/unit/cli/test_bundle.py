"""`penstock package`: the command that it prints, and the environments that it refuses."""

from __future__ import annotations

import json
import os
import runpy
import shlex
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from penstock.cli.bundle import ENTRY_PROGRAM, Submission, as_shell, spark_submit
from penstock.cli.commands import cli
from penstock.cli.package import base_python, pack_environment
from penstock.errors import UsageError

SUBMISSION = Submission(
    program="/b/main.py",
    master="spark://host:7077",
    deploy_mode="client",
    driver_python="/venv/bin/python",
    executor_python="./environment/bin/python",
    archive="/b/environment.tar.gz",
    files=("/b/job.yaml",),
    settings={"spark.executor.memory": "2g"},
    arguments=("--x=a b",),
)


def words_of(submission: Submission) -> list[str]:
    """The words that a shell passes to the program."""
    return shlex.split(as_shell(spark_submit(submission)).replace("\\\n", " "))


def test_executors_use_the_python_of_the_archive_and_the_driver_its_own() -> None:
    assert words_of(SUBMISSION) == [
        *("spark-submit", "--master", "spark://host:7077", "--deploy-mode", "client"),
        *("--archives", "/b/environment.tar.gz#environment"),
        *("--conf", "spark.pyspark.python=./environment/bin/python"),
        *("--conf", "spark.pyspark.driver.python=/venv/bin/python"),
        *("--conf", "spark.executor.memory=2g", "/b/main.py", "--x=a b"),
    ]


def test_in_cluster_mode_the_driver_uses_the_archive_too_and_gets_the_job_file() -> None:
    words = words_of(replace(SUBMISSION, deploy_mode="cluster"))
    assert "spark.pyspark.driver.python=./environment/bin/python" in words
    assert words[words.index("--files") + 1] == "/b/job.yaml"


def test_settings_of_the_user_win() -> None:
    words = words_of(replace(SUBMISSION, settings={"spark.pyspark.python": "/opt/python"}))
    assert "spark.pyspark.python=/opt/python" in words
    assert "spark.pyspark.python=./environment/bin/python" not in words


def test_the_entry_program_runs_the_job_file_beside_it(tmp_path, monkeypatch) -> None:
    started: list[list[str]] = []
    monkeypatch.setattr("penstock.cli.main.main", lambda: started.append(list(sys.argv)))
    monkeypatch.setattr(sys, "argv", ["main.py", "--progress=none"])
    (tmp_path / "main.py").write_text(ENTRY_PROGRAM)
    (tmp_path / "job.yaml").write_text("")
    runpy.run_path(str(tmp_path / "main.py"), run_name="__main__")
    (tmp_path / "job.yaml").unlink()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["main.py"])
    runpy.run_path(str(tmp_path / "main.py"), run_name="__main__")
    assert started == [
        ["penstock", "run", str(tmp_path / "job.yaml"), "--progress=none"],
        ["penstock", "run", str(tmp_path / "job.yaml")],
    ]


def test_a_program_is_packaged_for_a_python_that_every_machine_has(tmp_path) -> None:
    (tmp_path / "mine.py").write_text("print('x')")
    arguments = [
        "package",
        str(tmp_path / "mine.py"),
        "--into",
        str(tmp_path / "b"),
        "--python",
        "/opt/p/python",
    ]
    done = CliRunner().invoke(cli, [*arguments, "--master", "yarn", "--conf", "a=b=c", "--", "--flag"])
    assert done.exit_code == 0, done.output
    assert (tmp_path / "b" / "mine.py").read_text() == "print('x')"
    assert "--archives" not in done.output
    assert done.output.split("\\\n")[-1].strip() == f"{tmp_path}/b/mine.py --flag"
    assert "spark.pyspark.driver.python=/opt/p/python" in done.output
    assert "--conf a=b=c" in done.output
    assert done.output.strip() in (tmp_path / "b" / "submit.sh").read_text()


def packaged(folder: Path, *confs: str) -> Result:
    """`penstock package` of a program with these settings."""
    (folder / "mine.py").write_text("print('x')")
    command = ["package", str(folder / "mine.py"), "--into", str(folder / "b"), "--python", "/opt/p/python"]
    return CliRunner().invoke(cli, [*command, *(word for conf in confs for word in ("--conf", conf))])


@pytest.mark.parametrize(
    "name",
    [
        "spark.authenticate.secret",
        "spark.executorEnv.AWS_SECRET_ACCESS_KEY",
        "spark.executorEnv.AZURE_STORAGE_KEY",
        "spark.executorEnv.AZURE_STORAGE_SAS_TOKEN",
    ],
)
def test_a_secret_setting_is_refused_and_not_repeated(tmp_path, name) -> None:
    done = packaged(tmp_path, f"{name}=tiger")
    assert done.exit_code == 2
    assert f"Pass a reference, which the shell reads when the command starts: --conf '{name}=" in done.output
    assert "tiger" not in done.output
    assert not (tmp_path / "b").exists()


def test_a_setting_of_a_secret_manager_is_refused(tmp_path) -> None:
    done = packaged(tmp_path, "spark.authenticate.secret=${vault:secret/data/spark#secret}")
    assert done.exit_code == 2
    assert "the shell that reads it has no manager" in done.output


def test_the_shell_reads_a_secret_when_the_command_starts(tmp_path) -> None:
    (tmp_path / "a key").write_text("li on\n")
    done = packaged(
        tmp_path,
        "spark.executorEnv.AWS_SECRET_ACCESS_KEY=${env:TIGER}",
        f"spark.authenticate.secret=${{file:{tmp_path}/a key}}",
    )
    assert done.exit_code == 0, done.output
    (tmp_path / "spark-submit").write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    (tmp_path / "spark-submit").chmod(0o700)
    shell = ["sh", str(tmp_path / "b" / "submit.sh")]
    path = {"PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}
    words = subprocess.run(shell, env={**path, "TIGER": "ti ger"}, capture_output=True, text=True, check=True)
    assert "spark.executorEnv.AWS_SECRET_ACCESS_KEY=ti ger" in words.stdout.splitlines()
    assert "spark.authenticate.secret=li on" in words.stdout.splitlines()
    unset = subprocess.run(shell, env=path, capture_output=True, text=True, check=False)
    assert unset.returncode
    assert "TIGER" in unset.stderr


def test_a_job_file_with_a_mistake_is_refused_before_anything_is_packed(tmp_path) -> None:
    (tmp_path / "job.yaml").write_text("template: no-such-template\n")
    done = CliRunner().invoke(cli, ["package", str(tmp_path / "job.yaml"), "--into", str(tmp_path / "b")])
    assert done.exit_code == 2
    assert "no-such-template" in done.output
    assert not (tmp_path / "b").exists()


def environment(folder: Path) -> Path:
    """An empty virtual environment, as far as packing looks at it."""
    folder.mkdir()
    (folder / "pyvenv.cfg").write_text("home = /usr/bin\ninclude-system-site-packages = false\n")
    return folder


def test_an_editable_package_is_refused_because_the_archive_would_lack_it(tmp_path) -> None:
    folder = environment(tmp_path / "e")
    metadata = folder / "lib" / "python3.11" / "site-packages" / "penstock-0.1.0.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "direct_url.json").write_text(
        json.dumps({"url": "file:///x", "dir_info": {"editable": True}})
    )
    with pytest.raises(UsageError, match="has penstock installed in editable mode, which cannot be packed"):
        pack_environment(folder, tmp_path / "archive.tar.gz", None)


def test_conda_environments_and_other_folders_are_refused_with_what_to_do(tmp_path) -> None:
    with pytest.raises(UsageError, match="not a virtual environment: name one with --environment"):
        pack_environment(tmp_path, tmp_path / "archive.tar.gz", None)
    (tmp_path / "conda-meta").mkdir()
    with pytest.raises(UsageError, match=r"conda pack -o environment\.tar\.gz"):
        pack_environment(tmp_path, tmp_path / "archive.tar.gz", None)


def test_the_base_python_is_named_because_the_archive_only_links_to_it(tmp_path) -> None:
    assert base_python(environment(tmp_path / "e")) == "/usr/bin"
