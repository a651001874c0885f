"""google.spanner.v1.Spanner: sessions, reads, queries, transactions.

Source: google/spanner/v1/spanner.proto and transaction.proto.
"""

from __future__ import annotations

import zlib
from collections.abc import AsyncIterator, Iterator
from itertools import islice
from typing import Any

from google.cloud.spanner_v1.types import commit_response as commit_types
from google.cloud.spanner_v1.types import result_set as result_set_types
from google.cloud.spanner_v1.types import spanner as spanner_types
from google.cloud.spanner_v1.types import transaction as transaction_types
from google.cloud.spanner_v1.types import type as type_types
from google.protobuf import empty_pb2

from penstock.emulators.simulated_spanner import wire
from penstock.emulators.simulated_spanner.change_answer import ChangeAnswer
from penstock.emulators.simulated_spanner.change_query import ChangeQuery, parse_change_query
from penstock.emulators.simulated_spanner.column_type import ColumnType
from penstock.emulators.simulated_spanner.errors import ServiceError, invalid, unimplemented
from penstock.emulators.simulated_spanner.expression import Typed
from penstock.emulators.simulated_spanner.key_set import KeyRange, KeySet
from penstock.emulators.simulated_spanner.mutation import (
    INSERT,
    REPLACE,
    UPDATE,
    UPSERT,
    Delete,
    Mutation,
    Write,
)
from penstock.emulators.simulated_spanner.record_encoding import (
    fill_column_type,
    fill_value,
    python_value,
    value_bytes,
)
from penstock.emulators.simulated_spanner.rows import Row, order_of
from penstock.emulators.simulated_spanner.schema import Table
from penstock.emulators.simulated_spanner.service import Service
from penstock.emulators.simulated_spanner.statement import Result, execute
from penstock.emulators.simulated_spanner.timestamp import SECOND, format_timestamp
from penstock.emulators.simulated_spanner.transaction import (
    AnyTransaction,
    ReadWrite,
    Session,
    Snapshot,
    read_timestamp,
)
from penstock.emulators.simulated_spanner.value import canonical

_BatchCreateSessionsResponse = spanner_types.BatchCreateSessionsResponse.pb()
_CommitResponse = commit_types.CommitResponse.pb()
_ExecuteBatchDmlResponse = spanner_types.ExecuteBatchDmlResponse.pb()
_ListSessionsResponse = spanner_types.ListSessionsResponse.pb()
_Metadata = result_set_types.ResultSetMetadata.pb()
_PartitionResponse = spanner_types.PartitionResponse.pb()
_ResultSet = result_set_types.ResultSet.pb()
_Session = spanner_types.Session.pb()
_Transaction = transaction_types.Transaction.pb()
_TransactionOptions = transaction_types.TransactionOptions.pb()
_TypeCode = type_types.TypeCode
_Annotation = type_types.TypeAnnotationCode

_ROWS_OF_A_MESSAGE = 200
_PARTITIONS = 4
"""How many partitions a partitioned read has."""
_ONLY_STREAMING = (
    "Change stream queries must be strong reads executed via single use transactions using the "
    "ExecuteStreamingSql API."
)


