"""The Cloud Spanner emulator of the Google Cloud SDK, as a context manager.

    with SpannerEmulator.start(token_life_seconds=2) as emulator:
        emulator.create_database("my-project", "my-instance", "bank", ["CREATE TABLE …", "CREATE CHANGE …"])
        subprocess.run(pipeline, env={**os.environ, **emulator.environment()})

For tests, demonstrations and benchmarks: it holds everything in memory and forgets it when it ends. A short
token life makes change stream partitions split, merge and move while somebody reads them.

Only the gRPC server (`emulator_main`) is started. The SDK's own launcher puts a REST gateway in front of it,
which no client here speaks to, and which leaves the server running when it ends.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Self

BIN_VARIABLE = "SPANNER_EMULATOR_BIN"
"""Environment variable: the folder that holds `emulator_main`; looked at first."""

_HOW_TO_GET_IT = (
    "Install the Google Cloud SDK and run `gcloud components install cloud-spanner-emulator` "
    f"(or install the package google-cloud-cli-spanner-emulator), or set {BIN_VARIABLE} to the folder that "
    "holds emulator_main."
)


class EmulatorNotFoundError(RuntimeError):
    """The emulator is not on this machine; the message says how to get them."""


class EmulatorStartError(RuntimeError):
    """The emulator is here, but no server listened in time."""


class SpannerEmulator:
    """A running emulator: one process, in a process group of its own.

    `host` is ``localhost:port`` of the gRPC server, `process_group` the id that `stop` ends. Leaving the
    context ends the process.
    """

    def __init__(self, binary: Path, token_life_seconds: int | None, log: Path | None) -> None:
        """Use `start`; this only records what to run."""
        self._binary = binary
        self._token_life_seconds = token_life_seconds
        self._log = log
        self._port = 0
        self._process: subprocess.Popen[bytes] | None = None

    @classmethod
    def start(
        cls, *, token_life_seconds: int | None = None, log: Path | None = None, timeout_seconds: float = 30.0
    ) -> Self:
        """Start an emulator on a free port and return when it accepts connections.

        Partition tokens live `token_life_seconds` to twice that (None: the emulator's 20 to 40 s). What the
        process prints is appended to `log`, or dropped.

        Raises:
            EmulatorNotFoundError: the emulator is not on this machine.
            EmulatorStartError: nothing listened within `timeout_seconds`.
        """
        emulator = cls(find_binary(), token_life_seconds, log)
        emulator._launch(timeout_seconds)
        return emulator

    @property
    def host(self) -> str:
        """``localhost:port``, the value for SPANNER_EMULATOR_HOST."""
        return f"localhost:{self._port}"

    @property
    def process_group(self) -> int:
        """The process group of the emulator; 0 when stopped."""
        return self._process.pid if self._process else 0

    def environment(self) -> dict[str, str]:
        """Return the variables that point Spanner clients in a child process at this emulator.

        Multiplexed sessions are off: with them, concurrent writers fail on the emulator.
        """
        return {
            "SPANNER_EMULATOR_HOST": self.host,
            "GOOGLE_CLOUD_SPANNER_MULTIPLEXED_SESSIONS": "false",
            "GOOGLE_CLOUD_SPANNER_MULTIPLEXED_SESSIONS_FOR_RW": "false",
            "GOOGLE_CLOUD_SPANNER_MULTIPLEXED_SESSIONS_PARTITIONED_OPS": "false",
        }

    def create_database(self, project: str, instance: str, database: str, ddl: Sequence[str]) -> None:
        """Create the instance if it is missing, and in it a new database with the statements of `ddl`."""
        from google.api_core.client_options import ClientOptions
        from google.api_core.exceptions import AlreadyExists
        from google.auth.credentials import AnonymousCredentials
        from google.cloud import spanner

        with _environment(self.environment()):
            client = spanner.Client(
                project=project,
                credentials=AnonymousCredentials(),  # type: ignore[no-untyped-call, unused-ignore]
                client_options=ClientOptions(api_endpoint=self.host),
                disable_builtin_metrics=True,
            )
            configuration = f"projects/{project}/instanceConfigs/emulator-config"
            home = client.instance(
                instance, configuration_name=configuration, display_name=instance, node_count=1
            )
            with suppress(AlreadyExists):  # a second database in one instance
                home.create().result(30)
            home.database(database, ddl_statements=list(ddl)).create().result(60)

    def restart(self, *, timeout_seconds: float = 30.0) -> None:
        """End the process and start a new one on the same port; all data is gone, as after a crash."""
        self.stop()
        self._run(self._port)
        if not self._listens(time.monotonic() + timeout_seconds):
            self.stop()
            raise EmulatorStartError(f"the Spanner emulator did not come back on port {self._port}")

    def stop(self) -> None:
        """Kill the process (it has nothing to save) and wait for its end. Stopping twice changes nothing."""
        process, self._process = self._process, None
        if process is not None:
            with suppress(ProcessLookupError):  # it ended by itself
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    def _launch(self, timeout_seconds: float) -> None:
        deadline = time.monotonic() + timeout_seconds
        while True:
            self._run(_free_port())
            if self._listens(deadline):
                return
            self.stop()  # another process may have taken the port in between: draw again
            if time.monotonic() > deadline:
                raise EmulatorStartError(
                    f"the Spanner emulator did not listen within {timeout_seconds:g} s; pass log=Path(…) to "
                    "start() and read what it printed"
                )

    def _run(self, port: int) -> None:
        self._port = port
        command = [str(self._binary), f"--host_port={self.host}"]
        if self._token_life_seconds:
            command.append(
                f"--override_change_stream_partition_token_alive_seconds={self._token_life_seconds}"
            )
        with open(self._log or os.devnull, "ab") as out:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True
            )

    def _listens(self, deadline: float) -> bool:
        assert self._process is not None
        while time.monotonic() < deadline and self._process.poll() is None:
            if _accepts(self._port):
                return self._process.poll() is None
            time.sleep(0.05)
        return False


def find_binary() -> Path:
    """Return the path of `emulator_main`.

    Looked for in `SPANNER_EMULATOR_BIN`, beside the real path of `gcloud`, and in the SDK root that
    `gcloud info` names.

    Raises:
        EmulatorNotFoundError: found nowhere; the message says how to get it.
    """
    named = os.environ.get(BIN_VARIABLE)
    if named:
        return _existing(Path(named), f"{BIN_VARIABLE} is {named!r}, which holds no emulator_main.")
    gcloud = shutil.which("gcloud")
    if gcloud is None:
        raise EmulatorNotFoundError(f"No gcloud on PATH, so no Spanner emulator. {_HOW_TO_GET_IT}")
    beside = Path(gcloud).resolve().parent / "cloud_spanner_emulator"
    if (beside / "emulator_main").exists():
        return beside / "emulator_main"
    root = _sdk_root(gcloud) / "bin" / "cloud_spanner_emulator"
    return _existing(root, "The Spanner emulator is not among gcloud's components.")


def _existing(folder: Path, otherwise: str) -> Path:
    if not os.access(folder / "emulator_main", os.X_OK):
        raise EmulatorNotFoundError(f"{otherwise} {_HOW_TO_GET_IT}")
    return folder / "emulator_main"


def _sdk_root(gcloud: str) -> Path:
    command = [gcloud, "info", "--format=value(installation.sdk_root)"]
    answer = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    return Path(answer.stdout.strip() or os.devnull)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        port: int = probe.getsockname()[1]
        return port


def _accepts(port: int) -> bool:
    try:
        with socket.create_connection(("localhost", port), timeout=1):
            return True
    except OSError:
        return False


@contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables for a block; Google's client reads its switches from nowhere else."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
