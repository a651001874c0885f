"""What users' code prints in a worker of a local master comes to the driver's standard output, through the JVM."""

from __future__ import annotations

import subprocess
import sys

import pytest

from penstock.runner.spark.gateway import JvmProcess
from penstock.runner.spark.printed_lines import LINE_PREFIX, VARIABLE

WORKER = """
import sys
from penstock.runner.spark.printed_lines import prefix_prints
prefix_prints()
prefix_prints()
print("one\\ntwo")
print("th", end="", flush=True)
print("ree \\N{SNOWMAN}")
print("a message", file=sys.stderr, flush=True)
print("no line end", end="")
sys.stdout.flush()
"""


def printed(environment: dict[str, str]) -> bytes:
    """What a worker writes to its two outputs, which Spark copies to one stream."""
    worker = subprocess.run(
        [sys.executable, "-c", WORKER],
        env={"PYTHONPATH": ":".join(sys.path), **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=True,
    )
    return worker.stdout


def test_a_worker_of_a_local_master_marks_each_line_that_it_prints() -> None:
    lines = ["one\n", "two\n", "three \N{SNOWMAN}\n", "no line end"]
    marked = b"".join(LINE_PREFIX + each.encode() for each in lines)
    assert printed({VARIABLE: "1"}).replace(b"a message\n", b"") == marked


def test_a_worker_of_a_cluster_marks_nothing() -> None:
    assert LINE_PREFIX not in printed({"PYTHONUTF8": "1"})


def test_marked_lines_go_to_standard_output_and_into_no_error_message(
    capfd: pytest.CaptureFixture[str],
) -> None:
    script = b"sleep 0; printf '%sa row\\nWARN a message\\n%slate\\n'" % (LINE_PREFIX, LINE_PREFIX)
    process = subprocess.Popen(
        ["/bin/sh", "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    jvm = JvmProcess(process)
    jvm.copy_output()
    assert jvm.exit_code(10.0) == 0
    # `end` mutes the JVM's own output first: what users print must come all the same.
    assert (capfd.readouterr(), jvm.log) == (("a row\nlate\n", "WARN a message\n"), "WARN a message\n")