class SpannerService:
    """The RPCs; each takes a request message and returns a response message (or yields encoded ones)."""

    def __init__(self, service: Service) -> None:
        self._service = service

    # Sessions

    async def create_session(self, request: Any) -> Any:
        """Make one session."""
        return _session_message(self._service.create_session(request.database, request.session.multiplexed))

    async def batch_create_sessions(self, request: Any) -> Any:
        """Make several sessions."""
        made = [
            self._service.create_session(request.database, False)
            for _ in range(max(1, request.session_count))
        ]
        return _BatchCreateSessionsResponse(session=[_session_message(each) for each in made])

    async def get_session(self, request: Any) -> Any:
        """Return a session."""
        return _session_message(self._service.session(request.name))

    async def list_sessions(self, request: Any) -> Any:
        """Return all sessions of a database."""
        prefix = f"{request.database}/sessions/"
        found = [each for name, each in self._service.sessions.items() if name.startswith(prefix)]
        return _ListSessionsResponse(sessions=[_session_message(each) for each in found])

    async def delete_session(self, request: Any) -> Any:
        """Forget a session."""
        self._service.sessions.pop(request.name, None)
        return empty_pb2.Empty()

    # Transactions

    async def begin_transaction(self, request: Any) -> Any:
        """Begin a transaction."""
        session = self._service.session(request.session)
        started = session.begin(request.options, self._service.next_number(), self._service.clock.now())
        return _transaction_message(started, request.options)

    async def commit(self, request: Any) -> Any:
        """Commit a transaction: its DML, then the mutations of the request."""
        session = self._service.session(request.session)
        if request.transaction_id in session.committed:
            return session.committed[request.transaction_id]
        transaction = ReadWrite(
            session.database, b"", request.single_use_transaction.exclude_txn_from_change_streams
        )
        if request.WhichOneof("transaction") == "transaction_id":
            transaction = session.read_write(request.transaction_id)
        mutations = [*transaction.mutations, *(_mutation(session, each) for each in request.mutations)]
        done = session.database.commit(
            mutations,
            self._service.clock.now(),
            reads=transaction.reads,
            tag=request.request_options.transaction_tag or transaction.tag,
            excluded=transaction.excluded,
        )
        self._service.stats["commits"] += 1
        self._service.wake([each.token for each in done.partitions])
        response = _CommitResponse()
        response.commit_timestamp.seconds, response.commit_timestamp.nanos = divmod(done.timestamp, SECOND)
        if request.return_commit_stats:
            response.commit_stats.mutation_count = done.mutation_count
        if request.transaction_id:
            session.transactions.pop(request.transaction_id, None)
            session.committed[request.transaction_id] = response
        return response

    async def rollback(self, request: Any) -> Any:
        """Forget a transaction."""
        self._service.session(request.session).transactions.pop(request.transaction_id, None)
        return empty_pb2.Empty()

    async def batch_write(self, request: Any) -> AsyncIterator[bytes]:
        """Commit each group of mutations as a transaction of its own."""
        session = self._service.session(request.session)
        for index, group in enumerate(request.mutation_groups):
            response = spanner_types.BatchWriteResponse.pb()(indexes=[index])
            done = session.database.commit(
                [_mutation(session, each) for each in group.mutations],
                self._service.clock.now(),
                tag=request.request_options.transaction_tag,
                excluded=request.exclude_txn_from_change_streams,
            )
            self._service.wake([each.token for each in done.partitions])
            response.commit_timestamp.seconds, response.commit_timestamp.nanos = divmod(
                done.timestamp, SECOND
            )
            yield response.SerializeToString()

    # Queries

    async def execute_streaming_sql(self, request: Any) -> AsyncIterator[bytes]:
        """Answer a query, a change stream query or a DML statement in parts."""
        session = self._service.session(request.session)
        query = self._change_query(session, request)
        if query is not None:
            _check_change_query(request.transaction)
            answer = ChangeAnswer(self._service, session.database, query)
            async for message in answer.messages(request.resume_token):
                yield message
            return
        transaction, metadata = await self._selected(session, request.transaction)
        result = _executed(session, request, transaction, self._now())
        _fill_row_type(metadata, result.columns)
        for message in _messages(metadata, result.rows, _stats(result)):
            yield message

    async def execute_sql(self, request: Any) -> Any:
        """Answer a query or a DML statement at once."""
        session = self._service.session(request.session)
        if self._change_query(session, request) is not None:
            raise invalid(
                f"Change stream queries are not supported for the ExecuteSql API. {_ONLY_STREAMING}"
            )
        transaction, metadata = await self._selected(session, request.transaction)
        result = _executed(session, request, transaction, self._now())
        _fill_row_type(metadata, result.columns)
        return _result_set(metadata, result)

    async def execute_batch_dml(self, request: Any) -> Any:
        """Execute DML statements until one fails."""
        session = self._service.session(request.session)
        transaction, metadata = await self._selected(session, request.transaction)
        response = _ExecuteBatchDmlResponse()
        for number, statement in enumerate(request.statements):
            try:
                result = _executed(session, statement, transaction, self._now())
            except ServiceError as error:
                if not number:
                    raise
                response.status.code = _STATUS_NUMBERS.get(error.code, 2)
                response.status.message = str(error)
                break
            response.result_sets.append(_result_set(metadata, result))
            metadata = _Metadata()
        return response

    def _now(self) -> str:
        return format_timestamp(self._service.clock.now())

    def _change_query(self, session: Session, request: Any) -> ChangeQuery | None:
        params = {name: python_value(value) for name, value in request.params.fields.items()}
        return parse_change_query(session.database, request.sql, params)

    # Reads

    async def streaming_read(self, request: Any) -> AsyncIterator[bytes]:
        """Answer a read in parts."""
        metadata, rows = await self._read(request)
        for message in _messages(metadata, rows):
            yield message

    async def read(self, request: Any) -> Any:
        """Answer a read at once."""
        metadata, rows = await self._read(request)
        return _result_set(metadata, Result(rows=list(rows)))

    async def partition_read(self, request: Any) -> Any:
        """Divide a read in partitions, to be read with their tokens."""
        return await self._partitioned(request)

    async def partition_query(self, request: Any) -> Any:
        """Return the one partition of a query."""
        return await self._partitioned(request, count=1)

    async def _partitioned(self, request: Any, count: int = _PARTITIONS) -> Any:
        session = self._service.session(request.session)
        transaction, metadata = await self._selected(session, request.transaction)
        if not isinstance(transaction, Snapshot):
            raise invalid("Partitioned reads need a read-only transaction.")
        response = _PartitionResponse()
        response.transaction.CopyFrom(metadata.transaction)
        for number in range(count):
            response.partitions.add().partition_token = b"%d/%d" % (number, count)
        return response

    async def _read(self, request: Any) -> tuple[Any, Iterator[list[Any]]]:
        session = self._service.session(request.session)
        if request.index:
            raise unimplemented("Reading an index.")
        transaction, metadata = await self._selected(session, request.transaction)
        table = session.database.schema.table(request.table)
        columns = [table.columns[table.index(name)] for name in request.columns]
        _fill_row_type(metadata, [(each.name, each.kind) for each in columns])
        rows = _rows(table, _key_set(table, request.key_set), transaction, request.partition_token)
        found = ([row.get(each.name) for each in columns] for row in rows)
        return metadata, islice(found, request.limit or None)

    async def _selected(self, session: Session, selector: Any) -> tuple[AnyTransaction, Any]:
        """Return the transaction of a request, and metadata that names it if it begins here."""
        metadata = _Metadata()
        now = self._service.clock.now()
        kind = selector.WhichOneof("selector")
        if kind == "id":
            found = session.transaction(selector.id)
        elif kind == "begin":
            found = session.begin(selector.begin, self._service.next_number(), now)
            metadata.transaction.CopyFrom(_transaction_message(found, selector.begin))
        else:
            options = selector.single_use
            moment = read_timestamp(session.database, options.read_only, now)
            found = Snapshot(session.database, moment)
            if options.read_only.return_read_timestamp:
                metadata.transaction.CopyFrom(_transaction_message(found, options))
        if isinstance(found, Snapshot):
            # The last commit may be dated a little ahead of the clock; nothing is to be waited for then.
            if found.timestamp > max(self._service.clock.now(), session.database.last):
                await self._service.wait_until(found.timestamp)
            # What was read at a timestamp stays what was there at it.
            session.database.close(found.timestamp)
        return found, metadata


