"""The connection to Spanner. Only a running pipeline imports this module.

It uses the service's protobuf classes on a plain gRPC stub. The client library's `execute_sql` wraps every value,
buffers rows until a resume token arrives, and retries a dead server without a pause.

One channel and one multiplexed session serve all threads of a process, and one bundle after another. A forked child
opens its own. A session lives four weeks and need not be deleted. When the service has forgotten it, the next query
creates another one.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
from google.cloud.spanner_v1.services.spanner.transports.grpc import SpannerGrpcTransport
from google.cloud.spanner_v1.types import result_set as result_set_types
from google.cloud.spanner_v1.types import spanner as spanner_types

from penstock.errors import SetupError, UnavailableError
from penstock.io.change_streams.backoff import Backoff
from penstock.io.change_streams.credentials import explained_credentials
from penstock.io.change_streams.process_local import ProcessLocal
from penstock.io.change_streams.status import UnreachableError
from penstock.io.spanner.clock import ServiceClock
from penstock.io.spanner.decode import merge_chunk
from penstock.io.spanner.errors import Reaction, classify_status
from penstock.io.spanner.query import CURRENT_TIME, WHOLE_COMMITS, Query
from penstock.io.spanner.source import EMULATOR_VARIABLE, Connection, InDatabase
from penstock.timestamps import parse_timestamp

_LOGGER = logging.getLogger(__name__)
_PATIENCE_SECONDS = 60.0
"""How long after its end_timestamp a query may send rows before it counts as hung."""
_SESSION_SECONDS = 10.0
"""How long the creation of a session may take. All threads wait for it, and a bundle that is split waits for them."""
_EMULATOR_BEHIND = 500_000_000
"""How far behind the time of Google's emulator queries are planned, in nanoseconds.

Spanner answers a query up to a moment only when no commit before it can still appear. Google's emulator (1.5.28) gives
no such promise: a query that ends while a transaction is being written was seen to return the records of one table
without the records of the other, and on a busy machine to miss the transaction. The reader would not ask for that time
again. 50 ms were not enough on a machine with six times as many runnable processes as cores.
"""
_CLOCK_SECONDS = 5.0
"""How long the service's time may take to come: the bundle that asks for it waits."""

# No limit for a message: a row may have more than gRPC's default of 4 MB. Its own pauses are short, because
# `Backoff` makes the longer ones.
_OPTIONS = [
    ("grpc.max_receive_message_length", -1),
    ("grpc.keepalive_time_ms", 120_000),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 2_000),
]

_ExecuteSqlRequest = spanner_types.ExecuteSqlRequest.pb()
_CreateSessionRequest = spanner_types.CreateSessionRequest.pb()
_Session = spanner_types.Session.pb()
_PartialResultSet = result_set_types.PartialResultSet.pb()


class Call:
    """One running query: iterate once over its messages, each an encoded PartialResultSet."""

    def __init__(self, client: Client, call: Any, session: str, position: str) -> None:
        self._client = client
        self._call = call
        self._session = session
        self._position = position

    def __iter__(self) -> Iterator[bytes]:
        """Yield the messages.

        Raises:
            UnreachableError: ask again.
            ChangeStreamError: the stream cannot be read; the message says what to do.
        """
        try:
            for message in self._call:
                # Any message shows that the service answers, so the pause of the next failure is short again.
                self._client.backoff.answered()
                yield message
        except grpc.RpcError as error:
            raise self._client.verdict(error, self._session, self._position) from None
        self._client.backoff.answered()

    def cancel(self) -> None:
        """Cancel the query. Only after its end_timestamp has passed: see `query`."""
        self._call.cancel()


