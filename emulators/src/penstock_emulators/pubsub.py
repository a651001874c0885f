"""The Pub/Sub emulator of the Google Cloud SDK, as a context manager.

    with PubSubEmulator.start() as emulator:
        os.environ["PUBSUB_EMULATOR_HOST"] = emulator.host

For tests and demonstrations: it holds all messages in memory. It does not prove that messages of an ordering key are
delivered again in their order: after a refusal of the second of three it sends the third one first.
"""

from __future__ import annotations

import time
from pathlib import Path

from penstock_emulators.emulator import Emulator
from penstock_emulators.gcloud import PUBSUB, EmulatorNotFoundError
from penstock_emulators.kafka import find_java
from penstock_emulators.server_process import ServerProcess, did_not_listen, free_port


def find_jar() -> Path:
    """Return the emulator's jar.

    Raises:
        EmulatorNotFoundError: it is not on this machine; the message says how to get it.
    """
    folder = PUBSUB.find_binary().parent.parent / "lib"
    for found in sorted(folder.glob("cloud-pubsub-emulator-*.jar")):
        return found
    raise EmulatorNotFoundError(f"there is no jar of the Pub/Sub emulator in {folder}")


class PubSubEmulator(Emulator):
    """A running emulator: one process in a new process group. `host` is ``localhost:port``."""

    name = "Pub/Sub"

    def __init__(self, port: int, log: Path | None) -> None:
        super().__init__(log)
        self._port = port
        # The launcher of the SDK would leave the server running when it ends.
        self._command = [find_java(), "-Xmx256m", "-XX:TieredStopAtLevel=1", "-jar", str(find_jar())]

    @classmethod
    def start(cls, *, log: Path | None = None, timeout_seconds: float = 60.0) -> PubSubEmulator:
        """Start an emulator.

        Raises:
            EmulatorNotFoundError: Java or the jar is missing.
            EmulatorStartError: it did not start in time.
        """
        emulator = cls(free_port(), log)
        emulator.restart(timeout_seconds)
        return emulator

    @property
    def host(self) -> str:
        return f"localhost:{self._port}"

    def restart(self, timeout_seconds: float = 60.0) -> None:
        """Start it again on its port after `stop`; topics and messages are gone."""
        command = [*self._command, "--host=127.0.0.1", f"--port={self._port}"]
        self._process = ServerProcess(command, self._log)
        if not self._process.listens(self._port, time.monotonic() + timeout_seconds):
            self.stop()
            raise did_not_listen(self.name, timeout_seconds)
