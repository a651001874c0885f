"""`penstock emulator spanner` and `penstock emulator spanner --simulated`, in separate processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

COMMAND = [sys.executable, "-m", "penstock.cli.main", "emulator", "spanner"]


def run(*options: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *options],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


@pytest.mark.slow
def test_without_an_option_the_command_becomes_googles_server(tmp_path: Path) -> None:
    server = tmp_path / "emulator_main"
    server.write_text('#!/bin/sh\necho "$@"\nexit 7\n')
    server.chmod(0o755)
    ended = run("--port", "9011", "--token-life-seconds", "2", SPANNER_EMULATOR_BIN=str(server))
    assert ended.stdout.split() == [
        "--host_port=localhost:9011",
        "--override_change_stream_partition_token_alive_seconds=2",
    ]
    assert ended.returncode == 7


def test_a_missing_emulator_is_an_error_that_names_both_remedies(tmp_path: Path) -> None:
    ended = run(SPANNER_EMULATOR_BIN=str(tmp_path))
    assert ended.returncode == 1
    assert "gcloud components install cloud-spanner-emulator" in ended.stderr
    assert "penstock emulator spanner --simulated" in ended.stderr


@pytest.mark.slow
def test_both_commands_show_their_options() -> None:
    assert "--simulated" in run("--help").stdout
    assert "--churn-seconds" in run("--simulated", "--help").stdout


@pytest.mark.slow
def test_the_simulated_service_listens_and_ends_on_sigterm() -> None:
    with subprocess.Popen(
        [*COMMAND, "--simulated", "--port", "0"], stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline().startswith("listening on localhost:")
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 0
        finally:
            process.kill()
