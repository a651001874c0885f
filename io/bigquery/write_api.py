"""The Storage Write API over gRPC: one open connection for each stream."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import TimeoutError as NoAnswerError
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from google.api_core import exceptions
from google.cloud.bigquery_storage_v1 import exceptions as storage_exceptions
from google.cloud.bigquery_storage_v1 import types
from google.cloud.bigquery_storage_v1.writer import AppendRowsStream
from google.rpc.status_pb2 import Status

from penstock.io.bigquery.clients import classified_errors, codes_of, write_client
from penstock.io.bigquery.errors import RowsRefusedError, classify_append
from penstock.io.bigquery.rows import RowLayout
from penstock.io.bigquery.services import DEFAULT_STREAM
from penstock.io.staging.delivery import TargetUnavailableError

if TYPE_CHECKING:
    from penstock.io.bigquery.target import BigQueryTarget

_ANSWER_SECONDS = 60.0


class BigQueryWriteApi:
    """See `penstock.io.bigquery.services.WriteApi`."""

    def __init__(self, target: BigQueryTarget) -> None:
        self._target = target
        with classified_errors(target.name):
            self._client = write_client(target)
        self._connections: dict[str, tuple[RowLayout, AppendRowsStream]] = {}

    def create_stream(self, table: str) -> str:
        with classified_errors(self._target.name):
            stream = self._client.create_write_stream(
                parent=self._path(table),
                write_stream=types.WriteStream(type_=types.WriteStream.Type.COMMITTED),
                timeout=_ANSWER_SECONDS,
            )
        return str(stream.name)

    def append(
        self, table: str, stream: str, layout: RowLayout, rows: Sequence[bytes], offset: int | None
    ) -> None:
        name = f"{self._path(table)}/streams/{DEFAULT_STREAM}" if stream == DEFAULT_STREAM else stream
        request = types.AppendRowsRequest(write_stream=name)
        request.proto_rows.rows.serialized_rows = rows
        if offset is not None:
            request.offset = offset
        try:
            # Without a limit a connection that vanished without a word would be waited for without end.
            self._connection(name, layout).send(request).result(timeout=_ANSWER_SECONDS)
        except BaseException as error:
            self._disconnect(name)
            raise self._classified(error, offset is not None) from error

    def finalize(self, stream: str) -> None:
        # A stream that is not finalized costs nothing but a place in a quota.
        with suppress(exceptions.GoogleAPICallError, exceptions.RetryError):
            self._client.finalize_write_stream(name=stream, timeout=_ANSWER_SECONDS)

    def check_rights(self, table: str) -> None:
        """Raise an error if the account must not write to a table."""
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

    def _connection(self, name: str, layout: RowLayout) -> AppendRowsStream:
        known = self._connections.get(name)
        if known is not None and known[0] is layout:
            return known[1]
        if known is not None:
            self._disconnect(name)
        # The schema of the rows goes with the first request of a connection.
        template = types.AppendRowsRequest(write_stream=name, trace_id="penstock")
        template.proto_rows.writer_schema.proto_descriptor = layout.descriptor
        opened = AppendRowsStream(self._client, template)
        self._connections[name] = (layout, opened)
        return opened

    def _disconnect(self, name: str) -> None:
        known = self._connections.pop(name, None)
        if known is not None:
            with suppress(storage_exceptions.StreamClosedError):  # the server has closed it
                known[1].close()

    def _classified(self, error: BaseException, with_offset: bool) -> BaseException:
        target = self._target.name
        if isinstance(error, NoAnswerError | storage_exceptions.StreamClosedError):
            return TargetUnavailableError(f"{target}: no answer of the Storage Write API ({error})")
        if not isinstance(error, exceptions.GoogleAPICallError):
            return error
        response = error.response
        if isinstance(response, types.AppendRowsResponse):
            if response.row_errors:
                return RowsRefusedError({row.index: _reason(row) for row in response.row_errors})
            codes = (*_storage_codes(response.error), *codes_of(error))
        else:
            codes = codes_of(error)
        return classify_append(codes, error.message, target, with_offset=with_offset)


def _storage_codes(status: Status) -> list[str]:
    """Return the names of the codes in the details of a status."""
    names = []
    for detail in status.details:
        found = types.StorageError.pb(types.StorageError())
        if detail.Unpack(found):
            names.append(types.StorageError.StorageErrorCode(found.code).name)
    return names


def _reason(error: Any) -> str:
    """Return why a row is refused, without its values: the message may show them, the code does not."""
    return f"BigQuery says {types.RowError.RowErrorCode(error.code).name}"
