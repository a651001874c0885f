"""A driver with open gRPC channels can always start Spark's JVM."""

from __future__ import annotations

import os
import subprocess
import sys


def test_a_process_with_an_open_grpc_stream_starts_child_processes_reliably() -> None:
    environment = {name: value for name, value in os.environ.items() if name != "GRPC_ENABLE_FORK_SUPPORT"}
    ended = subprocess.run(
        [sys.executable, "-m", "tests.integration.children.program", "80"],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        check=True,
        timeout=120,
    )
    assert ended.stdout.split() == ["deaf"] * 80
