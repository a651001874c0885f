"""An emulator of BigQuery (the package bqemulator), as a child process on free ports of loopback.

    with BigQueryEmulator.start() as emulator:
        WriteToBigQuery(endpoint=emulator.endpoint, write_endpoint=emulator.write_endpoint, …)

It pins packages that other programs have in other versions, so it runs in a separate environment in a folder of the
user's cache, which `pip` fills once. PENSTOCK_BIGQUERY_EMULATOR names another Python that has the package.

It does not prove everything: it appends rows with change types like all others, keeps no primary keys, and runs a job
twice if its id comes twice.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
import venv
from contextlib import suppress
from pathlib import Path

from penstock_emulators.emulator import Emulator
from penstock_emulators.gcloud import EmulatorNotFoundError
from penstock_emulators.server_process import ServerProcess, did_not_listen, free_port

VERSION = "1.4.0"
_PYTHON = "PENSTOCK_BIGQUERY_EMULATOR"
# The emulator loads DuckDB's extension `spatial`, which it would download at each start.
_PACKAGES = (
    f"bqemulator=={VERSION}",
    "numpy",
    "duckdb==1.5.5",
    "duckdb-extensions==1.5.5",
    "duckdb-extension-spatial==1.5.5",
)
_IMPORT_EXTENSION = "import duckdb_extensions; duckdb_extensions.import_extension('spatial')"
_INSTALL_SECONDS = 600
# Each open AppendRows call holds a thread of asyncio's pool, which has four more than the machine has cores. With a few
# killed or paused writers the emulator would not answer any more.
_START = "import os; os.cpu_count = lambda: 60; from bqemulator.cli import main; main(prog_name='bqemulator')"


def find_python(*, install: bool = True) -> Path:
    """Return the Python that has the emulator; with `install`, make its environment if it is missing.

    Raises:
        EmulatorNotFoundError: it is not on this machine; the message says how to get it.
    """
    if named := os.environ.get(_PYTHON):
        if not Path(named).exists():
            raise EmulatorNotFoundError(f"{_PYTHON} is {named!r}, and there is no such program")
        return Path(named)
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "penstock"
    folder = cache / f"bqemulator-{VERSION}"
    python = folder / "bin" / "python"
    if python.exists():
        return python
    if not install:
        raise EmulatorNotFoundError(
            f"no BigQuery emulator on this machine: set {_PYTHON} to a Python that has {', '.join(_PACKAGES)}"
        )
    _install(folder)
    return python


def _install(folder: Path) -> None:
    folder.parent.mkdir(parents=True, exist_ok=True)
    # Made under another name and renamed: another process sees all of it or nothing.
    with tempfile.TemporaryDirectory(dir=folder.parent) as made:
        draft = Path(made) / "environment"
        # Without pip: it is slow to install, and this Python's pip can install into another environment.
        venv.create(draft, with_pip=False)
        python = str(draft / "bin" / "python")
        for command in (
            [sys.executable, "-m", "pip", "--python", python, "install", "-q", *_PACKAGES],
            [python, "-c", _IMPORT_EXTENSION],
        ):
            answer = subprocess.run(command, capture_output=True, text=True, timeout=_INSTALL_SECONDS)
            if answer.returncode:
                raise EmulatorNotFoundError(
                    f"pip could not install the BigQuery emulator:\n{answer.stderr[-2000:]}"
                )
        with suppress(OSError):  # another process was first
            os.rename(draft, folder)


class BigQueryEmulator(Emulator):
    """A running emulator: one process in a new process group. It holds all data in memory."""

    name = "BigQuery"

    def __init__(self, log: Path | None) -> None:
        super().__init__(log)
        # Both ports are named here, because the emulator does not print them.
        self._rest, self._grpc = free_port(), free_port()
        self._python = find_python()

    @classmethod
    def start(cls, *, log: Path | None = None, timeout_seconds: float = 60.0) -> BigQueryEmulator:
        """Start an emulator.

        Raises:
            EmulatorNotFoundError: it is not on this machine.
            EmulatorStartError: it did not start in time.
        """
        emulator = cls(log)
        ports = [f"--rest-port={emulator._rest}", f"--grpc-port={emulator._grpc}"]
        command = [str(emulator._python), "-c", _START, "start", *ports, "--log-level=warning"]
        emulator._process = ServerProcess(command, log)
        deadline = time.monotonic() + timeout_seconds
        for port in (emulator._rest, emulator._grpc):
            if not emulator._process.listens(port, deadline):
                emulator.stop()
                raise did_not_listen(cls.name, timeout_seconds)
        return emulator

    @property
    def endpoint(self) -> str:
        """URL of the REST API."""
        return f"http://localhost:{self._rest}"

    @property
    def write_endpoint(self) -> str:
        """``host:port`` of the Storage Write API."""
        return f"localhost:{self._grpc}"
