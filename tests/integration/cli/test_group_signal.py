"""A signal to the whole process group, as GNU `timeout`, shells and service managers send it."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.spark, pytest.mark.emulator, pytest.mark.long(seconds=10)]


def test_a_signal_to_the_group_reaches_no_jvm_so_the_running_epoch_is_committed(
    start: Any, shop: Any, published: Callable[[Path], list[Any]], penstock: list[str], tmp_path: Path
) -> None:
    parameters = {
        "project": "my-project",
        "instance": "main",
        "database": "shop",
        "change_stream": "OrdersStream",
        "output": str(tmp_path / "out"),
    }
    sets = [f"--set={name}={value}" for name, value in parameters.items()]
    checkpoint = ("--checkpoint-dir", str(tmp_path / "checkpoint"))
    program = start(*penstock, "run", "spanner-to-files", *sets, *checkpoint, "--master", "local[2,4]")
    program.until(lambda: bool(program.events("progress")) and program.events("progress")[-1]["epochs"] > 1)
    os.killpg(program.process.pid, signal.SIGTERM)
    assert program.process.wait(180) == 130
    assert program.events("stopped")
    assert [event["message"] for event in program.events("log") if "failed" in event["message"]] == []
