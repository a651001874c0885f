"""The connection to Bigtable. Only a running pipeline imports this module.

It uses the service's protobuf classes on a plain gRPC stub. The client library wraps every message in proto-plus, which
took half of the reader's CPU time. It also rejects messages above 4 MiB and ends a stream at its deadline.

One channel serves all threads of a process, and one bundle after another. A forked child opens its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import grpc
from google.cloud.bigtable_v2.services.bigtable.transports.grpc import BigtableGrpcTransport
from grpc.experimental import ChannelOptions

from penstock.errors import UnavailableError
from penstock.io.bigtable.decode import key_range
from penstock.io.bigtable.errors import classify_close, classify_status
from penstock.io.bigtable.frontier import Position
from penstock.io.bigtable.keys import KeyRange, abbreviate
from penstock.io.bigtable.query import (
    PartitionsRequest,
    PartitionsResponse,
    ReadChangeStreamRequest,
    ReadChangeStreamResponse,
    SampleRowKeysRequest,
    SampleRowKeysResponse,
    partitions_request,
    read_request,
)
from penstock.io.bigtable.record import CloseStream
from penstock.io.bigtable.source import EMULATOR_VARIABLE, ChangeStream, Connection
from penstock.io.bigtable.wire import whole_cells
from penstock.io.change_streams.backoff import Backoff
from penstock.io.change_streams.credentials import explained_credentials
from penstock.io.change_streams.process_local import ProcessLocal
from penstock.timestamps import format_timestamp

_SHORT_CALL_SECONDS = 60.0
ADMIN_HOST = "bigtableadmin.googleapis.com"

OPTIONS = [
    # gRPC reads messages in the thread that iterates. Without the option another thread hands them over, which took
    # two thirds of the CPU time.
    (ChannelOptions.SingleThreadedUnaryStream, 1),
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    # A stream has no deadline, so only keepalives notice a connection that died while nothing changed.
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    # The pauses are decided by `Backoff`. gRPC would by default add its own, up to two minutes.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 2_000),
]


class Call:
    """One running stream: iterate once over (size in bytes, ReadChangeStreamResponse) pairs."""

    def __init__(self, client: Client, call: Any, position: Position) -> None:
        self._client = client
        self._call = call
        self._first_position = position

    def __iter__(self) -> Iterator[tuple[int, Any]]:
        """Yield the messages.

        Raises:
            UnreachableError: open the stream again.
            ChangeStreamError: the stream cannot be read; the message says what to do.
        """
        try:
            yield from self._call
        except grpc.RpcError as error:
            raise self._client.verdict(error, self._first_position) from None

    def cancel(self) -> None:
        """Cancel the stream, from any thread."""
        self._call.cancel()


class Client:
    """Streams of one table; safe for threads."""

    def __init__(self, stream: ChangeStream, connection: Connection, heartbeat_ms: int) -> None:
        self.backoff = Backoff("Bigtable", UnavailableError)
        self._stream = stream
        self._app_profile = connection.app_profile
        self._headers = routing(stream.table_path, connection)
        self._heartbeat_ms = heartbeat_ms
        # Keep a reference: otherwise the channel would be garbage-collected and closed, because its calls do not keep
        # it alive.
        self._channel = channel = channel_to(connection, BigtableGrpcTransport.DEFAULT_HOST)
        self._read = channel.unary_stream(
            "/google.bigtable.v2.Bigtable/ReadChangeStream",
            request_serializer=ReadChangeStreamRequest.SerializeToString,
            response_deserializer=_sized,
        )
        self._partitions = channel.unary_stream(
            "/google.bigtable.v2.Bigtable/GenerateInitialChangeStreamPartitions",
            request_serializer=PartitionsRequest.SerializeToString,
            response_deserializer=PartitionsResponse.FromString,
        )

    def open(self, position: Position) -> Call:
        """Start a stream, without a deadline."""
        request = read_request(self._stream, self._app_profile, self._heartbeat_ms, position)
        return Call(self, self._read(request, metadata=self._headers), position)

    def partitions(self) -> list[KeyRange]:
        """Return the present partitions.

        Raises:
            UnreachableError: the service does not answer now.
            ChangeStreamError: the change stream cannot be read; the message says what to do.
        """
        request = partitions_request(self._stream, self._app_profile)
        try:
            listed = self._partitions(request, timeout=_SHORT_CALL_SECONDS, metadata=self._headers)
            return [key_range(response.partition.row_range) for response in listed]
        except grpc.RpcError as error:
            raise self.verdict(error, None) from None

    def verdict(self, error: Any, position: Position | None) -> Exception:
        """Return the exception for a failed call."""
        code, details = error.code().name, error.details() or ""
        by_token = position is not None and bool(position.tokens)
        return classify_status(code, details, str(self._stream), self._position(position), by_token=by_token)

    def refused_close(self, position: Position, close: CloseStream) -> Exception:
        """Return the exception for a close without tokens."""
        return classify_close(close.code, close.message, str(self._stream), self._position(position))

    def _position(self, position: Position | None) -> str:
        if position is None:
            return "its list of partitions"
        where = (
            f"{len(position.tokens)} token(s)" if position.start is None else format_timestamp(position.start)
        )
        return f"{where} in {abbreviate(position.partition)}"


def _sized(data: bytes) -> tuple[int, Any]:
    # `ByteSize` of the message would encode it again.
    return len(data), whole_cells(data) or ReadChangeStreamResponse.FromString(data)


_clients: ProcessLocal[Client] = ProcessLocal()


def client_for(stream: ChangeStream, connection: Connection, heartbeat_ms: int) -> Client:
    """Return this process's client for the stream."""
    key = repr(stream), connection, heartbeat_ms
    return _clients.get(key, lambda: Client(stream, connection, heartbeat_ms))