_STATUS_NUMBERS = {
    "INVALID_ARGUMENT": 3,
    "NOT_FOUND": 5,
    "ALREADY_EXISTS": 6,
    "FAILED_PRECONDITION": 9,
    "ABORTED": 10,
}


def _session_message(session: Session) -> Any:
    return _Session(name=session.name, multiplexed=session.multiplexed)


def _transaction_message(transaction: AnyTransaction, options: Any) -> Any:
    message = _Transaction(id=transaction.id)
    if isinstance(transaction, Snapshot) and options.read_only.return_read_timestamp:
        seconds, nanos = divmod(transaction.timestamp, SECOND)
        message.read_timestamp.seconds, message.read_timestamp.nanos = seconds, nanos
    return message


def _check_change_query(selector: Any) -> None:
    """Only a strong single-use read may ask a change stream; no selector at all means that too."""
    kind = selector.WhichOneof("selector")
    if kind is None:
        return
    if kind != "single_use" or not selector.single_use.read_only.strong:
        raise invalid(
            f"Change stream queries are not supported for multi use transactions. {_ONLY_STREAMING}"
        )


def _executed(session: Session, request: Any, transaction: AnyTransaction, now: str) -> Result:
    schema = session.database.schema
    result = execute(schema, request.sql, _typed_params(request), transaction, now)
    if result.mutations is not None:
        if not isinstance(transaction, ReadWrite):
            raise invalid("DML statements can only be performed in a read-write transaction.")
        transaction.apply(result.mutations)
    return result


