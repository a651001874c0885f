"""Standard error that is lost, full, closed, or written to by other code. Each case runs in a separate process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from typing import Any

import pytest

from penstock.launch.streams import MessageStream

JSON_REPORTER = """
import os, subprocess, sys, threading, time
from penstock.launch.reporter import standard_error_reporter
"""


def run(program: str, **options: Any) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", JSON_REPORTER + textwrap.dedent(program)]
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | options
    return subprocess.run(command, text=True, check=False, timeout=60, **options)


@pytest.mark.parametrize("style", ["json", "line", "none"])
def test_a_reader_that_closed_its_pipe_changes_nothing(style: str) -> None:
    readable, writable = os.pipe()
    os.close(readable)
    done = run(
        f"""
        reporter = standard_error_reporter({style!r})
        for _ in range(3):
            reporter.message("log", "text")
        print("worked", flush=True)
        print("a library prints", file=sys.stderr, flush=True)
        """,
        stderr=writable,
    )
    os.close(writable)
    assert (done.returncode, done.stdout) == (0, "worked\n")


def test_a_full_disk_changes_nothing() -> None:
    with open("/dev/full", "w") as full:
        done = run(
            """
            reporter = standard_error_reporter("line")
            reporter.message("log", "text")
            print("worked")
            """,
            stderr=full,
        )
    assert (done.returncode, done.stdout) == (0, "worked\n")


def test_a_closed_standard_error_is_not_given_to_another_file(tmp_path: Any) -> None:
    program = """
from penstock.launch.streams import open_missing_streams
open_missing_streams()
from penstock.launch.reporter import standard_error_reporter
reporter = standard_error_reporter("json")
file = open("data", "w")
reporter.message("log", "text")
import os
os.write(2, b"a C library logs")
file.close()
print(file is not None)
"""
    command = ["/bin/sh", "-c", 'exec "$0" -c "$1" 2>&-', sys.executable, program]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False, timeout=60, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "True\n")
    assert (tmp_path / "data").read_text() == ""


def test_with_json_every_line_on_standard_error_is_json() -> None:
    program = JSON_REPORTER + textwrap.dedent(
        """
        reporter = standard_error_reporter("json")
        os.write(2, b"a C library logs\\n")
        subprocess.run([sys.executable, "-c", "import sys; sys.exit('a child fails')"])
        thread = threading.Thread(target=lambda: 1 / 0)
        thread.start()
        thread.join()
        reporter.message("log", "ours")
        os.write(2, b"last line\\n")
        sys.stdin.read()
        """
    )
    messages = []
    command = [sys.executable, "-c", program]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
        assert child.stderr is not None
        assert child.stdin is not None
        for line in child.stderr:
            messages.append(json.loads(line)["message"])
            if messages[-1] == "last line":
                child.stdin.close()  # the child ends only after all lines have been passed on
    assert child.returncode == 0
    assert {"ours", "a C library logs", "a child fails"} <= set(messages)
    assert "ZeroDivisionError: division by zero" in messages


def test_a_message_after_a_truncated_one_starts_on_a_new_line() -> None:
    readable, writable = os.pipe()
    os.set_blocking(writable, False)
    stream = MessageStream(writable)
    stream.write("x" * (1 << 20))  # the pipe takes only a part of it
    assert set(os.read(readable, 1 << 20)) == set(b"x")
    stream.write("whole\n")
    assert os.read(readable, 1 << 20) == b"\nwhole\n"
    os.close(readable)
    os.close(writable)