def check_table(table_path: str, connection: Connection, unavailable_seconds: float) -> None:
    """Ask the service for one sampled row key of a table, with retries.

    Raises:
        ChangeStreamError: the table cannot be read; the message says why and what to do.
    """
    request = SampleRowKeysRequest(table_name=table_path, app_profile_id=connection.app_profile)

    def ask() -> None:
        sample = channel.unary_stream(
            "/google.bigtable.v2.Bigtable/SampleRowKeys",
            request_serializer=SampleRowKeysRequest.SerializeToString,
            response_deserializer=SampleRowKeysResponse.FromString,
        )
        try:
            for _ in sample(request, timeout=_SHORT_CALL_SECONDS, metadata=routing(table_path, connection)):
                return
        except grpc.RpcError as error:
            code, details = error.code().name, error.details() or ""
            raise classify_status(code, details, f"table {table_path}", "its row keys") from None

    # The first key is proof enough. The end of the channel cancels the rest of the call.
    with channel_to(connection, BigtableGrpcTransport.DEFAULT_HOST) as channel:
        Backoff("Bigtable", UnavailableError).ask(ask, unavailable_seconds)


def routing(table_path: str, connection: Connection) -> list[tuple[str, str]]:
    """Return the headers by which the service routes a request."""
    table, profile = quote(table_path, safe=""), quote(connection.app_profile, safe="")
    return [
        ("x-goog-request-params", f"table_name={table}&app_profile_id={profile}"),
        ("x-goog-api-client", "penstock gl-python grpc"),
    ]


def channel_to(connection: Connection, host: str) -> Any:
    """Return a channel to `host`, or to the emulator or endpoint that the connection names."""
    if connection.emulator_host:
        return grpc.insecure_channel(connection.emulator_host, options=OPTIONS)
    endpoint = connection.api_endpoint if host != ADMIN_HOST else None
    with explained_credentials(EMULATOR_VARIABLE):
        return BigtableGrpcTransport.create_channel(
            endpoint or host, credentials=connection.credentials, options=OPTIONS
        )
