"""Runs `penstock quickstart` in a pseudo-terminal and keeps what it prints, with times: an asciicast of version 2."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path

ROWS, COLUMNS = 32, 112


def record() -> str:
    """Return the recording.

    Raises:
        CalledProcessError: the quickstart failed.
    """
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    # On PATH, so that the quickstart names its command as a reader types it.
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    command = ["penstock", "quickstart"]
    start = time.monotonic()
    with subprocess.Popen(
        command, stdin=theirs, stdout=theirs, stderr=theirs, env={**os.environ, "PATH": path}
    ) as child:
        os.close(theirs)
        events = []
        while text := _read(ours):
            print(text, end="", flush=True)
            events.append([round(time.monotonic() - start, 3), "o", text])
    os.close(ours)
    if child.returncode:
        raise subprocess.CalledProcessError(child.returncode, command)
    header = {"version": 2, "width": COLUMNS, "height": ROWS, "command": " ".join(command)}
    return "".join(f"{json.dumps(each, ensure_ascii=False)}\n" for each in [header, *events])


def _read(terminal: int) -> str:
    """Return what was printed next, whole lines as a rule; empty at the end."""
    try:
        return os.read(terminal, 65_536).decode("utf-8", "replace")
    except OSError:  # Linux reports the end of the last process of a terminal as an error
        return ""
