"""The gRPC server in front of Google's emulator: it sends each call to its handler."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import grpc

from penstock_emulators.bigtable.admin import ProfileAdmin, TableAdmin
from penstock_emulators.bigtable.backend import (
    DATA,
    INSTANCE_ADMIN,
    TABLE_ADMIN,
    UNLIMITED,
    Backend,
    CallError,
)
from penstock_emulators.bigtable.churn import Churn
from penstock_emulators.bigtable.control import METHOD
from penstock_emulators.bigtable.operations import Operations
from penstock_emulators.bigtable.profiles import Profiles
from penstock_emulators.bigtable.reads import Reads
from penstock_emulators.bigtable.tables import Tables
from penstock_emulators.bigtable.writes import Writes

Unary = Callable[[bytes, Any], Awaitable[bytes]]
Streaming = Callable[[bytes, Any], Awaitable[None]]

LOOPBACK = "127.0.0.1"


class Front(grpc.GenericRpcHandler):  # type: ignore[misc, unused-ignore]
    """Serves change streams and app profiles, records writes, and forwards every other call as bytes."""

    def __init__(self, backend_host: str) -> None:
        """Use the emulator at `backend_host`. Call this inside a running event loop."""
        self._backend = Backend(backend_host)
        tables, profiles = Tables(self._backend), Profiles()
        writes = Writes(self._backend, tables, profiles)
        self.churn = Churn(tables)
        self._server: grpc.aio.Server | None = None
        # Counts the servers of this front, so that a client sees a new one.
        self._servers = 0
        self._port = 0
        self._dropping: asyncio.Task[None] | None = None
        operations = Operations(
            tables, writes, self.churn, self._drop_connections_soon, lambda: self._servers
        )
        self._unary = _unary_calls(writes, TableAdmin(self._backend, tables), ProfileAdmin(profiles))
        self._unary[METHOD] = operations.call
        self._streaming = _streaming_calls(writes, Reads(tables, profiles))

    async def start(self, port: int) -> int:
        """Listen on loopback, on a free port if `port` is 0, and return the port."""
        # Clients keep connections alive with pings, and a stream may be silent for as long as its heartbeat.
        # `so_reuseport` would let two emulators share a port, and each would get half of the calls.
        options = (*UNLIMITED, ("grpc.so_reuseport", 0), ("grpc.http2.max_ping_strikes", 0))
        self._server = grpc.aio.server(options=options)
        self._server.add_generic_rpc_handlers((self,))
        self._port = self._server.add_insecure_port(f"{LOOPBACK}:{port}")
        await self._server.start()
        self._servers += 1
        return self._port

    async def stop(self) -> None:
        """Stop listening and close every connection."""
        if self._server is not None:
            await self._server.stop(None)
        await self._backend.close()

    def service(self, handler_call_details: Any) -> Any:
        """Return the handler of a method. It has no serializers, so messages are bytes."""
        method = handler_call_details.method
        if method in self._unary:
            return grpc.unary_unary_rpc_method_handler(_unary_handler(self._unary[method]))
        if method in self._streaming:
            return grpc.unary_stream_rpc_method_handler(_streaming_handler(self._streaming[method]))
        # Streamed, because the front does not know which methods answer once.
        return grpc.unary_stream_rpc_method_handler(_streaming_handler(self._forwarded(method)))

    def _forwarded(self, method: str) -> Streaming:
        async def forward(body: bytes, context: Any) -> None:
            await self._backend.forward(method, body, context)

        return forward

    def _drop_connections_soon(self) -> None:
        """Drop the connections after the answer to this request was sent."""
        # The reference keeps the task alive: the event loop holds a weak one.
        self._dropping = asyncio.ensure_future(self._drop_connections())

    async def _drop_connections(self) -> None:
        """Replace the server, since a gRPC server has no other way to close its connections."""
        # The answer of this call must leave before its connection is closed.
        await asyncio.sleep(0.05)
        assert self._server is not None
        await self._server.stop(None)
        await self.start(self._port)


def _unary_calls(writes: Writes, tables: TableAdmin, profiles: ProfileAdmin) -> dict[str, Unary]:
    return {
        DATA + "MutateRow": writes.mutate_row,
        DATA + "CheckAndMutateRow": writes.check_and_mutate_row,
        DATA + "ReadModifyWriteRow": writes.read_modify_write_row,
        TABLE_ADMIN + "DropRowRange": writes.drop_row_range,
        TABLE_ADMIN + "CreateTable": tables.create,
        TABLE_ADMIN + "GetTable": tables.get,
        TABLE_ADMIN + "UpdateTable": tables.update,
        TABLE_ADMIN + "DeleteTable": tables.delete,
        TABLE_ADMIN + "ModifyColumnFamilies": tables.modify_families,
        INSTANCE_ADMIN + "CreateAppProfile": profiles.create,
        INSTANCE_ADMIN + "GetAppProfile": profiles.get,
        INSTANCE_ADMIN + "ListAppProfiles": profiles.list,
        INSTANCE_ADMIN + "UpdateAppProfile": profiles.update,
        INSTANCE_ADMIN + "DeleteAppProfile": profiles.delete,
    }


def _streaming_calls(writes: Writes, reads: Reads) -> dict[str, Streaming]:
    return {
        DATA + "MutateRows": writes.mutate_rows,
        DATA + "GenerateInitialChangeStreamPartitions": reads.generate,
        DATA + "ReadChangeStream": reads.read,
    }


def _unary_handler(serve: Unary) -> Callable[[bytes, Any], Awaitable[bytes]]:
    async def handler(body: bytes, context: Any) -> bytes:
        try:
            return await serve(body, context)
        except CallError as error:
            await context.abort(error.code, error.message)
        except grpc.aio.AioRpcError as error:
            await _give_back(error, context)
        raise AssertionError("abort raises")

    return handler


def _streaming_handler(serve: Streaming) -> Streaming:
    async def handler(body: bytes, context: Any) -> None:
        try:
            await serve(body, context)
        except CallError as error:
            await context.abort(error.code, error.message)
        except grpc.aio.AioRpcError as error:
            await _give_back(error, context)

    return handler


async def _give_back(error: grpc.aio.AioRpcError, context: Any) -> None:
    """End the client's call with the status and details of the backend's answer."""
    trailing = tuple(
        (key, value)
        for key, value in error.trailing_metadata() or ()
        # The details are in a header of gRPC, which it takes from an application.
        if key == "grpc-status-details-bin" or not key.startswith("grpc-")
    )
    await context.abort(error.code(), error.details() or "", trailing)