class Client:
    """Queries on the database of one change stream; safe for threads."""

    def __init__(self, stream: InDatabase, connection: Connection) -> None:
        self.backoff = Backoff("Spanner", UnavailableError)
        self._emulated = connection.emulated
        self.clock = ServiceClock(self._time, behind=_EMULATOR_BEHIND if self._emulated else 0)
        self._stream = stream
        self._role = connection.database_role
        self.options = _request_options(connection)
        """The fields that are the same in every query and read of the connection, as an ExecuteSqlRequest."""
        self._lock = threading.Lock()
        self._session: str | None = None
        self._channel = _channel(connection)
        self._create_session = self.unary("CreateSession", _CreateSessionRequest, _Session)
        self._execute = self.streaming("ExecuteStreamingSql", _ExecuteSqlRequest)

    def unary(self, method: str, request: Any, response: Any) -> Any:
        """Return the stub of a method of google.spanner.v1.Spanner with one response; both are message classes."""
        return self._channel.unary_unary(
            f"/google.spanner.v1.Spanner/{method}",
            request_serializer=request.SerializeToString,
            response_deserializer=response.FromString,
        )

    def streaming(self, method: str, request: Any) -> Any:
        """Return the stub of a method with many responses, which stay bytes: see `decode`."""
        return self._channel.unary_stream(
            f"/google.spanner.v1.Spanner/{method}", request_serializer=request.SerializeToString
        )

    def open(
        self, query: Query, position: str, seconds: float = 0.0, patience: float = _PATIENCE_SECONDS
    ) -> Call:
        """Start a query that is expected to take `seconds`, and fails `patience` seconds after that.

        `position` says in errors where the reader is.

        Raises:
            UnreachableError: there is no session, and none can be created now.
            ChangeStreamError: the database cannot be used.
        """
        session = self.session(position)
        request = _ExecuteSqlRequest(session=session, sql=query.sql)
        request.MergeFrom(self.options)
        # Strong: a stale read could end before commits that the position has passed.
        request.transaction.single_use.read_only.strong = True
        for name, code, text in query.params:
            request.param_types[name].code = code
            if text is None:
                request.params.fields[name].null_value = 0
            else:
                request.params.fields[name].string_value = text
        call = self._execute(request, timeout=seconds + patience, metadata=self.headers(f"session={session}"))
        return Call(self, call, session, position)

    def rows(self, query: Query, patience: float = _PATIENCE_SECONDS) -> list[list[str]]:
        """Return the rows of a small query as text, NULL as the empty string. Raises what `Call` raises."""
        values: list[Any] = []
        columns, cut = 1, False
        for message in map(_PartialResultSet.FromString, self.open(query, "preflight", patience=patience)):
            if message.HasField("metadata"):
                columns = len(message.metadata.row_type.fields)
            # The values of one row may be spread over messages.
            fresh = list(message.values)
            if cut and fresh:
                merge_chunk(values[-1], fresh.pop(0))
            values += fresh
            cut = message.chunked_value
        texts = [value.string_value for value in values]
        return [texts[i : i + columns] for i in range(0, len(texts), columns)]

    def _time(self) -> int:
        # Another emulator may say that it answers with whole commits. Then queries need not stay behind.
        if self._emulated and self.rows(Query(WHOLE_COMMITS), _CLOCK_SECONDS):
            self.clock.behind = 0
        ((text,),) = self.rows(Query(CURRENT_TIME), _CLOCK_SECONDS)
        return parse_timestamp(text)

    def verdict(self, error: Any, session: str | None, position: str) -> Exception:
        """Return the exception for a failed call, and drop the session if the session was the cause."""
        code, details = error.code().name, error.details() or ""
        reaction = classify_status(code, details, str(self._stream), position)
        # Only the session of this call is dropped: another thread may have made a new one.
        if reaction is Reaction.NEW_SESSION:
            self.forget(session)
        if isinstance(reaction, Reaction):
            return UnreachableError(f"{self._stream}: {code}: {details}")
        return reaction

    @property
    def database_path(self) -> str:
        """The resource name of the database."""
        return self._stream.database_path

    def session(self, position: str) -> str:
        """Return the name of the session, which is created if there is none. Raises what `open` raises."""
        # The lock is held during the request: one session is enough for all threads that wait.
        with self._lock:
            if self._session is None:
                self._session = self._new_session(position)
            return self._session

    def _new_session(self, position: str) -> str:
        request = _CreateSessionRequest(
            database=self._stream.database_path,
            session=_Session(multiplexed=True, creator_role=self._role or ""),
        )
        headers = self.headers(f"database={self._stream.database_path}")
        try:
            name: str = self._create_session(request, timeout=_SESSION_SECONDS, metadata=headers).name
        except grpc.RpcError as error:
            raise self.verdict(error, None, position) from None
        _LOGGER.debug("new session for %s", self._stream)
        return name

    def forget(self, session: str | None) -> None:
        """Create another session for the next call, if this is still the current one."""
        with self._lock:
            # Compared, because the thread that failed may be late.
            if self._session == session:
                self._session = None

    def headers(self, routing: str) -> list[tuple[str, str]]:
        """Return the metadata of a call."""
        return [
            ("google-cloud-resource-prefix", self._stream.database_path),
            ("x-goog-request-params", routing),
            ("x-goog-api-client", "penstock gl-python grpc"),
        ]


_clients: ProcessLocal[Client] = ProcessLocal()


def client_for(stream: InDatabase, connection: Connection) -> Client:
    """Return this process's client for the stream."""
    return _clients.get((str(stream), connection), lambda: Client(stream, connection))


def _channel(connection: Connection) -> Any:
    if connection.emulator_host:
        return grpc.insecure_channel(connection.emulator_host, options=_OPTIONS)
    endpoint = connection.api_endpoint or SpannerGrpcTransport.DEFAULT_HOST
    if connection.plain_text:
        return grpc.insecure_channel(endpoint, options=_OPTIONS)
    # Certificates instead of Google's accounts.
    if connection.private_tls and connection.credentials is None:
        return grpc.secure_channel(endpoint, _certificates(connection), options=_OPTIONS)
    with explained_credentials(EMULATOR_VARIABLE):
        return SpannerGrpcTransport.create_channel(
            endpoint,
            credentials=connection.credentials,
            ssl_credentials=_certificates(connection) if connection.private_tls else None,
            options=_OPTIONS,
        )


def _certificates(connection: Connection) -> Any:
    """Return the TLS credentials of a self-managed endpoint.

    Raises:
        SetupError: a file cannot be read.
    """
    return grpc.ssl_channel_credentials(
        _read_file("root_certificates", connection.root_certificates),
        _read_file("client_key", connection.client_key),
        _read_file("client_certificate", connection.client_certificate),
    )


def _read_file(name: str, path: str | None) -> bytes | None:
    if path is None:
        return None
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise SetupError(
            f"{name} {path!r} cannot be read: {error.strerror}. The file must exist on every worker and on the machine "
            "that starts the pipeline"
        ) from None


def _request_options(connection: Connection) -> Any:
    """Return the fields that are the same in every query of a connection."""
    request = _ExecuteSqlRequest()
    if connection.rpc_priority:
        request.request_options.priority = request.request_options.Priority.Value(
            f"PRIORITY_{connection.rpc_priority}"
        )
    # Directed reads are part of every query, so they belong to the options.
    replicas, directed = connection.replicas, request.directed_read_options
    if replicas.include:
        directed.include_replicas.auto_failover_disabled = not replicas.auto_failover
    for given, named in (
        (replicas.include, directed.include_replicas),
        (replicas.exclude, directed.exclude_replicas),
    ):
        for replica in given:
            selection = named.replica_selections.add(location=replica.location)
            if replica.type:
                selection.type_ = selection.Type.Value(replica.type)
    return request
