"""Reads of a database at an exact timestamp, over the channel and the session of a `Client`.

Only a running pipeline imports this module. A plain read names its timestamp itself (a single-use transaction), so
neither a session nor a transaction has to live as long as the snapshot. Rows come in the order of the primary key.

Partition tokens are used in two places. To plan, the first row of each partition is read: its key is a place to cut the
table. The ranges are exact for any cuts, and balanced because the service makes partitions of similar work. With Data
Boost, each range is read through separate tokens, because the service demands a token for it.
Rows of a token come in no particular order.

Source: google/spanner/v1/spanner.proto (ReadRequest, PartitionReadRequest) and keys.proto.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

import grpc
from google.cloud.spanner_v1.types import keys as keys_types
from google.cloud.spanner_v1.types import result_set as result_set_types
from google.cloud.spanner_v1.types import spanner as spanner_types
from google.cloud.spanner_v1.types import transaction as transaction_types
from google.protobuf import json_format, struct_pb2

from penstock.io.change_streams.status import UnreachableError
from penstock.io.spanner.client import Client
from penstock.io.spanner.decode import merge_chunk
from penstock.io.spanner.errors import Reaction
from penstock.io.spanner.incremental.chunks import Statement
from penstock.io.spanner.initial_scan.errors import ExpiredError, classify_read
from penstock.io.spanner.initial_scan.frontier import KeyRange, Table
from penstock.io.spanner.initial_scan.rows import RowReader
from penstock.timestamps import NANOS, format_timestamp

_SECONDS = 60.0
"""How long a short request may take."""
_MESSAGE_SECONDS = 3600.0
"""How long the read of one range may take: a client that reads slowly holds the service back."""
_SAMPLING_THREADS = 16
"""Number of reads at the same time that look for the first key of a partition."""

_BeginTransactionRequest = spanner_types.BeginTransactionRequest.pb()
_ExecuteSqlRequest = spanner_types.ExecuteSqlRequest.pb()
_KeySet = keys_types.KeySet.pb()
_PartialResultSet = result_set_types.PartialResultSet.pb()
_PartitionReadRequest = spanner_types.PartitionReadRequest.pb()
_PartitionResponse = spanner_types.PartitionResponse.pb()
_ReadRequest = spanner_types.ReadRequest.pb()
_Transaction = transaction_types.Transaction.pb()


@dataclass(frozen=True, slots=True)
class Transaction:
    """A read-only transaction at `timestamp` (nanoseconds). It lives as long as its session, and no longer."""

    session: str
    id: bytes
    timestamp: int


class ScanClient:
    """Reads of one database; safe for threads. Raises the errors of `client.Call`, and `ExpiredError`."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self.backoff = client.backoff
        self.clock = client.clock
        self._begin = client.unary("BeginTransaction", _BeginTransactionRequest, _Transaction)
        self._partition_read = client.unary("PartitionRead", _PartitionReadRequest, _PartitionResponse)
        self._execute = client.streaming("ExecuteStreamingSql", _ExecuteSqlRequest)
        self._streaming_read = client.streaming("StreamingRead", _ReadRequest)

    def begin(self, timestamp: int | None) -> Transaction:
        """Begin a transaction at this time; None: now, by the clock of the service."""
        where = "the time of the snapshot" if timestamp is None else format_timestamp(timestamp)
        session = self._client.session(where)
        request = _BeginTransactionRequest(session=session)
        _set_timestamp(request.options.read_only, timestamp)
        # The service chooses the time of a strong read, and all ranges must be read at that time.
        request.options.read_only.return_read_timestamp = True
        begun = self._answered(self._begin, request, session, where)
        read = begun.read_timestamp
        return Transaction(session, begun.id, read.seconds * NANOS + read.nanos)

    def query(self, sql: str, timestamp: int | None) -> list[list[Any]]:
        """Return the rows of a small query at this time (None: now) as JSON values."""
        where = "the schema" if timestamp is None else f"the schema at {format_timestamp(timestamp)}"
        session = self._client.session(where)
        request = _ExecuteSqlRequest(session=session, sql=sql)
        _set_timestamp(request.transaction.single_use.read_only, timestamp)
        call = self._execute(request, timeout=_SECONDS, metadata=self._client.headers(f"session={session}"))
        values: list[Any] = []
        width, cut = 1, False
        for message in map(_PartialResultSet.FromString, Call(self._client, call, session, where)):
            if message.HasField("metadata"):
                width = len(message.metadata.row_type.fields)
            fresh = list(message.values)
            if cut and fresh:
                merge_chunk(values[-1], fresh.pop(0))
            values += fresh
            cut = message.chunked_value
        found = [json_format.MessageToDict(value) for value in values]
        return [found[start : start + width] for start in range(0, len(found), width)]

    def read(self, table: Table, each: KeyRange, timestamp: int, *, limit: int = 0) -> Call:
        """Start to read a range, in the order of the primary key; at most `limit` rows, 0: all."""
        # No order is set: without a partition token the default of ReadRequest.order_by is ORDER_BY_PRIMARY_KEY.
        return self._rows(
            table,
            _key_set(each),
            f"table {table.name} at {format_timestamp(timestamp)}",
            timestamp,
            limit=limit,
        )

    def read_keys(self, table: Table, keys: Iterable[str], timestamp: int) -> Call:
        """Start to read the rows with these keys, each a JSON array in the order of the primary key."""
        key_set = _KeySet()
        key_set.keys.extend(map(_list_value, keys))
        where = f"rows of table {table.name} at {format_timestamp(timestamp)}"
        return self._rows(table, key_set, where, timestamp)

    def select(self, statement: Statement, table: Table, timestamp: int) -> Call:
        """Start a query of one table. Parameters have no declared type; see `chunks`."""
        where = f"a query of table {table.name} at {format_timestamp(timestamp)}"
        session = self._client.session(where)
        request = _ExecuteSqlRequest(session=session, sql=statement.sql)
        request.MergeFrom(self._client.options)
        # Values without types: see `chunks`.
        request.params.update(statement.params)
        _set_timestamp(request.transaction.single_use.read_only, timestamp)
        headers = self._client.headers(f"session={session}")
        call = self._execute(request, timeout=_MESSAGE_SECONDS, metadata=headers)
        return Call(self._client, call, session, where)

    def tokens(self, table: Table, each: KeyRange, transaction: Transaction, count: int = 0) -> list[bytes]:
        """Return tokens of partitions that together have the rows of a range; about `count`, if it is given."""
        request = _PartitionReadRequest(
            session=transaction.session,
            table=table.name,
            columns=table.columns,
            key_set=_key_set(each),
        )
        request.transaction.id = transaction.id
        # A hint: the service may return more or fewer.
        request.partition_options.max_partitions = count
        where = f"table {table.name} at {format_timestamp(transaction.timestamp)}"
        response = self._answered(self._partition_read, request, transaction.session, where)
        return [partition.partition_token for partition in response.partitions]

    def read_partition(
        self,
        table: Table,
        each: KeyRange,
        transaction: Transaction,
        token: bytes,
        *,
        resume_token: bytes = b"",
        data_boost: bool = False,
    ) -> Call:
        """Start to read a partition of a range; rows come in any order. The token was made for this table and range."""
        return self._rows(
            table,
            _key_set(each),
            f"table {table.name} at {format_timestamp(transaction.timestamp)}",
            transaction,
            partition_token=token,
            resume_token=resume_token,
            data_boost_enabled=data_boost,
        )

    def sample_keys(self, table: Table, transaction: Transaction, count: int) -> list[str]:
        """Return keys that cut a table in about `count` ranges of similar size, in the order of the primary key."""
        keys = Table(
            table.name, table.columns[: table.key_size], table.positions[: table.key_size], table.key_size
        )
        if count < 2 or not table.key_size:
            return []
        everything = KeyRange(0)
        tokens = self.tokens(keys, everything, transaction, count)
        if len(tokens) < 2:
            return []
        first = partial(self._first_key, keys, everything, transaction)
        with ThreadPoolExecutor(_SAMPLING_THREADS) as threads:
            found = {key for key in threads.map(first, tokens) if key}
        # The service sorts them: the order of a key depends on its types, on DESC and on the dialect.
        ordered = list(self._in_order(keys, found, transaction.timestamp))
        # Before the first row there is nothing to read. The service may make more partitions than it was asked for.
        return ordered[1 :: max(1, len(ordered) // count)]

    def _first_key(self, keys: Table, each: KeyRange, transaction: Transaction, token: bytes) -> str:
        """Return the key of the first row that comes; the empty text if there is none."""
        read = self.read_partition(keys, each, transaction, token)
        reader = RowReader(keys, transaction.timestamp)
        for message in read:
            for rows in reader.feed(message):
                # One row is enough; without the cancel the service would send the whole partition.
                read.cancel()
                return f"[{','.join(_values_of(rows.record.mods[0].keys))}]"
        return ""

    def _in_order(self, keys: Table, found: Iterable[str], timestamp: int) -> Iterator[str]:
        if not found:
            return
        key_set = _KeySet()
        key_set.keys.extend(_list_value(key) for key in found)
        reader = RowReader(keys, timestamp)
        for message in self._rows(keys, key_set, f"keys of table {keys.name}", timestamp):
            for rows in reader.feed(message):
                for mod in rows.record.mods:
                    yield f"[{','.join(_values_of(mod.keys))}]"

    def _rows(self, table: Table, key_set: Any, where: str, at: int | Transaction, **options: Any) -> Call:
        # A transaction belongs to its session, so another one cannot be used.
        session = at.session if isinstance(at, Transaction) else self._client.session(where)
        request = _ReadRequest(
            session=session, table=table.name, columns=table.columns, key_set=key_set, **options
        )
        if isinstance(at, Transaction):
            request.transaction.id = at.id
        else:
            _set_timestamp(request.transaction.single_use.read_only, at)
        given = self._client.options
        request.request_options.CopyFrom(given.request_options)
        if given.HasField("directed_read_options"):
            request.directed_read_options.CopyFrom(given.directed_read_options)
        call = self._streaming_read(
            request, timeout=_MESSAGE_SECONDS, metadata=self._client.headers(f"session={session}")
        )
        return Call(self._client, call, session, where)

    def _answered(self, method: Any, request: Any, session: str, where: str) -> Any:
        try:
            return method(request, timeout=_SECONDS, metadata=self._client.headers(f"session={session}"))
        except grpc.RpcError as error:
            raise verdict(self._client, error, session, where) from None


class Call:
    """One running read: iterate once over its messages, each an encoded PartialResultSet."""

    def __init__(self, client: Client, call: Any, session: str, where: str) -> None:
        self._client = client
        self._call = call
        self._session = session
        self._where = where

    def __iter__(self) -> Iterator[bytes]:
        """Yield the messages.

        Raises:
            UnreachableError: ask again.
            ExpiredError: the transaction or the token is forgotten.
            ChangeStreamError: the rows cannot be read; the message says what to do.
        """
        try:
            for message in self._call:
                self._client.backoff.answered()
                yield message
        except grpc.RpcError as error:
            raise verdict(self._client, error, self._session, self._where) from None

    def cancel(self) -> None:
        """End the read. Messages that have arrived may still be yielded."""
        self._call.cancel()


def verdict(client: Client, error: Any, session: str, where: str) -> Exception:
    """Return the exception for a failed call, and drop the session if the session was the cause."""
    code, details = error.code().name, error.details() or ""
    reaction = classify_read(code, details, f"{client.database_path}, {where}")
    if reaction is Reaction.NEW_SESSION:
        client.forget(session)
        return ExpiredError(f"{code}: {details}")
    if isinstance(reaction, Reaction):
        return UnreachableError(f"{code}: {details}")
    return reaction


def _set_timestamp(read_only: Any, timestamp: int | None) -> None:
    if timestamp is None:
        read_only.strong = True
    else:
        read_only.read_timestamp.seconds, read_only.read_timestamp.nanos = divmod(timestamp, NANOS)


def _key_set(each: KeyRange) -> Any:
    key_set = _KeySet()
    if not each.start and not each.end:
        # The Python class of proto-plus calls the field `all_`, the message class calls it `all`.
        setattr(key_set, key_set.DESCRIPTOR.fields_by_number[3].name, True)
        return key_set
    one = key_set.ranges.add()
    # An empty list is a prefix of every key, so it is the first or the last key of the table.
    start, end = _list_value(each.start or "[]"), _list_value(each.end or "[]")
    (one.start_open if each.start_open else one.start_closed).CopyFrom(start)
    (one.end_open if each.end else one.end_closed).CopyFrom(end)
    return key_set


def _list_value(key: str) -> Any:
    value = struct_pb2.ListValue()
    value.extend(json.loads(key))
    return value


def _values_of(keys: str) -> Sequence[str]:
    """Return the values of a JSON object of scalars as JSON texts, in their order."""
    return [json.dumps(value, ensure_ascii=False) for value in json.loads(keys).values()]
