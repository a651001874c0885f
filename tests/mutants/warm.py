"""Runs pytest in forks of one process that has imported the libraries of the tests, which takes longer than most tests.

    python tests/mutants/warm.py LIBRARY ...

Reads a request from each line of standard input, and answers each with one line when pytest has ended. A request is a
JSON object: `folder` (the tree to test), `tests` (node ids), `options` (of pytest), `seconds` (how long pytest may run)
and `log` (the file for its output). The answer has `code` (the exit code of pytest, or -1 if it did not end in time),
and for each test that ran, by its node id, its `seconds` and whether it was `red`.

Nothing of penstock or of its tests is imported here, so each fork sees the tree that the request names.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib
import json
import os
import signal
import sys
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest


class Outcomes:
    """A plugin of pytest: the seconds of each test, and whether it was red in any phase."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self.red: set[str] = set()

    def pytest_runtest_logreport(self, report: Any) -> None:
        self.seconds[report.nodeid] += report.duration
        if report.failed:
            self.red.add(report.nodeid)


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """Run pytest in a fork; return the answer."""
    told = Path(request["log"] + ".json")
    told.unlink(missing_ok=True)
    process = os.fork()
    if not process:
        _be_pytest(request, told)
    deadline = time.monotonic() + request["seconds"]
    while time.monotonic() < deadline:
        ended, status = os.waitpid(process, os.WNOHANG)
        if ended:
            code = os.waitstatus_to_exitcode(status)
            return {"code": code, **(json.loads(told.read_text()) if told.exists() else {})}
        time.sleep(0.01)
    os.killpg(process, signal.SIGKILL)
    os.waitpid(process, 0)
    return {"code": -1}


def _be_pytest(request: dict[str, Any], told: Path) -> None:
    """In the fork: become what `python -m pytest` is in the tree, and end the process."""
    os.setsid()
    os.chdir(request["folder"])
    with open(os.devnull) as null, open(request["log"], "w") as log:
        os.dup2(null.fileno(), 0)
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    sources = [os.path.join(request["folder"], "src"), os.path.join(request["folder"], "emulators", "src")]
    sys.path[:0] = [request["folder"], *sources]
    # A test that is left out would look as if the mutant survived.
    path = os.pathsep.join(sources)
    os.environ |= {"PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1", "PENSTOCK_REQUIRE_EMULATORS": "1"}
    os.environ.pop("PENSTOCK_CAMPAIGN", None)
    sys.dont_write_bytecode = True
    outcomes, code = Outcomes(), 3
    try:
        code = int(pytest.main([*request["options"], *request["tests"]], plugins=[outcomes]))
        told.write_text(json.dumps({"seconds": outcomes.seconds, "red": sorted(outcomes.red)}))
        # Servers and Spark sessions that tests have started end here. A thread that still runs must not keep the fork.
        atexit._run_exitfuncs()
        sys.stdout.flush()
    finally:
        os._exit(code)


def main() -> None:
    for library in sys.argv[1:]:
        with contextlib.suppress(ImportError):
            importlib.import_module(library)
    print("{}", flush=True)
    for line in sys.stdin:
        print(json.dumps(answer(json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
