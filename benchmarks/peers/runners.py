"""Other runners of Beam as peers: Prism, and those on Flink and Spark, each behind its own job server.

    with job_server("Prism") as flags:
        beam.Pipeline(runner="PortableRunner", options=PipelineOptions(flags))

DoFns run in this process (LOOPBACK), as with FnApiRunner, and the server is a child process. When it ends, Beam's
threads report the loss of their connections as errors, so a peer gets a process of its own. Prism needs Go, the others
need Maven and Java. Each is downloaded once, into the user's cache. The job servers are the newest of which all parts
could be downloaded; they are older than the Beam of this environment.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import apache_beam

from penstock_emulators.kafka import find_java
from penstock_emulators.maven import cache, fetch
from penstock_emulators.server_process import ServerProcess, did_not_listen, free_port

BEAM = "2.62.0"
"""Version of the job servers."""
FLINK = (f"org.apache.beam:beam-runners-flink-1.19:{BEAM}", "org.slf4j:slf4j-jdk14:1.7.36")
_SPARK = "3.5.0"
SPARK = (
    f"org.apache.beam:beam-runners-spark-3:{BEAM}",
    *(f"org.apache.spark:spark-{part}_2.12:{_SPARK}" for part in ("core", "sql", "streaming")),
)
WORKERS = 2
_START_SECONDS = 60.0
_OPENED = (
    "java.lang",
    "java.lang.invoke",
    "java.io",
    "java.net",
    "java.nio",
    "java.util",
    "java.util.concurrent",
    "sun.nio.ch",
    "sun.security.action",
)
"""Packages of the JDK into which Flink and Spark look."""


@contextmanager
def job_server(name: str) -> Iterator[Sequence[str]]:
    """Start the job server of a runner; yield the options of pipelines that use it."""
    port = free_port()
    with tempfile.TemporaryDirectory(prefix="penstock-peer-", ignore_cleanup_errors=True) as folder:
        server = ServerProcess(SERVERS[name](port, folder), Path(folder) / "log")
        try:
            if not server.listens(port, time.monotonic() + _START_SECONDS):
                raise did_not_listen(name, _START_SECONDS)
            yield [
                f"--job_endpoint=localhost:{port}",
                "--environment_type=LOOPBACK",
                f"--parallelism={WORKERS}",
            ]
        finally:
            server.stop()


def prism(port: int, folder: str) -> Sequence[str]:
    """Return the command of Prism, of the Beam that is installed."""
    version = apache_beam.__version__
    program = cache() / f"prism-{version}" / "prism"
    if not program.exists():
        source = f"github.com/apache/beam/sdks/v2/go/cmd/prism@v{version}"
        environment = {**os.environ, "GOBIN": str(program.parent)}
        subprocess.run(["go", "install", source], env=environment, check=True)
    return [str(program), "--job_port", str(port), "--serve_http=false", "--log_level", "warn"]


def flink(port: int, folder: str) -> Sequence[str]:
    """Return the command of Flink's job server, with a cluster in its process."""
    jars = cache() / f"beam-flink-{BEAM}"
    fetch(jars, FLINK)
    return _java(jars, "flink.FlinkJobServerDriver", port, folder, "--flink-master=[local]")


def spark(port: int, folder: str) -> Sequence[str]:
    """Return the command of Spark's job server, with Spark in its process."""
    jars = cache() / f"beam-spark-{BEAM}"
    fetch(jars, SPARK)
    return _java(jars, "spark.SparkJobServerDriver", port, folder, f"--spark-master-url=local[{WORKERS}]")


SERVERS: dict[str, Callable[[int, str], Sequence[str]]] = {"Prism": prism, "Flink": flink, "Spark": spark}


def _java(jars: Path, driver: str, port: int, folder: str, master: str) -> Sequence[str]:
    opened = [f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in _OPENED]
    ports = [f"--job-port={port}", "--artifact-port=0", "--expansion-port=0", f"--artifacts-dir={folder}"]
    return [find_java(), *opened, "-cp", f"{jars}/*", f"org.apache.beam.runners.{driver}", *ports, master]
