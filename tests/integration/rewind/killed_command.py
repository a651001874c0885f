"""`penstock rewind` in a process that kills itself with SIGKILL, so that each step of it is met exactly.

    python -m tests.integration.rewind.killed_command after STEP rewind JOB.YAML --to TIME
    python -m tests.integration.rewind.killed_command before NUMBER rewind JOB.YAML --to TIME

*after*: at the end of a step of `Rewind.perform`. *before*: before the change of a file in the checkpoint folder with
this number, from 1; what is created, renamed or deleted counts. With fewer changes the command ends as usual.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

from penstock.cli.main import main
from penstock.runner.rewind import Rewind

_CHANGES = ("os.rename", "os.remove", "os.link")


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def kill_after(step: str) -> None:
    """Die at the end of a step."""
    perform = Rewind.perform

    def killed(self: Rewind) -> None:
        perform(self, lambda reached: _die() if reached == step else None)

    Rewind.perform = killed  # type: ignore[method-assign]


def kill_before(number: int, folder: str) -> None:
    """Die before the change of a file below a folder with this number."""
    changes = 0

    def look(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal changes
        is_new = event == "open" and isinstance(arguments[2], int) and bool(arguments[2] & os.O_CREAT)
        if (is_new or event in _CHANGES) and str(arguments[0]).startswith(folder):
            changes += 1
            if changes == number:
                _die()

    sys.addaudithook(look)


if __name__ == "__main__":
    moment, place, *command = sys.argv[1:]
    if moment == "after":
        kill_after(place)
    else:
        kill_before(int(place), os.environ["KILLED_BELOW"])
    sys.argv[1:] = command
    main()
