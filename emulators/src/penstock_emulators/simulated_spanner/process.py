"""The simulated service as a context manager: a separate process on a free port of loopback."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from typing_extensions import Self

from penstock_emulators.emulator import Service
from penstock_emulators.simulated_spanner.column_type import GOOGLESQL, POSTGRESQL
from penstock_emulators.simulated_spanner.control import Control


class SimulatedSpanner(Service[Control]):
    """A running simulation. See `Service`."""

    name = "simulated Spanner"
    command = ("spanner", "--simulated")
    connect = Control

    @classmethod
    def start(
        cls,
        *,
        port: int = 0,
        churn_seconds: float = 0,
        seed: int = 0,
        partitions: int = 2,
        speed: float = 1,
        granularity_us: int = 1,
        log: Path | None = None,
        timeout_seconds: float = 60.0,
    ) -> Self:
        """Start a simulation and return when it accepts connections.

        `port` 0 is a free one. A change stream begins with `partitions` partitions; with `churn_seconds`, one
        change of its key ranges, chosen by `seed`, happens in each such period. The clock runs `speed` times as
        fast as the system's; 0 stands still until `control.clock` moves it. With `granularity_us` above 1,
        transactions share commit timestamps. The output of the process is appended to `log`, or dropped.

        Raises:
            EmulatorStartError: nothing listened within `timeout_seconds`.
        """
        simulation = cls(
            log,
            churn_seconds=churn_seconds,
            seed=seed,
            partitions=partitions,
            speed=speed,
            granularity_us=granularity_us,
        )
        return simulation._launch(port, timeout_seconds)

    def environment(self) -> dict[str, str]:
        """Return the variables that point Spanner clients in a child process at this simulation."""
        return {"SPANNER_EMULATOR_HOST": self.host}

    def create_database(
        self,
        project: str,
        instance: str,
        database: str,
        ddl: Sequence[str],
        *,
        dialect: str = GOOGLESQL,
        proto_descriptors: bytes = b"",
    ) -> None:
        """Create the instance if it is missing, and in it a new database with the statements of `ddl`.

        `dialect` is GOOGLE_STANDARD_SQL or POSTGRESQL. `proto_descriptors` is an encoded FileDescriptorSet with
        the types of PROTO and ENUM columns.
        """
        # Imported here: the control client of tests needs no admin API.
        import grpc
        from google.cloud.spanner_admin_database_v1.types import (
            CreateDatabaseRequest,
            DatabaseDialect,
            UpdateDatabaseDdlRequest,
        )
        from google.cloud.spanner_admin_instance_v1.types import CreateInstanceRequest, Instance

        home = f"projects/{project}/instances/{instance}"
        config = f"projects/{project}/instanceConfigs/emulator-config"
        databases = "/google.spanner.admin.database.v1.DatabaseAdmin"
        with grpc.insecure_channel(self.host) as channel:
            with suppress(_AlreadyExistsError):  # a second database in one instance
                request: Any = CreateInstanceRequest(
                    parent=f"projects/{project}",
                    instance_id=instance,
                    instance=Instance(name=home, config=config, display_name=instance, node_count=1),
                )
                _call(channel, "/google.spanner.admin.instance.v1.InstanceAdmin/CreateInstance", request)
            quote = '"' if dialect == POSTGRESQL else "`"
            request = CreateDatabaseRequest(
                parent=home,
                create_statement=f"CREATE DATABASE {quote}{database}{quote}",
                database_dialect=DatabaseDialect[dialect],
            )
            _call(channel, f"{databases}/CreateDatabase", request)
            request = UpdateDatabaseDdlRequest(
                database=f"{home}/databases/{database}",
                statements=list(ddl),
                proto_descriptors=proto_descriptors,
            )
            _call(channel, f"{databases}/UpdateDatabaseDdl", request)

    def restart(self, *, timeout_seconds: float = 60.0) -> None:
        """End the process and start a new one on the same port; all data is gone, as after a crash.

        Raises:
            EmulatorStartError: nothing listened within `timeout_seconds`.
        """
        self.stop()
        # The same port, so that clients find the new process.
        self._launch(int(self.host.rpartition(":")[2]), timeout_seconds)


class _AlreadyExistsError(Exception):
    """There is an instance of that name."""


def _call(channel: Any, method: str, request: Any) -> None:
    import grpc

    call = channel.unary_unary(method, request_serializer=type(request).serialize)
    try:
        call(request, timeout=60, wait_for_ready=True)
    except grpc.RpcError as error:
        # Only an instance may exist already: a database of this name would have the rows of another test.
        if error.code() == grpc.StatusCode.ALREADY_EXISTS and "Instance" in (error.details() or ""):
            raise _AlreadyExistsError from None
        raise ValueError(f"the simulated Spanner refused: {error.details()}") from None
