"""A small part of the suite on a machine without Google's emulators, as a newcomer and as CI run it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parent.parent.parent.parent
NEEDS_NOTHING = "tests/unit/emulators/test_gcloud.py"
NEEDS_EMULATOR = "tests/integration/emulators/bigtable/test_layouts.py"
HIDDEN = (
    "SPANNER_EMULATOR_BIN",
    "BIGTABLE_EMULATOR_BIN",
    "CI",
    "PENSTOCK_REQUIRE_EMULATORS",
    "PENSTOCK_CAMPAIGN",
    "PENSTOCK_LONG",
)


def run_suite(empty: Path, *options: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run pytest with PATH=`empty`, so that neither gcloud nor an emulator is found."""
    # A worker of xdist has PYTEST_XDIST_… variables, which would make the inner pytest a worker too.
    kept = {
        name: value
        for name, value in os.environ.items()
        if name not in HIDDEN and not name.startswith("PYTEST_")
    }
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *options]
    return subprocess.run(
        [*command, NEEDS_NOTHING, NEEDS_EMULATOR],
        cwd=ROOT,
        env={**kept, "PATH": str(empty), **variables},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )


@pytest.mark.long(seconds=15)
@pytest.mark.parametrize(
    "options",
    [pytest.param((), id="alone", marks=pytest.mark.campaign), pytest.param(("-n", "2"), id="xdist")],
)
def test_a_newcomer_without_emulators_gets_a_closing_line_and_exit_code_0(
    tmp_path: Path, options: tuple[str, ...]
) -> None:
    ended = run_suite(tmp_path, *options)
    assert ended.returncode == 0, ended.stdout
    *_, line, result = ended.stdout.splitlines()
    assert line.startswith("Left out: ")
    assert "gcloud components install cloud-spanner-emulator bigtable" in line
    assert " passed" in result


@pytest.mark.long(seconds=10)
@pytest.mark.parametrize(
    "variable", ["PENSTOCK_REQUIRE_EMULATORS", pytest.param("CI", marks=pytest.mark.campaign)]
)
def test_in_ci_a_missing_emulator_fails_the_tests_that_need_it(tmp_path: Path, variable: str) -> None:
    ended = run_suite(tmp_path, **{variable: "true"})
    assert ended.returncode == 1, ended.stdout
    assert "this test needs emulator: No gcloud on PATH" in ended.stdout
    assert "Left out" not in ended.stdout
