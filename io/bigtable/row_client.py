"""Rows of a table through the client library. Only a running pipeline imports this module."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from typing import Any

from google.api_core import exceptions
from google.cloud.bigtable.data import BigtableDataClient, ReadRowsQuery, RowRange
from google.cloud.bigtable.data.row_filters import RowKeyRegexFilter

from penstock.errors import ChangeStreamError
from penstock.io.bigtable.keys import KeyRange
from penstock.io.bigtable.record import SetCell
from penstock.io.bigtable.source import EMULATOR_VARIABLE
from penstock.io.change_streams.process_local import ProcessLocal
from penstock.io.change_streams.status import UnreachableError

_ENVIRONMENT = threading.Lock()
_TABLES: ProcessLocal[Any] = ProcessLocal()


def table_for(stream: Any, connection: Any) -> Any:
    """Return this process's client of a table. `stream` has project, instance and table."""

    def opened() -> Any:
        client = data_client(stream.project, connection)
        return client.get_table(stream.instance, stream.table, app_profile_id=connection.app_profile)

    return _TABLES.get((stream.project, stream.instance, stream.table, connection), opened)


def data_client(project: str, connection: Any) -> BigtableDataClient:
    """Return a client of the library for the connection's endpoint or emulator.

    The constructor (google-cloud-bigtable 2.50) takes an emulator from the environment only. A worker may have another
    environment than the program, so the variable is set, or removed, while the constructor runs.
    """
    options = {"api_endpoint": connection.api_endpoint} if connection.api_endpoint else None
    # The environment belongs to the whole process, and other threads may make clients too.
    with _ENVIRONMENT:
        before = os.environ.pop(EMULATOR_VARIABLE, None)
        try:
            if connection.emulator_host:
                os.environ[EMULATOR_VARIABLE] = connection.emulator_host
            return BigtableDataClient(
                project=project, credentials=connection.credentials, client_options=options
            )
        finally:
            os.environ.pop(EMULATOR_VARIABLE, None)
            if before is not None:
                os.environ[EMULATOR_VARIABLE] = before


def read_rows(
    table: Any, row_range: KeyRange, keys: Sequence[bytes], limit: int, key_pattern: str
) -> list[tuple[bytes, tuple[SetCell, ...]]]:
    """Return rows in the order of their keys: those with `keys`, or without any, the first `limit` of a range.

    `key_pattern`: a regular expression (RE2) for whole row keys; empty: every key.

    Raises:
        UnreachableError: ask again later.
        ChangeStreamError: the service refused it.
    """
    row_filter = RowKeyRegexFilter(key_pattern.encode()) if key_pattern else None
    if keys:
        query = ReadRowsQuery(row_keys=list(keys), row_filter=row_filter)
    else:
        ranges = [RowRange(row_range.start or None, row_range.end or None)]
        query = ReadRowsQuery(row_ranges=ranges, limit=limit, row_filter=row_filter)
    try:
        return [
            (
                row.row_key,
                tuple(SetCell(c.family, c.qualifier, c.timestamp_micros, c.value) for c in row.cells),
            )
            for row in table.read_rows_stream(query)
        ]
    # The library has retried until its own time limit by now. The caller asks again after a pause.
    except (exceptions.RetryError, exceptions.ServerError, exceptions.DeadlineExceeded) as error:
        raise UnreachableError(f"rows cannot be read: {type(error).__name__}") from None
    except exceptions.GoogleAPICallError as error:
        raise ChangeStreamError(f"rows cannot be read: {error.message}") from None
