"""The tutorials, each with all its commands in one shell, as a reader runs them."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from penstock_emulators.server_process import free_port

pytestmark = pytest.mark.spark

ROOT = Path(__file__).resolve().parents[3]
BLOCK = re.compile(r'^```(?:sh|(?:python|sql) title="([\w.]+)")\n(.*?)^```', re.MULTILINE | re.DOTALL)


def as_script(page: str) -> str:
    """Return one shell script: the commands in their order, and each file saved where the page shows it."""
    # What the page starts in the background ends with the shell, also if a command fails.
    parts = ["set -eu", "trap 'code=$?; kill $(jobs -p) 2> /dev/null || true; wait; exit $code' EXIT"]
    for name, text in BLOCK.findall((ROOT / "docs" / page).read_text("utf-8")):
        parts.append(f"cat > {name} <<'END_OF_FILE'\n{text}END_OF_FILE" if name else text)
    return "\n".join(parts)


def run_page(page: str, port: int, folder: Path) -> tuple[str, str]:
    """Run a page in an empty folder, with a free port in place of `port`; return its output and its messages."""
    script = as_script(page).replace(str(port), str(free_port()))
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    # Files, because a program that outlives the shell would keep a pipe open.
    with (folder / "output").open("w") as output, (folder / "errors").open("w") as errors:
        shell = subprocess.Popen(
            ["bash", "-c", script],
            cwd=folder,
            env={**os.environ, "PATH": path},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=errors,
            start_new_session=True,
        )
        try:
            shell.wait(timeout=600)
        finally:
            if shell.poll() is None:
                os.killpg(shell.pid, signal.SIGTERM)
                shell.wait(timeout=60)
            with suppress(ProcessLookupError):
                os.killpg(shell.pid, signal.SIGKILL)
    printed, messages = (folder / "output").read_text(), (folder / "errors").read_text()
    logged = "".join(file.read_text() for file in folder.glob("messages.txt"))
    assert shell.returncode == 0, f"{printed}\n{messages}\n{logged}"
    assert "Traceback" not in printed + messages
    return printed, messages


@pytest.mark.campaign
@pytest.mark.long(seconds=50)
def test_every_command_of_the_tutorial_works_in_its_order(tmp_path: Path) -> None:
    _, messages = run_page("tutorial.md", 9010, tmp_path)
    lines = [
        line for file in tmp_path.glob("changes/Orders/*/*.jsonl") for line in file.read_text().splitlines()
    ]
    assert len(lines) == 40
    assert len(set(lines)) == 40
    debezium = "".join(file.read_text() for file in tmp_path.glob("debezium/Orders/*/*.jsonl"))
    assert '"State":"paid"' in debezium
    assert "sent" not in debezium
    assert "@example.com" not in debezium
    # Spark sends what a worker prints to standard error.
    assert re.search(r"^paid: \d+$", messages, re.MULTILINE)


@pytest.mark.long(seconds=50)
def test_every_command_of_the_tutorial_of_postgres_works_in_its_order(tmp_path: Path) -> None:
    printed, _ = run_page("tutorial-postgres.md", 54320, tmp_path)
    # The queries of the page end only when their results are the expected ones.
    assert "call first" in printed
    assert printed.count('{"table":"lake/') == 3
    assert "choose-one" not in (tmp_path / "messages.txt").read_text() + (tmp_path / "job.yaml").read_text()
