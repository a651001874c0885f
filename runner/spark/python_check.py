"""Check that the Python of local workers can run a pipeline, before Spark tries it four times."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping

from penstock.runner.spark.errors import SparkStartError

_NEEDED = ("apache_beam", "penstock")
_PROGRAM = (
    "import sys, importlib.util as u; print('.'.join(map(str, sys.version_info[:2])), "
    f"*(m for m in {_NEEDED!r} if u.find_spec(m) is None))"
)
_TIMEOUT_SECONDS = 60.0


def check_python(python: str, environment: Mapping[str, str] | None = None) -> None:
    """Raise SparkStartError if workers cannot run with `python`, the value of PYSPARK_PYTHON.

    The driver's own Python needs no check. Paths are compared as they are: the Python of a virtual environment is
    a link to one that has none of its packages.
    """
    environment = os.environ if environment is None else environment
    found = shutil.which(python, path=environment.get("PATH", os.defpath))
    if found is not None and os.path.abspath(found) == os.path.abspath(sys.executable):
        return
    fix = f"unset PYSPARK_PYTHON, and workers use the driver's Python ({sys.executable})"
    if found is None:
        raise SparkStartError(f"PYSPARK_PYTHON is {python!r}, which is not a program that can be run: {fix}")
    try:
        done = subprocess.run(
            [found, "-c", _PROGRAM],
            env=dict(environment),
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_SECONDS,
            check=True,
        )
        version, *missing = done.stdout.split()
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        raise SparkStartError(
            f"PYSPARK_PYTHON is {python!r}, which does not run Python code ({type(error).__name__}): {fix}"
        ) from error
    ours = "{}.{}".format(*sys.version_info)
    if version != ours:
        raise SparkStartError(f"PYSPARK_PYTHON is {python!r}, which is Python {version}, not {ours}: {fix}")
    if missing:
        raise SparkStartError(
            f"PYSPARK_PYTHON is {python!r}, which has no module {' and '.join(missing)}: {fix}, or install penstock "
            "there"
        )
