"""The gRPC server: which method is answered by what.

    server = Server(Service())
    port = await server.start(0)
    …
    await server.stop()

Streamed answers are yielded as encoded messages, because encoding them by hand is several times as fast.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc
import grpc.aio
from google.cloud.spanner_admin_database_v1.types import spanner_database_admin as database_types
from google.cloud.spanner_admin_instance_v1.types import spanner_instance_admin as instance_types
from google.cloud.spanner_v1.types import spanner as spanner_types
from google.longrunning import operations_pb2

from penstock_emulators.simulated_spanner.admin_service import DatabaseAdmin, InstanceAdmin, Operations
from penstock_emulators.simulated_spanner.change_answer import meet
from penstock_emulators.simulated_spanner.control_service import ControlService
from penstock_emulators.simulated_spanner.data_service import SpannerService
from penstock_emulators.simulated_spanner.errors import ServiceError
from penstock_emulators.simulated_spanner.service import Service

_OPTIONS = [
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    ("grpc.so_reuseport", 0),
    # Clients that keep idle connections alive ping more often than gRPC's default allows.
    ("grpc.http2.min_ping_interval_without_data_ms", 1_000),
    ("grpc.keepalive_permit_without_calls", 1),
]
_SPANNER = "google.spanner.v1.Spanner"
_DATABASES = "google.spanner.admin.database.v1.DatabaseAdmin"
_INSTANCES = "google.spanner.admin.instance.v1.InstanceAdmin"
_OPERATIONS = "google.longrunning.Operations"
_CONTROL = "penstock.simulated_spanner.Control"

Unary = Callable[[Any], Awaitable[Any]]
Streaming = Callable[[Any], AsyncIterator[bytes]]


class Server:
    """Serves one `Service` on loopback."""

    def __init__(self, service: Service) -> None:
        self.service = service
        self._server: Any = None

    async def start(self, port: int) -> int:
        """Listen on a port (0: a free one) and return it.

        Raises:
            RuntimeError: the port is in use.
        """
        self._server = grpc.aio.server(options=_OPTIONS)
        self._server.add_generic_rpc_handlers(
            [grpc.method_handlers_generic_handler(name, each) for name, each in self._handlers().items()]
        )
        bound: int = self._server.add_insecure_port(f"localhost:{port}")
        await self._server.start()
        return bound

    async def stop(self) -> None:
        """Break off all calls and stop listening."""
        # Before the calls end: churn would change partitions that no one reads any more.
        self.service.stop_churn()
        await self._server.stop(None)

    def _handlers(self) -> dict[str, dict[str, Any]]:
        data, operations = SpannerService(self.service), Operations()
        instances = InstanceAdmin(self.service, operations)
        databases = DatabaseAdmin(self.service, operations)
        control = ControlService(self.service)
        get_operation = self._unary(
            "GetOperation", operations.get_operation, operations_pb2.GetOperationRequest.FromString
        )
        return {
            _SPANNER: {
                **self._methods(spanner_types, data, _UNARY_SPANNER),
                **self._streams(spanner_types, data),
            },
            _DATABASES: self._methods(database_types, databases, _DATABASE_METHODS),
            _INSTANCES: self._methods(instance_types, instances, _INSTANCE_METHODS),
            _OPERATIONS: {"GetOperation": get_operation},
            _CONTROL: {
                "Call": grpc.unary_unary_rpc_method_handler(_guarded(control.call)),
            },
        }

    def _methods(self, types: Any, target: Any, names: dict[str, str]) -> dict[str, Any]:
        """Return handlers of unary methods. `names` has for each method the name of its request message."""
        return {
            name: self._unary(name, getattr(target, _snake(name)), getattr(types, request).pb().FromString)
            for name, request in names.items()
        }

    def _streams(self, types: Any, data: SpannerService) -> dict[str, Any]:
        streams: dict[str, tuple[Streaming, str]] = {
            "ExecuteStreamingSql": (data.execute_streaming_sql, "ExecuteSqlRequest"),
            "StreamingRead": (data.streaming_read, "ReadRequest"),
            "BatchWrite": (data.batch_write, "BatchWriteRequest"),
        }
        return {
            name: self._streaming(name, function, getattr(types, request).pb().FromString)
            for name, (function, request) in streams.items()
        }

    def _unary(self, name: str, function: Unary, deserialize: Any) -> Any:
        async def answer(request: Any) -> Any:
            # A fault comes before the call, so the call has had no effect.
            await self._meet_fault(name)
            return await function(request)

        return grpc.unary_unary_rpc_method_handler(
            _guarded(answer),
            request_deserializer=deserialize,
            response_serializer=lambda message: message.SerializeToString(),
        )

    def _streaming(self, name: str, function: Streaming, deserialize: Any) -> Any:
        async def answer(request: Any, context: Any) -> AsyncIterator[bytes]:
            try:
                await self._meet_fault(name)
                async for message in function(request):
                    yield message
            except ServiceError as error:
                await context.abort(_status(error), str(error))

        # No serializer: the generators yield encoded messages.
        return grpc.unary_stream_rpc_method_handler(answer, request_deserializer=deserialize)

    async def _meet_fault(self, method: str) -> None:
        # Nearly always there is none, and every call passes here.
        if not self.service.faults.pending:
            return
        fault = self.service.faults.of_call(method)
        if fault is not None:
            await meet(self.service, fault)


def _guarded(function: Unary) -> Callable[[Any, Any], Awaitable[Any]]:
    async def answer(request: Any, context: Any) -> Any:
        try:
            return await function(request)
        except ServiceError as error:
            await context.abort(_status(error), str(error))

    return answer


def _status(error: ServiceError) -> Any:
    return grpc.StatusCode[error.code]


def _snake(name: str) -> str:
    """Return CreateSession as create_session."""
    return "".join(f"_{c.lower()}" if c.isupper() else c for c in name).lstrip("_")


_UNARY_SPANNER = {
    "CreateSession": "CreateSessionRequest",
    "BatchCreateSessions": "BatchCreateSessionsRequest",
    "GetSession": "GetSessionRequest",
    "ListSessions": "ListSessionsRequest",
    "DeleteSession": "DeleteSessionRequest",
    "ExecuteSql": "ExecuteSqlRequest",
    "ExecuteBatchDml": "ExecuteBatchDmlRequest",
    "Read": "ReadRequest",
    "BeginTransaction": "BeginTransactionRequest",
    "Commit": "CommitRequest",
    "Rollback": "RollbackRequest",
    "PartitionRead": "PartitionReadRequest",
    "PartitionQuery": "PartitionQueryRequest",
}
_DATABASE_METHODS = {
    "CreateDatabase": "CreateDatabaseRequest",
    "GetDatabase": "GetDatabaseRequest",
    "ListDatabases": "ListDatabasesRequest",
    "DropDatabase": "DropDatabaseRequest",
    "UpdateDatabaseDdl": "UpdateDatabaseDdlRequest",
    "GetDatabaseDdl": "GetDatabaseDdlRequest",
}
_INSTANCE_METHODS = {
    "CreateInstance": "CreateInstanceRequest",
    "GetInstance": "GetInstanceRequest",
    "ListInstances": "ListInstancesRequest",
    "DeleteInstance": "DeleteInstanceRequest",
    "GetInstanceConfig": "GetInstanceConfigRequest",
    "ListInstanceConfigs": "ListInstanceConfigsRequest",
}
