"""Peak memory of a program and of the processes that it starts: driver, JVMs and Python workers. Linux only."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

EVERY_SECONDS = 0.2


@dataclass(frozen=True, slots=True)
class Measured:
    """What a program has printed, and the highest resident memory of its processes in MB.

    `worker_mb` is that of the largest Python process below a JVM. `samples` are the resident memory over time, in MB by
    role, also of the largest process of each role.
    """

    figures: dict[str, Any]
    driver_mb: int
    jvm_mb: int
    worker_mb: int
    samples: list[dict[str, int]] = field(default_factory=list)

    def facts(self) -> dict[str, Any]:
        """Return everything as one mapping, for evidence."""
        return {
            **self.figures,
            "driver_mb": self.driver_mb,
            "jvm_mb": self.jvm_mb,
            "worker_mb": self.worker_mb,
        }


def measure(
    command: Sequence[str], seconds: float, environment: dict[str, str], sample_seconds: float = 0.0
) -> Measured:
    """Run a program that prints one line of JSON last, and measure its processes until it ends.

    With `sample_seconds` there is a sample of their memory after each such time.

    Raises:
        subprocess.CalledProcessError: it failed.
        TimeoutError: it did not end within `seconds`.
    """
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, env=environment, start_new_session=True, text=True
    )
    peaks = {"driver": 0, "jvm": 0, "worker": 0}
    samples: list[dict[str, int]] = []
    began = time.monotonic()
    end = began + seconds
    try:
        while process.poll() is None:
            now = dict.fromkeys(peaks, 0)
            for role, highest, resident in _processes(process.pid):
                peaks[role] = max(peaks[role], highest)
                now[role] = max(now[role], resident // 1000)
            if sample_seconds and time.monotonic() >= began + sample_seconds * (len(samples) + 1):
                samples.append(now)
            if time.monotonic() > end:
                raise TimeoutError(f"{command} did not end within {seconds} s")
            try:
                process.wait(EVERY_SECONDS)
            except subprocess.TimeoutExpired:
                continue
    finally:
        _kill_group(process)
    assert process.stdout is not None
    printed = process.stdout.read()
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command, printed)
    figures = json.loads(printed.splitlines()[-1])
    return Measured(figures, *(peaks[role] // 1000 for role in ("driver", "jvm", "worker")), samples)


def _kill_group(process: subprocess.Popen[str]) -> None:
    # The program is the leader of its group; its JVM and workers end with it.
    if process.poll() is None:
        process.kill()
        process.wait(60)


def _processes(top: int) -> Iterator[tuple[str, int, int]]:
    """Yield role, highest and present resident memory (kB) of a process and of those below it."""
    yield "driver", *_memory_kb(top)
    below = [(child, False) for child in _children(top)]
    while below:
        process, in_jvm = below.pop()
        is_jvm = _program(process).endswith("java")
        if is_jvm or in_jvm:
            yield "jvm" if is_jvm else "worker", *_memory_kb(process)
        below.extend((child, in_jvm or is_jvm) for child in _children(process))


def _children(parent: int) -> list[int]:
    """Return the children of a process. Each is listed with the thread that made it, and threads come and go."""
    found = []
    for task in Path(f"/proc/{parent}/task").glob("*/children"):
        try:
            found += [int(child) for child in task.read_text().split()]
        except OSError:
            continue
    return found


def _program(process: int) -> str:
    try:
        return Path(f"/proc/{process}/cmdline").read_bytes().split(b"\0")[0].decode()
    except OSError:
        return ""


def _memory_kb(process: int) -> tuple[int, int]:
    """Return the highest and the present resident memory."""
    try:
        lines = Path(f"/proc/{process}/status").read_text().splitlines()
    except OSError:
        return 0, 0
    found = {name: value for name, _, value in (line.partition(":") for line in lines)}
    return tuple(int(found.get(name, "0").split()[0]) for name in ("VmHWM", "VmRSS"))  # type: ignore[return-value]
