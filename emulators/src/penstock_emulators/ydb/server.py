"""The gRPC server of the test service, with its background work: barriers, initial scans and retention."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import grpc
from ydb._grpc.common import (
    ydb_auth_v1_pb2_grpc,
    ydb_discovery_v1_pb2_grpc,
    ydb_scheme_v1_pb2_grpc,
    ydb_table_v1_pb2_grpc,
    ydb_topic_v1_pb2_grpc,
)

from penstock_emulators.ydb.control import METHOD, decode_values, encode_values
from penstock_emulators.ydb.control_service import ControlService
from penstock_emulators.ydb.database import Database, DatabaseError
from penstock_emulators.ydb.services import Auth, Discovery, Scheme, Service, Tables, Topics
from penstock_emulators.ydb.topic import TopicError

_TICK_SECONDS = 0.05
_MESSAGE_BYTES = 64 << 20


class Server:
    """The test service in this process; all of it runs on one event loop, so it needs no locks."""

    def __init__(
        self, database: Database, *, tick_seconds: float = _TICK_SECONDS, scan_rows: int = 1000
    ) -> None:
        """`scan_rows`: how many rows an initial scan delivers in each tick."""
        self.service = Service(database)
        self._control = ControlService(self.service)
        self._tick_seconds, self._scan_rows = tick_seconds, scan_rows
        self._server: Any = None
        self._ticker: asyncio.Task[None] | None = None

    async def start(self, port: int = 0, tls: tuple[bytes, bytes] | None = None) -> int:
        """Listen on loopback; return the port. `tls`: private key and certificate in PEM, for clients with TLS."""
        options = [
            ("grpc.max_receive_message_length", _MESSAGE_BYTES),
            ("grpc.max_send_message_length", _MESSAGE_BYTES),
            ("grpc.so_reuseport", 0),
        ]
        server = self._server = grpc.aio.server(options=options)
        service = self.service
        ydb_discovery_v1_pb2_grpc.add_DiscoveryServiceServicer_to_server(Discovery(service), server)
        ydb_auth_v1_pb2_grpc.add_AuthServiceServicer_to_server(Auth(service), server)
        ydb_scheme_v1_pb2_grpc.add_SchemeServiceServicer_to_server(Scheme(service), server)
        ydb_table_v1_pb2_grpc.add_TableServiceServicer_to_server(Tables(service), server)
        ydb_topic_v1_pb2_grpc.add_TopicServiceServicer_to_server(Topics(service), server)
        server.add_generic_rpc_handlers((_ControlHandler(self._control),))
        service.secure = tls is not None
        if tls is None:
            service.port = server.add_insecure_port(f"localhost:{port}")
        else:
            service.port = server.add_secure_port(f"localhost:{port}", grpc.ssl_server_credentials([tls]))
        await server.start()
        self._ticker = asyncio.ensure_future(self._tick())
        return service.port

    async def stop(self) -> None:
        """End all calls."""
        if self._ticker is not None:
            self._ticker.cancel()
        await self._server.stop(None)

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(self._tick_seconds)
            database = self.service.database
            database.scan(self._scan_rows)
            database.emit_barriers()
            database.expire()


class _ControlHandler(grpc.GenericRpcHandler):
    """The control service: one method, JSON in and out."""

    def __init__(self, control: ControlService) -> None:
        self._control = control

    def service(self, details: Any) -> Any:
        return grpc.unary_unary_rpc_method_handler(self._call) if details.method == METHOD else None

    async def _call(self, request: bytes, context: Any) -> bytes:
        name, arguments = json.loads(request)
        try:
            answer = getattr(self._control, name)(**decode_values(arguments))
        except (DatabaseError, TopicError) as error:
            return json.dumps({"error": str(error)}).encode()
        return json.dumps({"answer": encode_values(answer)}).encode()
