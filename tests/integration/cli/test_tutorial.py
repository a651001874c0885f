"""The tutorial, with all its commands in one shell, as a reader runs them."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.emulators.server_process import free_port
from tests.conftest import ROOT

pytestmark = [pytest.mark.slow(seconds=50), pytest.mark.spark]

PAGE = (ROOT / "docs" / "tutorial.md").read_text("utf-8")
BLOCK = re.compile(r'^```(?:sh|python title="([\w.]+)")\n(.*?)^```', re.MULTILINE | re.DOTALL)


def as_script() -> str:
    """Return one shell script: the commands in their order, and each program saved where the page shows it."""
    parts = ["set -eu"]
    for name, text in BLOCK.findall(PAGE):
        parts.append(f"cat > {name} <<'END_OF_PROGRAM'\n{text}END_OF_PROGRAM" if name else text)
    return "\n".join(parts)


@pytest.mark.campaign
def test_every_command_of_the_tutorial_works_in_its_order(tmp_path: Path) -> None:
    script = as_script().replace("9010", str(free_port()))
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    shell = subprocess.Popen(
        ["bash", "-c", script],
        cwd=tmp_path,
        env={**os.environ, "PATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        output, messages = shell.communicate(timeout=180)
    finally:
        os.killpg(shell.pid, signal.SIGKILL)
    assert shell.returncode == 0, f"{output}\n{messages}"
    lines = [
        line for file in tmp_path.glob("changes/Orders/*/*.jsonl") for line in file.read_text().splitlines()
    ]
    assert len(lines) == 40
    assert len(set(lines)) == 40
    debezium = "".join(file.read_text() for file in tmp_path.glob("debezium/Orders/*/*.jsonl"))
    assert '"State":"paid"' in debezium
    assert "sent" not in debezium
    assert "@example.com" not in debezium
    assert re.search(
        r"^paid: \d+$", messages, re.MULTILINE
    )  # Spark sends what a worker prints to standard error
    assert "Traceback" not in output + messages