def _typed_params(request: Any) -> dict[str, Typed]:
    return {
        name: (
            python_value(value),
            _column_type(request.param_types[name]) if name in request.param_types else None,
        )
        for name, value in request.params.fields.items()
    }


def _column_type(message: Any) -> ColumnType | None:
    if not message.code:
        return None
    code = _TypeCode(message.code).name
    element = _column_type(message.array_element_type) if code == "ARRAY" else None
    annotation = _Annotation(message.type_annotation).name if message.type_annotation else ""
    return ColumnType(code, element, annotation, message.proto_type_fqn)


def _mutation(session: Session, message: Any) -> Mutation:
    kind = message.WhichOneof("operation")
    if kind == "delete":
        table = session.database.schema.table(message.delete.table)
        return Delete(table.name, _key_set(table, message.delete.key_set))
    if kind not in (INSERT, UPDATE, UPSERT, REPLACE):
        raise unimplemented(f"The mutation {kind}.")
    write = getattr(message, kind)
    rows = tuple(tuple([python_value(value) for value in row.values]) for row in write.values)
    return Write(kind, write.table, tuple(write.columns), rows)


def _key_set(table: Table, message: Any) -> KeySet:
    return KeySet(
        tuple(_key(table, key) for key in message.keys),
        tuple(_range(table, each) for each in message.ranges),
        message.all_ if hasattr(message, "all_") else message.all,
    )


def _key(table: Table, message: Any) -> tuple[Any, ...]:
    values = [python_value(value) for value in message.values]
    kinds = [table.columns[number].kind for number in table.key]
    return tuple(canonical(value, kind) for value, kind in zip(values, kinds, strict=False))


def _range(table: Table, message: Any) -> KeyRange:
    start_kind, end_kind = message.WhichOneof("start_key_type"), message.WhichOneof("end_key_type")
    return KeyRange(
        order_of(table, _key(table, getattr(message, start_kind))),
        order_of(table, _key(table, getattr(message, end_kind))),
        start_kind == "start_closed",
        end_kind == "end_closed",
    )


def _rows(table: Table, keys: KeySet, transaction: AnyTransaction, partition_token: bytes) -> Iterator[Row]:
    number, count = (int(each) for each in (partition_token or b"0/1").split(b"/"))
    if not keys.scans:
        orders = sorted({order_of(table, key) for key in keys.keys})
        found = [(order, transaction.row(table, order)) for order in orders]
        pairs = [(order, row) for order, row in found if row is not None]
    else:
        single = {order_of(table, key) for key in keys.keys}
        pairs = [
            (order, row)
            for order, row in transaction.scan(table)
            if order in single or next(keys.matching([(order, row)]), None) is not None
        ]
    for _, row in pairs:
        if (
            count == 1
            or zlib.crc32(repr([row[table.columns[n].name] for n in table.key]).encode()) % count == number
        ):
            yield row


def _fill_row_type(metadata: Any, columns: list[tuple[str, ColumnType]]) -> None:
    metadata.row_type.SetInParent()
    for name, kind in columns:
        field = metadata.row_type.fields.add()
        field.name = name
        fill_column_type(field.type_, kind)


def _stats(result: Result) -> bytes:
    """Return an encoded ResultSetStats of a DML statement; nothing for a query."""
    if result.mutations is None:
        return b""
    stats: bytes = result_set_types.ResultSetStats.pb()(row_count_exact=result.row_count).SerializeToString()
    return stats


def _messages(metadata: Any, rows: Any, stats: bytes = b"") -> Iterator[bytes]:
    encoded = metadata.SerializeToString()
    source = iter(rows)
    last = list(islice(source, _ROWS_OF_A_MESSAGE))
    while True:
        following = list(islice(source, _ROWS_OF_A_MESSAGE))
        message = wire.partial_result_set([value_bytes(v) for row in last for v in row], metadata=encoded)
        if not following:
            yield message + (wire.field(b"\x2a", stats) if stats else b"")
            return
        yield message
        encoded, last = b"", following


def _result_set(metadata: Any, result: Result) -> Any:
    message = _ResultSet(metadata=metadata)
    for row in result.rows:
        target = message.rows.add()
        for value in row:
            fill_value(target.values.add(), value)
    if result.mutations is not None:
        message.stats.row_count_exact = result.row_count
    return message
