"""The Cloud Spanner emulator of the Google Cloud SDK, as a context manager.

    with SpannerEmulator.start(token_life_seconds=2) as emulator:
        emulator.create_database("my-project", "my-instance", "bank", ["CREATE TABLE …", "CREATE CHANGE …"])
        subprocess.run(pipeline, env={**os.environ, **emulator.environment()})

For tests, demonstrations and benchmarks: it holds all data in memory. A short token life makes change stream partitions
split, merge and move while a reader reads them.

Only the gRPC server (`emulator_main`) is started. The SDK's own launcher puts a REST gateway in front of it,
which no client here speaks to, and which leaves the server running when it ends.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from typing_extensions import Self

from penstock_emulators.emulator import Emulator
from penstock_emulators.gcloud import SPANNER, EmulatorNotFoundError
from penstock_emulators.server_process import EmulatorStartError, ServerProcess, did_not_listen, free_port

__all__ = ["EmulatorNotFoundError", "EmulatorStartError", "SpannerEmulator", "find_binary", "server_command"]


def find_binary() -> Path:
    """Return the path of `emulator_main`, see `Component.find_binary`; raises EmulatorNotFoundError."""
    return SPANNER.find_binary()


def server_command(binary: Path, host: str, token_life_seconds: int | None) -> list[str]:
    """Return the command that starts the gRPC server on `host` (``localhost:port``)."""
    command = [str(binary), f"--host_port={host}"]
    if token_life_seconds:
        command.append(f"--override_change_stream_partition_token_alive_seconds={token_life_seconds}")
    return command


class SpannerEmulator(Emulator):
    """A running emulator: one process in a new process group.

    `host` is ``localhost:port`` of the gRPC server, `process_group` the id that `stop` ends. Leaving the
    context ends the process.
    """

    name = "Spanner"

    def __init__(self, binary: Path, token_life_seconds: int | None, log: Path | None) -> None:
        """Use `start`; this only records what to run."""
        super().__init__(log)
        self._binary = binary
        self._token_life_seconds = token_life_seconds
        self._port = 0

    @classmethod
    def start(
        cls, *, token_life_seconds: int | None = None, log: Path | None = None, timeout_seconds: float = 30.0
    ) -> Self:
        """Start an emulator on a free port and return when it accepts connections.

        Partition tokens live `token_life_seconds` to twice that (None: the emulator's 20 to 40 s). The
        output of the process is appended to `log`, or dropped.

        Raises:
            EmulatorNotFoundError: the emulator is not on this machine.
            EmulatorStartError: nothing listened within `timeout_seconds`.
        """
        emulator = cls(find_binary(), token_life_seconds, log)
        emulator._launch_on_free_port(timeout_seconds)
        return emulator

    @property
    def host(self) -> str:
        """``localhost:port``, the value for SPANNER_EMULATOR_HOST."""
        return f"localhost:{self._port}"

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

    def create_database(
        self,
        project: str,
        instance: str,
        database: str,
        ddl: Sequence[str],
        *,
        dialect: str = "GOOGLE_STANDARD_SQL",
    ) -> None:
        """Create the instance if it is missing, and in it a new database with the statements of `ddl`.

        `dialect` is GOOGLE_STANDARD_SQL or POSTGRESQL.
        """
        from google.api_core.client_options import ClientOptions
        from google.api_core.exceptions import AlreadyExists
        from google.auth.credentials import AnonymousCredentials
        from google.cloud import spanner
        from google.cloud.spanner_admin_database_v1.types import DatabaseDialect

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
            # A PostgreSQL database is created without tables.
            later = list(ddl) if dialect == "POSTGRESQL" else []
            made = home.database(
                database,
                ddl_statements=[] if later else list(ddl),
                database_dialect=DatabaseDialect[dialect],
            )
            made.create().result(60)
            if later:
                made.update_ddl(later).result(60)

    def restart(self, *, timeout_seconds: float = 30.0) -> None:
        """End the process and start a new one on the same port. All data is lost, as after a crash.

        Raises:
            EmulatorStartError: nothing listened within `timeout_seconds`.
        """
        self.stop()
        if not self._listens_on(self._port, time.monotonic() + timeout_seconds):
            raise EmulatorStartError(f"the Spanner emulator did not come back on port {self._port}")

    def _launch_on_free_port(self, timeout_seconds: float) -> None:
        deadline = time.monotonic() + timeout_seconds
        # Another process may take a port before the emulator does, so each try has a new one.
        while not self._listens_on(free_port(), deadline):
            if time.monotonic() > deadline:
                raise did_not_listen(self.name, timeout_seconds)

    def _listens_on(self, port: int, deadline: float) -> bool:
        """Start the process on `port`; stop it again if it does not listen."""
        self._port = port
        command = server_command(self._binary, self.host, self._token_life_seconds)
        self._process = ServerProcess(command, self._log)
        if self._process.listens(port, deadline):
            return True
        self.stop()
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
