"""The Storage Write API over gRPC: one open connection for each stream."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from queue import SimpleQueue
from threading import Timer
from typing import Any

import grpc
from google.api_core import exceptions
from google.cloud.bigquery_storage_v1 import BigQueryWriteClient, types
from google.rpc.status_pb2 import Status

from penstock.io.bigquery.clients import classified_errors, write_client
from penstock.io.bigquery.errors import RowsRefusedError, classify_append
from penstock.io.bigquery.rows import RowLayout
from penstock.io.bigquery.services import DEFAULT_STREAM
from penstock.io.bigquery.target import BigQueryTarget

_ANSWER_SECONDS = 60.0
"""How long to wait for the answer to one append."""


class BigQueryWriteApi:
    """See `penstock.io.bigquery.services.WriteApi`."""

    def __init__(self, target: BigQueryTarget) -> None:
        self._target = target
        with classified_errors(target.name):
            self._client = write_client(target)
        self._connections: dict[str, _Connection] = {}

    def create_stream(self, table: str) -> str:
        with classified_errors(self._target.name):
            stream = self._client.create_write_stream(
                parent=self._path(table),
                # COMMITTED: rows are visible when they are acknowledged. PENDING would need another commit for
                # each batch.
                write_stream=types.WriteStream(type_=types.WriteStream.Type.COMMITTED),
                timeout=_ANSWER_SECONDS,
            )
        return str(stream.name)

    def append(
        self, table: str, stream: str, layout: RowLayout, rows: Sequence[bytes], offset: int | None
    ) -> None:
        name = f"{self._path(table)}/streams/{DEFAULT_STREAM}" if stream == DEFAULT_STREAM else stream
        rows_of_request = types.ProtoRows(serialized_rows=rows)
        try:
            response = self._connection(name, layout).append(rows_of_request, offset)
        except grpc.RpcError as error:
            # After an error the state of the call is not known, so the next append opens a new one.
            self._disconnect(name)
            raise classify_append(
                (error.code().name,), error.details() or "", self._target.name, with_offset=offset is not None
            ) from error
        if response.row_errors:
            raise RowsRefusedError({row.index: _reason(row) for row in response.row_errors})
        if response.error.code:
            # The details name the cause; the status of gRPC is its general class.
            codes = (*_storage_codes(response.error), _STATUS[response.error.code])
            raise classify_append(
                codes, response.error.message, self._target.name, with_offset=offset is not None
            )

    def finalize(self, stream: str) -> None:
        # A stream that is not finalized costs nothing but a place in a quota.
        with suppress(exceptions.GoogleAPICallError, exceptions.RetryError):
            self._client.finalize_write_stream(name=stream, timeout=_ANSWER_SECONDS)

    def check_rights(self, table: str) -> None:
        with classified_errors(self._target.name):
            self._client.get_write_stream(
                name=f"{self._path(table)}/streams/{DEFAULT_STREAM}", timeout=_ANSWER_SECONDS
            )

    def close(self) -> None:
        for name in list(self._connections):
            self._disconnect(name)
        self._client.transport.close()

    def _path(self, table: str) -> str:
        return f"projects/{self._target.project}/datasets/{self._target.dataset}/tables/{table}"

    def _connection(self, name: str, layout: RowLayout) -> _Connection:
        known = self._connections.get(name)
        # The schema belongs to the connection: a table that was altered needs a new one.
        if known is None or known.layout is not layout:
            self._disconnect(name)
            known = self._connections[name] = _Connection(self._client, name, layout)
        return known

    def _disconnect(self, name: str) -> None:
        # The entry is removed first, so a failing close leaves no broken connection behind.
        known = self._connections.pop(name, None)
        if known is not None:
            known.close()


class _Connection:
    """A call of AppendRows, with one request on its way at a time.

    This is the plain call of gRPC instead of Google's client. The latter waits for the first response before it
    returns. If the server answers UNAVAILABLE, it repeats the call without the requests that it has taken already, and
    then waits without end (google-api-core 2.44; `AppendRowsStream` uses the same call).
    """

    def __init__(self, client: BigQueryWriteClient, stream: str, layout: RowLayout) -> None:
        self.layout = layout
        self._stream = stream
        self._requests: SimpleQueue[types.AppendRowsRequest | None] = SimpleQueue()
        self._is_first = True
        # The header tells the service which region the stream is in.
        header = ("x-goog-request-params", f"write_stream={stream}")
        self._call = client.transport.append_rows(iter(self._requests.get, None), metadata=(header,))

    def append(self, rows: types.ProtoRows, offset: int | None) -> types.AppendRowsResponse:
        """Send a request and return its response.

        Raises:
            grpc.RpcError: the call has ended, or there was no answer (CANCELLED).
        """
        request = types.AppendRowsRequest(write_stream=self._stream, trace_id="penstock")
        request.proto_rows.rows = rows
        if offset is not None:
            request.offset = offset
        if self._is_first:
            # The schema of the rows is for all requests of a connection.
            request.proto_rows.writer_schema.proto_descriptor = self.layout.descriptor
            self._is_first = False
        # A limit for each answer: otherwise a server that disappeared silently would block this thread forever. A
        # deadline of the call would limit the whole life of the stream.
        limit = Timer(_ANSWER_SECONDS, self._call.cancel)
        limit.daemon = True
        limit.start()
        try:
            self._requests.put(request)
            response: types.AppendRowsResponse = next(self._call)
            return response
        except StopIteration:
            raise _ConnectionEndedError from None
        finally:
            limit.cancel()

    def close(self) -> None:
        self._requests.put(None)  # gRPC's thread waits for the next request
        self._call.cancel()


class _ConnectionEndedError(grpc.RpcError):
    """The server ended the call without an error, as it does after some minutes without requests."""

    def code(self) -> grpc.StatusCode:
        return grpc.StatusCode.CANCELLED

    def details(self) -> str:
        return "the server ended the connection"


_STATUS = {code.value[0]: code.name for code in grpc.StatusCode}


def _storage_codes(status: Status) -> list[str]:
    """Return the names of the codes in the details of a status."""
    names = []
    for detail in status.details:
        storage_error = types.StorageError.pb(types.StorageError())
        if detail.Unpack(storage_error):
            names.append(types.StorageError.StorageErrorCode(storage_error.code).name)
    return names


def _reason(error: Any) -> str:
    """Return why a row is refused, without its values: the message may show them, the code does not."""
    return f"BigQuery says {types.RowError.RowErrorCode(error.code).name}"
