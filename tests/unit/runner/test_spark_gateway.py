"""The JVM's process, seen through a shell in its place."""

from __future__ import annotations

import socket
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.runner.spark import gateway
from penstock.runner.spark.errors import SparkKilledError, SparkStartError
from penstock.runner.spark.gateway import JvmProcess
from penstock.runner.spark.own_session import OwnSession
from penstock.runner.spark.python_check import check_python


def jvm(script: str) -> JvmProcess:
    process = subprocess.Popen(
        ["/bin/sh", "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    return JvmProcess(process)


def test_a_jvm_that_ended_has_an_exit_code_and_its_last_output(capfd: pytest.CaptureFixture[str]) -> None:
    ended = jvm("echo one; echo two >&2; exit 3")
    assert ended.exit_code(10.0) == 3
    assert ended.log == "one\ntwo\n"
    assert capfd.readouterr().err == "", "what a start that failed has printed is in the error"


def test_a_signal_is_a_negative_exit_code() -> None:
    assert jvm("kill -9 $$").exit_code(10.0) == -9


def test_a_jvm_that_runs_has_no_exit_code_and_ends_with_its_input() -> None:
    running = jvm("read line; exit 0")
    assert running.exit_code() is None
    running.end()
    assert running.exit_code() == 0


def test_what_the_jvm_prints_is_copied_once_it_is_ready(capfd: pytest.CaptureFixture[str]) -> None:
    running = jvm("echo early; read line; echo late")
    running.copy_output()
    assert running._process.stdin is not None
    running._process.stdin.write(b"\n")
    running._process.stdin.flush()
    assert running.exit_code(10.0) == 0
    assert capfd.readouterr().err == "early\nlate\n"


def test_the_warning_about_a_package_of_older_javas_is_not_copied(capfd: pytest.CaptureFixture[str]) -> None:
    running = jvm("echo 'WARNING: package sun.security.action not in java.base'; echo 'WARNING: else'")
    running.copy_output()
    assert running.exit_code(10.0) == 0
    assert capfd.readouterr().err == running.log == "WARNING: else\n"


def test_a_jvm_that_is_killed_once_it_has_an_address_is_named_by_its_signal(tmp_path: Path) -> None:
    """Its port refuses connections then, which alone would be "[Errno 111] Connection refused"."""
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]
    address = tmp_path / "gateway"
    address.write_bytes(struct.pack(">ii", port, 3) + b"key")
    session = OwnSession({"spark.master": "local[1]"}, [])
    session.jvm, session._address = jvm("sleep 0.1; kill -9 $$"), address
    with pytest.raises(
        SparkKilledError, match="JVM was ended by SIGKILL before it was ready: start the pipeline"
    ):
        session.connect()
    assert SparkKilledError.retryable
    session.jvm, session._address = jvm("echo 'Error: no such option'; exit 1"), address
    with pytest.raises(SparkStartError, match="no such option") as refused:
        session.connect()
    assert not refused.value.retryable


def test_a_jvm_that_runs_is_not_blamed_for_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gateway, "_END_SECONDS", 0.01)
    running = jvm("read line")
    with pytest.raises(ConnectionResetError), gateway.explaining_its_end(running):
        raise ConnectionResetError
    running.end()


def test_a_closed_message_pipe_does_not_stop_the_jvm(tmp_path: Path) -> None:
    program = (
        "import os, subprocess, sys\n"
        "from penstock.runner.spark.gateway import JvmProcess\n"
        "process = subprocess.Popen(['/bin/sh', '-c', 'seq 100000'], stdin=-1, stdout=-1, stderr=-2)\n"
        "jvm = JvmProcess(process)\n"
        "jvm.copy_output()\n"
        "print(jvm.exit_code(60.0))\n"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert child.stderr is not None
    assert child.stdout is not None
    child.stderr.close()
    assert child.stdout.read().strip() == "0"
    assert child.wait(60) == 0
    child.stdout.close()


def make_python(folder: Path, answer: str) -> str:
    program = folder / "python"
    program.write_text(f"#!/bin/sh\n{answer}\n")
    program.chmod(0o755)
    return str(program)


def test_the_driver_s_own_python_needs_no_check() -> None:
    check_python(sys.executable, {"PATH": ""})


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ("echo 3.8", "which is Python 3.8, not {}.{}"),
        ("echo {}.{} apache_beam penstock", "no module apache_beam and penstock"),
        ("exit 1", "does not run Python code"),
        ("echo", "does not run Python code"),
    ],
)
def test_a_python_that_cannot_serve_the_workers_is_refused(tmp_path: Path, answer: str, said: str) -> None:
    python = make_python(tmp_path, answer.format(*sys.version_info))
    with pytest.raises(SparkStartError) as caught:
        check_python(python)
    assert said.format(*sys.version_info) in str(caught.value)
    assert f"unset PYSPARK_PYTHON, and workers use the driver's Python ({sys.executable})" in str(
        caught.value
    )


def test_a_python_that_does_not_exist_is_refused() -> None:
    with pytest.raises(SparkStartError, match="'/nowhere/python', which is not a program"):
        check_python("/nowhere/python")
