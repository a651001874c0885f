"""A standalone Spark cluster from the pip package: a master and workers, each with its own folders, on loopback.

    with StandaloneCluster(folder, hidden=[driver_folder]) as cluster:
        worker = cluster.add_worker()
        run = cluster.submit(["sh", "bundle/submit.sh"])

A worker is a session of processes: its JVM, its executors and their Python workers. Where the kernel allows it, a
worker has its own view of the file system, in which the folders `hidden` are empty: driver and executors then share
nothing but the network.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from types import TracebackType

import pyspark

from penstock.runner.spark.java import find_java, launcher_home
from penstock_emulators.oracle.kill import Run, session_members
from penstock_emulators.server_process import free_port, listens

HOME = Path(pyspark.__file__).parent
START_SECONDS = 60.0
CORES = 2
_HIDE = 'for folder in $HIDDEN; do mount -t tmpfs none "$folder" || exit 1; done; exec "$@"'


@cache
def can_hide() -> bool:
    """Whether this process may give a child its own view of the file system."""
    tried = subprocess.run(["unshare", "--mount", "true"], capture_output=True, check=False)
    return tried.returncode == 0


class StandaloneCluster:
    """A master, and workers that come and go."""

    def __init__(
        self, folder: Path, hidden: Sequence[Path] = (), environment: Mapping[str, str] | None = None
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.port = free_port()
        self.workers: list[Run] = []
        self._hidden = [str(each) for each in hidden]
        self._environment = {
            "JAVA_HOME": launcher_home(find_java(), temporary=folder),
            "SPARK_HOME": str(HOME),
            # All ports on loopback.
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_PUBLIC_DNS": "127.0.0.1",
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": "-XX:TieredStopAtLevel=1 -Dspark.worker.timeout=10",
            # `spark-submit` of the bundle's command.
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            **(environment or {}),
        }
        self._master = self._start(
            "master", "deploy.master.Master", "--port", str(self.port), "--webui-port", "0"
        )
        self._added = 0

    @property
    def url(self) -> str:
        return f"spark://127.0.0.1:{self.port}"

    def add_worker(self) -> Run:
        """Start a worker. The master finds out by itself; executors of running applications follow."""
        self._wait_for_master()
        self._added += 1
        name = f"worker-{self._added}"
        own = self.folder / name
        own.mkdir()
        arguments = ["--cores", str(CORES), "--memory", "2g", "--work-dir", str(own / "work")]
        worker = self._start(
            name, "deploy.worker.Worker", *arguments, "--webui-port", "0", self.url, local=own, hides=True
        )
        self.workers.append(worker)
        return worker

    def submit(self, command: Sequence[str], log: Path, environment: Mapping[str, str] | None = None) -> Run:
        """Run a command that calls spark-submit."""
        return Run(command, log=log, environment={**self._environment, **(environment or {})})

    def kill_worker(self, worker: Run) -> int:
        """SIGKILL a worker with its executors; return the number of processes."""
        self.workers.remove(worker)
        return worker.kill()

    def executors(self) -> list[int]:
        """Return the process ids of all executors."""
        members = [pid for worker in self.workers for pid in sorted(session_members(worker.process.pid))]
        return [pid for pid in members if "CoarseGrainedExecutorBackend" in _command(pid)]

    def kill_executor(self) -> int:
        """SIGKILL the newest executor; return how many were killed."""
        newest = self.executors()[-1:]
        for pid in newest:
            os.kill(pid, signal.SIGKILL)
        return len(newest)

    def kill_python_worker(self) -> int:
        """SIGKILL one Python worker of the executors; return how many were killed."""
        members = [pid for worker in self.workers for pid in sorted(session_members(worker.process.pid))]
        workers = [pid for pid in members if "penstock.runner.daemon" in _command(pid)][-1:]
        for pid in workers:
            os.kill(pid, signal.SIGKILL)
        return len(workers)

    def __enter__(self) -> StandaloneCluster:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for each in (*self.workers, self._master):
            each.kill()

    def _wait_for_master(self) -> None:
        if not listens(self.port, time.monotonic() + START_SECONDS, self._master.alive):
            raise RuntimeError(f"the master did not listen; read {self.folder / 'master.log'}")

    def _start(
        self, name: str, class_: str, *arguments: str, local: Path | None = None, hides: bool = False
    ) -> Run:
        command = [
            str(HOME / "bin" / "spark-class"),
            f"org.apache.spark.{class_}",
            "--host",
            "127.0.0.1",
            *arguments,
        ]
        # Executors inherit the worker's variables, and must find Penstock only where the submission says.
        environment = {
            **self._environment,
            "PYTHONPATH": "",
            **({"SPARK_LOCAL_DIRS": str(local)} if local else {}),
        }
        if hides and self._hidden and can_hide():
            command = ["unshare", "--mount", "--propagation", "private", "sh", "-c", _HIDE, "sh", *command]
            environment["HIDDEN"] = " ".join(self._hidden)
        return Run(command, log=self.folder / f"{name}.log", environment=environment)


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return ""
