"""Calls to Google's emulator, the backend, as bytes.

A client's request is forwarded unchanged: body, metadata and, except for writes, its deadline. The answer is returned
unchanged: messages, trailing metadata, status with details. The front also makes a few calls for itself.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator
from typing import Any

import grpc
from google.cloud.bigtable_admin_v2.types import bigtable_table_admin as admin_types
from google.cloud.bigtable_admin_v2.types import table as table_types
from google.cloud.bigtable_v2.types import bigtable as data_types

DATA = "/google.bigtable.v2.Bigtable/"
TABLE_ADMIN = "/google.bigtable.admin.v2.BigtableTableAdmin/"
INSTANCE_ADMIN = "/google.bigtable.admin.v2.BigtableInstanceAdmin/"

CODES = {code.value[0]: code for code in grpc.StatusCode}
"""gRPC's status codes by number."""

UNLIMITED = (
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    ("grpc.max_metadata_size", 1 << 20),
)

DEADLY = frozenset(
    [
        *(f"{TABLE_ADMIN}{verb}Backup" for verb in ("Create", "Get", "Update", "Delete", "Copy")),
        *(TABLE_ADMIN + name for name in ("ListBackups", "RestoreTable", "UndeleteTable")),
        *(
            f"{INSTANCE_ADMIN}{verb}{kind}View"
            for kind in ("Logical", "Materialized")
            for verb in ("Create", "Get", "Update", "Delete")
        ),
        *(INSTANCE_ADMIN + name for name in ("ListLogicalViews", "ListMaterializedViews")),
        *(INSTANCE_ADMIN + name for name in ("ListHotTablets", "PartialUpdateCluster")),
    ]
)
"""Calls that end the backend's process: its API has them, but no code serves them."""

# gRPC refuses metadata of these names from an application, and sets them for each connection itself.
_NOT_OURS_TO_SEND = ("grpc-", ":")
_HOP_BY_HOP = frozenset(("user-agent", "te", "content-type", "connection", "host"))

_GetTable = admin_types.GetTableRequest.pb()
_Table = table_types.Table.pb()
_ReadRows = data_types.ReadRowsRequest.pb()
_ReadRowsResponse = data_types.ReadRowsResponse.pb()


class CallError(Exception):
    """A call that the front ends with a gRPC status, without the backend."""

    def __init__(self, code: grpc.StatusCode, message: str) -> None:
        """End the call with this status."""
        super().__init__(message)
        self.code = code
        self.message = message


class Backend:
    """Google's emulator at `host`."""

    def __init__(self, host: str) -> None:
        """Connect when first used."""
        self._channel = grpc.aio.insecure_channel(host, options=UNLIMITED)
        self._unary: dict[str, Any] = {}

    async def unary(self, method: str, body: bytes, context: Any = None) -> bytes:
        """Make a unary call with the caller's metadata and without its deadline, so that it runs to its end.

        If a write was cancelled, the front would not know whether it belongs in the log.
        """
        call = self._unary.get(method)
        if call is None:
            call = self._unary[method] = self._channel.unary_unary(method)
        # No timeout: a write that is under way cannot be taken back.
        answer: bytes = await call(body, metadata=_passed_on(context))
        return answer

    async def collected(self, method: str, body: bytes, context: Any = None) -> list[bytes]:
        """Make a call with a streamed answer, and return the whole answer; otherwise like `unary`."""
        call = self._channel.unary_stream(method)(body, metadata=_passed_on(context))
        return [message async for message in call]

    async def forward(self, method: str, body: bytes, context: Any) -> None:
        """Make any call on behalf of a client and yield its answers.

        No method of the service takes a stream of requests.

        Raises:
            CallError: UNIMPLEMENTED, for a call that would end the backend's process.
        """
        # The backend would abort, and all tables with it.
        if method in DEADLY:
            name = method.rpartition("/")[2]
            raise CallError(grpc.StatusCode.UNIMPLEMENTED, f"the emulator does not support {name}")
        call = self._channel.unary_stream(method)(
            body, metadata=_passed_on(context), timeout=context.time_remaining()
        )
        async for message in call:
            await context.write(message)
        context.set_trailing_metadata(_clean(await call.trailing_metadata()))

    async def table(self, name: str) -> Any:
        """Return the table's schema (google.bigtable.admin.v2.Table); grpc.aio.AioRpcError if there is none."""
        body = await self.unary(TABLE_ADMIN + "GetTable", _GetTable(name=name).SerializeToString())
        return _Table.FromString(body)

    async def families_with_data(self, table: str, rows: Any) -> dict[bytes, set[str]]:
        """Return, for each row of `rows` (a RowSet) with data, the families that hold data."""
        present: dict[bytes, set[str]] = {}
        async for key, chunk in self.cells(table, rows, newest_only=True):
            present.setdefault(key, set()).add(chunk[0])
        return present

    async def cells(
        self, table: str, rows: Any, *, newest_only: bool = False
    ) -> AsyncIterator[tuple[bytes, tuple[str, bytes, int]]]:
        """Yield (key, (family, qualifier, timestamp)) of the cells in `rows`, newest first in each column."""
        request = _ReadRows(table_name=table, rows=rows)
        # Values are not needed, and they are most of the bytes.
        request.filter.chain.filters.add(strip_value_transformer=True)
        request.filter.chain.filters.add(cells_per_column_limit_filter=1 if newest_only else 1 << 30)
        call = self._channel.unary_stream(DATA + "ReadRows")(request.SerializeToString())
        key, family, qualifier = b"", "", b""
        async for body in call:
            for chunk in _ReadRowsResponse.FromString(body).chunks:
                # The service sends a key, a family and a qualifier only where they change.
                key = chunk.row_key or key
                family = chunk.family_name.value if chunk.HasField("family_name") else family
                qualifier = chunk.qualifier.value if chunk.HasField("qualifier") else qualifier
                yield key, (family, qualifier, chunk.timestamp_micros)

    async def close(self) -> None:
        """Close the connection."""
        await self._channel.close()


def rows_with(keys: Iterable[bytes]) -> Any:
    """Return the RowSet of these keys. There must be at least one: an empty RowSet is the whole table."""
    rows = data_types.ReadRowsRequest.pb()().rows
    rows.row_keys.extend(keys)
    assert rows.row_keys
    return rows


def rows_from(prefix: bytes) -> Any:
    """Return the RowSet of the keys that begin with `prefix`; an empty one is the whole table."""
    rows = data_types.ReadRowsRequest.pb()().rows
    # The smallest key above all keys with the prefix: its last byte that is not 0xff, plus one. There is none if the
    # prefix has only such bytes.
    shorter = prefix.rstrip(b"\xff")
    end = shorter[:-1] + bytes((shorter[-1] + 1,)) if shorter else b""
    rows.row_ranges.add(start_key_closed=prefix, **({"end_key_open": end} if end else {}))
    return rows


def _passed_on(context: Any) -> tuple[tuple[str, str | bytes], ...]:
    return () if context is None else _clean(context.invocation_metadata())


def _clean(metadata: Any) -> tuple[tuple[str, str | bytes], ...]:
    return tuple(_theirs(metadata or ()))


def _theirs(metadata: Iterable[tuple[str, str | bytes]]) -> Iterator[tuple[str, str | bytes]]:
    """Yield the metadata of the call, without the entries that belong to its connection."""
    for key, value in metadata:
        if not key.startswith(_NOT_OURS_TO_SEND) and key not in _HOP_BY_HOP:
            yield key, value
