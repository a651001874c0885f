"""Ships the packages that Beam's options name (`--requirements_file`, `--setup_file`, `--extra_package`) to workers.

Other runners install such packages when they start a worker's container. Spark starts the workers here, so the driver
installs the packages into a folder with pip, and every worker appends that folder to its search path. So a package that
a worker already has is used before the same package in the folder.

- Local master: workers run on this machine with this Python. Only what is missing here is installed.
- Cluster: everything is installed, since executors may have less than the driver. Spark copies the folder to each
  executor (`SparkContext.addArchive`). Packages with compiled parts need the same platform and Python there.
"""

from __future__ import annotations

import atexit
import json
import logging
import os
import shutil
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from apache_beam.options.pipeline_options import SetupOptions

from penstock.errors import UsageError
from penstock.runner.planning.program import Program

logger = logging.getLogger(__name__)

_PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet")


@dataclass(frozen=True, slots=True)
class Packages:
    """The packages to install, as arguments of `pip install`."""

    arguments: tuple[str, ...] = ()

    @classmethod
    def of(cls, options: SetupOptions) -> Packages:
        """Return the packages that Beam's options name.

        Raises:
            UsageError: a file that an option names does not exist.
        """
        arguments: list[str] = []
        if options.requirements_file:
            arguments += ["--requirement", _existing("--requirements_file", options.requirements_file)]
        if options.setup_file:
            arguments.append(os.path.dirname(_existing("--setup_file", options.setup_file)))
        for package in options.extra_packages or ():
            arguments.append(_existing("--extra_package", package))
        return cls(tuple(arguments))

    def ship(self, spark: Any, program: Program) -> Program:
        """Install the packages where workers of this Spark context find them; return the program with their folder.

        Raises:
            UsageError: pip could not install them; the message repeats what it said.
        """
        if not self.arguments:
            return program
        folder = tempfile.mkdtemp(prefix="penstock-packages-")
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        if str(spark.master).startswith("local[") or spark.master == "local":
            missing = _missing(self.arguments, f"{folder}/report.json")
            # pip resolved the dependencies for the report. Without --no-deps it would also install those that this
            # Python has.
            if missing:
                _run_pip("--no-deps", "--target", f"{folder}/packages", *missing)
            return replace(program, path=(*program.path, f"{folder}/packages"))
        # A new name for each pipeline: executors of one session unpack the archives of several side by side.
        name = f"penstock-packages-{uuid.uuid4().hex[:12]}"
        _run_pip("--target", f"{folder}/packages", *self.arguments)
        archive = shutil.make_archive(f"{folder}/{name}", "zip", f"{folder}/packages")
        spark.addArchive(f"{archive}#{name}")
        # An executor unpacks archives in its working directory, and its Python workers run in the same one.
        return replace(program, path=(*program.path, name))


def _existing(option: str, path: str) -> str:
    if not os.path.exists(path):
        raise UsageError(f"{option}={path} does not exist; give the path of a file on this machine")
    return os.path.abspath(path)


def _missing(arguments: Sequence[str], report: str) -> list[str]:
    """Return the packages that pip would install here, as requirements that name exact files."""
    _run_pip("--dry-run", "--report", report, *arguments)
    found = json.loads(Path(report).read_text(encoding="utf-8"))["install"]
    return [f"{each['metadata']['name']} @ {each['download_info']['url']}" for each in found]


def _run_pip(*arguments: str) -> None:
    logger.info("installing packages for the workers: pip install %s", " ".join(arguments))
    # Without standard input pip fails at once where it would wait for a password.
    done = subprocess.run(
        [*_PIP, *arguments], capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False
    )
    if done.returncode:
        said = "\n".join(done.stderr.strip().splitlines()[-5:])
        raise UsageError(
            "pip could not install the packages of --requirements_file, --setup_file or --extra_package for the "
            f"workers: {said}\nInstall them yourself in the Python that the workers use, and leave the options out."
        )
